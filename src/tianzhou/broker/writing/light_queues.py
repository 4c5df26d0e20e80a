"""Light queues of the messages that this broker stores: which are allowed, and which are ignored.

A send is rejected if it names queues that are invalid or too many. A message that the broker stores
later on its behalf (delayed, timed, or committed) must not be lost, so it is delivered, without the
light queues that the limit excludes by then.
"""

import logging
from collections.abc import Iterable
from typing import Final, Protocol

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.base.limits import PROPERTIES_BYTES_MAX
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.net.rpc import RequestRejected
from tianzhou.record import light_queues
from tianzhou.record.chunk import Entry
from tianzhou.wire._generated_codes import ResponseCode

log: Final = logging.getLogger("tianzhou.broker")

_RESERVE_BYTES: Final = 256
"""For properties that the broker adds to a message."""


class LightStore(Protocol):
    """What a store knows of its light queues."""

    @property
    def light_queue_count(self) -> int:
        """Light queues that exist, or will as soon as their first message is visible."""
        ...

    def assigned_end(self, key: QueueKey) -> int:
        """The queue offset that the next message gets; 0 for a queue that does not exist."""
        ...


class LightQueues:
    """Owner: the broker loop."""

    def __init__(self, config: BrokerConfig, store: LightStore) -> None:
        self._config = config
        self._store = store

    def adopt(self, config: BrokerConfig) -> None:
        """Apply settings that changed while the broker runs."""
        self._config = config

    def _named(self, topic: str, text: bytes) -> list[bytes]:
        """The names that count in a message with these properties, valid or not."""
        config = self._config
        if not (config.light_queues and config.multi_dispatch) or not _is_for_consumers(topic):
            return []
        return light_queues.names_of(text)

    def check(self, topic: str, text: bytes) -> None:
        """Check the light queues of a message to this topic. Raises RequestRejected."""
        if text.find(light_queues.ANY_PROPERTY) < 0:
            return
        found = [name.decode("utf-8", "replace") for name in self._named(topic, text)]
        for name in found:
            if not light_queues.is_light(name):
                raise _illegal(
                    f"{name[:64]!r} in INNER_MULTI_DISPATCH is not a light queue; names begin with "
                    f"{light_queues.PREFIX} and are separated by commas"
                )
        try:
            light_queues.checked_names(found)
        except UsageError as error:
            raise _illegal(str(error)) from error
        size = len(text) + light_queues.room_bytes(len(found))
        if found and size > PROPERTIES_BYTES_MAX - _RESERVE_BYTES:
            raise _illegal(
                f"the properties have {size} bytes with the offsets in {len(found)} light queues, "
                f"more than {PROPERTIES_BYTES_MAX - _RESERVE_BYTES}"
            )
        new = [name for name in found if self._is_new(name)]
        if len(new) > max(self._left, 0):
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"there are {self._store.light_queue_count} light queues already, so {new[0]} "
                f"cannot be created; light_queues_max allows {self._config.light_queues_max}",
            )

    @property
    def _left(self) -> int:
        return self._config.light_queues_max - self._store.light_queue_count

    def _is_new(self, name: str) -> bool:
        return self._store.assigned_end(queue_key(name, 0)) == 0

    def prepare(self, entries: Iterable[Entry]) -> list[Entry]:
        """The messages of one append with room for their offsets in light queues, and without any
        other offsets: a client may have sent some, and a copy of a stored message has those of the
        original."""
        created: set[bytes] = set()
        return [
            entry
            if entry.properties.find(light_queues.ANY_PROPERTY) < 0
            else self._prepared(entry, created)
            for entry in entries
        ]

    def _prepared(self, entry: Entry, created: set[bytes]) -> Entry:
        topic, text = entry.queue.topic, entry.properties
        named = self._named(topic, text)
        kept = [name for name in dict.fromkeys(named) if self._is_allowed(name, created)]
        del kept[light_queues.COUNT_MAX :]
        if len(kept) < len(named):
            facts = {"topic": topic, "left_out": len(named) - len(kept)}
            log.warning("light_queues.left_out", extra=facts)
        changed = light_queues.with_room(text, kept) if kept else light_queues.without_offsets(text)
        return entry._replace(properties=changed)

    def _is_allowed(self, name: bytes, created: set[bytes]) -> bool:
        """Whether a message may be put into this queue. `created` are the new ones of an append."""
        text = name.decode("utf-8", "replace")
        if not light_queues.is_light(text) or not _is_valid(text):
            return False
        if name not in created and self._is_new(text):
            if len(created) >= self._left:
                return False
            created.add(name)
        return True


def _is_for_consumers(topic: str) -> bool:
    """Whether consumers read the topic under its own name. Messages that wait in a topic of the
    broker are dispatched when they are delivered, and a retry is not a new message."""
    return not names.is_own(topic) and not topic.startswith((names.RETRY_PREFIX, names.DEAD_PREFIX))


def _is_valid(name: str) -> bool:
    try:
        light_queues.checked_name(name)
    except UsageError:
        return False
    return True


def _illegal(why: str) -> RequestRejected:
    return RequestRejected(ResponseCode.MESSAGE_ILLEGAL, why)
