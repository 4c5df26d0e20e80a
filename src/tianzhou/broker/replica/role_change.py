"""Role changes: the machine that executes the table, and the effects that every mode shares."""

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.replica.roles import Effect, Event, State, allows, decide
from tianzhou.broker.role import Role, RoleState
from tianzhou.broker.slice import Service
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.net.rpc import RequestRejected
from tianzhou.replication.ha_epochs import EPOCH_STEP_MAX
from tianzhou.store.store import MessageStore
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.registration import EPOCH_MAX

log: Final = logging.getLogger("tianzhou.replication")
log_role: Final = logging.getLogger("tianzhou.broker")

LOST_CLAIM: Final = (
    "another broker of this group was promoted at the same time; nothing was changed here; check "
    "with `tianzhou cluster` which one is the master"
)


class RoleMachine:
    """The state of a broker's role. Owner: the broker loop; only `handle` changes the state.

    Invariant: the state changes after all effects of a transition; if an effect raises, the state
    stays, and the event may be reported again
    """

    def __init__(self, execute: Mapping[Effect, Callable[[], None]]) -> None:
        """`execute` has a function for every effect that the events of this mode cause."""
        self._execute = execute
        self.state = State.STOPPED

    def allows(self, event: Event) -> bool:
        return allows(self.state, event)

    def handle(self, event: Event) -> None:
        state, effects = decide(self.state, event)
        for effect in effects:
            self._execute[effect]()
        self.state = state


class LocalRole:
    """The effects of a role change on the broker itself. Owner: the broker loop."""

    def __init__(
        self,
        store: MessageStore,
        role_state: RoleState,
        *,
        writer: Writer,
        offsets: ConsumerOffsets,
        services: tuple[Service, ...],
    ) -> None:
        self._store = store
        self._role_state = role_state
        self._writer = writer
        self._offsets = offsets
        self._services = services

    def begin_writing(self) -> None:
        """Make the whole log visible, continue its queue offsets, and let the services load their
        state. The log must be confirmed to its end: it is dispatched to its end here."""
        self._store.flush()
        self._writer.settle()
        if not self._store.is_writing:
            self._store.begin_writing()
        self._offsets.clamp(self._store.max_offset)
        for service in self._services:
            service.begin()
        self._writer.settle()

    def refuse_writes(self) -> None:
        self._store.stop_writing()

    def stop_writing(self) -> None:
        """Accept no more messages. Senders that wait get `Outcome.NOT_MASTER`. The log may hold
        messages that the next master does not have; the mode truncates them."""
        self._store.stop_writing()
        self._writer.give_up()

    def publish(self, role: Role, *, broker_id: int, epoch: int) -> None:
        """Let handlers see the new role at once, and NameServers with the next registration."""
        self._role_state.take(role, broker_id, epoch)
        log_role.info("role.taken", extra={"role": role.value, "id": broker_id, "epoch": epoch})


class Claim(NamedTuple):
    """The epoch that a slave registers before it becomes the master. A NameServer admits one token
    for each epoch, so of two slaves that are promoted at the same time one is rejected."""

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


def name_topics_of_queues(topics: Topics, store: MessageStore) -> None:
    """Create the topics of queues that belong to no known topic: the last master may have died
    before it reported a topic whose messages this broker has, and without its name consumers could
    not read them."""
    unknown: dict[str, int] = {}
    for queue in store.queues:
        topic, queue_id = queue.key
        if topics.get(topic) is None and not queue.is_light:
            unknown[topic] = max(unknown.get(topic, 0), queue_id + 1)
    if unknown:
        log.warning("topics.named_after_queues", extra={"topics": sorted(unknown)})
        topics.ensure_all(unknown)
