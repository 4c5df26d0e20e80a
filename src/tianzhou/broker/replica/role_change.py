"""Becoming the master: from copies of messages to a broker that takes them."""

import logging
from typing import Final, NamedTuple

from tianzhou.broker.replica.host import MasterParts
from tianzhou.net.rpc import RequestRejected
from tianzhou.replication.ha_epochs import EPOCH_STEP_MAX
from tianzhou.store.store import MessageStore
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.registration import EPOCH_MAX

log: Final = logging.getLogger("tianzhou.replication")

LOST_CLAIM: Final = (
    "another broker of this group was promoted at the same time; nothing was changed here; check "
    "with `tianzhou cluster` which one is the master"
)


class Claim(NamedTuple):
    """The epoch that a slave registers before it becomes the master. A NameServer admits one token
    for each epoch, so of two slaves that are promoted at the same time one is refused."""

    epoch: int
    token: str


def next_epoch(known: int, *, above: int = 0) -> int:
    """The epoch of a new master: above every epoch known here and above `above`, the latest one
    that the caller of the promotion knows. Raises RequestRejected for an epoch so high that hardly
    any could follow."""
    if not 0 <= above <= known + EPOCH_STEP_MAX:
        raise RequestRejected(
            ResponseCode.INVALID_PARAMETER,
            f"invalid aboveEpoch {above}; it must be from 0 to {known + EPOCH_STEP_MAX}, which is "
            f"{EPOCH_STEP_MAX} above the latest epoch that this broker knows of",
        )
    epoch = max(known, above) + 1
    if epoch > EPOCH_MAX:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            f"epoch {known} is the highest possible; start every broker of this group "
            "with an empty directory",
        )
    return epoch


def begin_as_master(parts: MasterParts, store: MessageStore) -> None:
    """Make everything visible that the log holds, go on with its queue offsets, and let the
    services read what they keep. What `visible_bound` still holds back must be confirmed before."""
    store.flush()
    parts.writer.settle()
    if not store.is_writing:
        store.begin_writing()
    parts.offsets.clamp(store.max_offset)
    for service in parts.services:
        service.begin()
    parts.writer.settle()


def name_topics_of_queues(parts: MasterParts, store: MessageStore) -> None:
    """The old master may have died before it told us of a topic whose messages we have: without a
    name nobody could read them."""
    unknown: dict[str, int] = {}
    for queue in store.queues:
        topic, queue_id = queue.key
        if parts.topics.get(topic) is None:
            unknown[topic] = max(unknown.get(topic, 0), queue_id + 1)
    if unknown:
        log.warning("topics.named_after_queues", extra={"topics": sorted(unknown)})
        parts.topics.ensure_all(unknown)


def end_as_master(parts: MasterParts, store: MessageStore) -> None:
    """Take no more messages, and tell whoever waits that we do not know."""
    store.stop_writing()
    parts.writer.give_up()
