"""The mode of a broker: how it relates to the other brokers that have the same messages.

There are three: `standalone.Standalone` has no others, `master_slave.MasterSlave` replicates a log
from a master to slaves, `raft.RaftMode` makes the broker a member of a Raft group. A mode is
created before the broker and passed to it. Code that depends on other brokers asks the mode, and
does not distinguish the three.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.broker.alarms import Alarms
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import Groups
from tianzhou.broker.replica.expiry_floor import Progress
from tianzhou.broker.role import RoleState
from tianzhou.broker.runtime_config import Group as SharedSettings
from tianzhou.broker.scheduled.delay import Delays
from tianzhou.broker.scheduled.timer import Timers
from tianzhou.broker.slice import Service
from tianzhou.broker.topics.admin import TopicRemoval
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.net.rpc import RequestRejected
from tianzhou.record.chunk import RecordChunk
from tianzhou.replication.durability import Durability, Outcome
from tianzhou.replication.raft_group import RaftGroup
from tianzhou.store.commit_log import Appended
from tianzhou.store.retention import Hold
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.raft_bodies import RaftView
from tianzhou.wire.replication_bodies import ReplicationView

OnCommitted = Callable[[Outcome], None]


class NameServers(Protocol):
    """The registration of this broker, as its mode needs it."""

    def wake(self) -> None:
        """Register soon: the response names the master."""
        ...

    def register_then(self, then: Callable[[], None]) -> None:
        """Register, and call `then` when all NameServers have responded or timed out."""
        ...

    def hear(self, then: Callable[[bool], None]) -> None:
        """The same, and tell `then` whether any NameServer has responded."""
        ...


class TableOwners(Protocol):
    """The parts of a broker that own the tables which replicas share."""

    @property
    def topics(self) -> Topics: ...
    @property
    def groups(self) -> Groups: ...
    @property
    def offsets(self) -> ConsumerOffsets: ...
    @property
    def delays(self) -> Delays: ...
    @property
    def timers(self) -> Timers: ...
    @property
    def removal(self) -> TopicRemoval: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The parts of a broker that its mode acts on."""

    writer: Writer
    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets
    delays: Delays
    timers: Timers
    removal: TopicRemoval
    services: tuple[Service, ...]
    alarms: Alarms
    nameservers: NameServers
    on_raft_progress: Callable[[], None]
    """Answers requests that wait for a change of a Raft group."""
    address: str
    """Where the broker serves clients."""


class Announcement(NamedTuple):
    """What a mode adds to a registration."""

    epoch: int
    """0: this broker has no epochs."""
    token: str = ""
    """Distinguishes two masters of the same epoch; empty if this broker is not a master."""
    is_claim: bool = False
    """Register as the master, which this slave is about to become."""
    has_group: bool = False
    """Register the epoch even if it is 0."""


class NameServerReport(NamedTuple):
    """What a NameServer's response to a registration says about the group."""

    epoch_seen: int
    """The latest epoch that it knows of; 0: none."""
    epoch: int
    """The epoch of a later master than this broker; 0: there is none."""
    free_id: int
    """An id for this broker as a slave of that master."""
    master_address: str
    ha_address: str
    greets: bool
    """Whether the master runs Tianzhou."""


class Promotion(Protocol):
    """A broker whose role an operator can change."""

    def after_final_sync(self, then: Callable[[], None]) -> None:
        """Call `then` when this slave knows everything that its master, if it is alive, can
        report."""
        ...

    def announce_claim(self, then: Callable[[], None]) -> None:
        """Register the claimed epoch, and call `then` when all NameServers have responded or timed
        out."""
        ...

    def claim(self, *, above: int = 0) -> None: ...
    def promote(self) -> int: ...
    def step_down(self, broker_id: int, *, reason: str) -> int: ...


class Mode(Protocol):
    """Owner: the broker loop.

    Lifetime: construction, `attach` once the broker is built, `join` before clients can connect,
    `start` after the first registration, then `leave` while clients are still served, `close` after
    the broker has unregistered. `abort` stops it as the end of a process does.
    """

    # What the rest of the broker asks

    @property
    def role_state(self) -> RoleState: ...

    @property
    def durability(self) -> Durability:
        """When a message counts as stored, and up to where the log is confirmed."""
        ...

    @property
    def append(self) -> Callable[[RecordChunk], Appended]:
        """Appends records to the log."""
        ...

    @property
    def replicates_tables(self) -> bool:
        """Whether changes of topics and groups are committed through the log."""
        ...

    @property
    def shared_settings(self) -> SharedSettings | None:
        """Settings that all brokers of the group share; None: there are none."""
        ...

    @property
    def lacks_messages(self) -> bool:
        """Whether another broker may have messages that this one does not have."""
        ...

    @property
    def where_next(self) -> Callable[[int], int] | None:
        """Returns the id of the broker to read from next, if this many bytes of the log are
        unread. None: there is no other broker to read from."""
        ...

    def may_administer(self, what: str) -> None:
        """Raise RequestRejected, with the address of the master or leader, unless this broker may
        execute requests that change messages, topics, groups, locks or members."""
        ...

    def check_commit(self) -> None:
        """Raise RequestRejected if a change of tables could not even be proposed now."""
        ...

    def commit(self, then: OnCommitted) -> bool:
        """Whether `then` is called later, when all changes of tables so far are committed or their
        outcome is unknown. False: they are final already."""
        ...

    def kept_progress(self) -> Progress | None:
        """The progress of delays, timers and transactions from which this replica would resume as
        the master; None: the saved one."""
        ...

    def hold(self) -> Hold | None:
        """What the replica that is furthest behind still needs of this log, if this broker is the
        master or leader; None if nothing is known to need it."""
        ...

    # What registration and administration ask

    def announcement(self) -> Announcement: ...
    def on_nameserver_report(self, report: NameServerReport) -> None: ...

    def use_id(self, broker_id: int) -> bool:
        """Whether this broker has this free id from now on, because another one has its own."""
        ...

    def view(self, alone: ReplicationView) -> ReplicationView:
        """Add what is known of the other brokers to the view of this one."""
        ...

    def raft_view(self) -> RaftView | None:
        """None: this broker is not a Raft member."""
        ...

    def promotion(self) -> Promotion:
        """Raises RequestRejected unless an operator can change the role of this broker."""
        ...

    def raft_group(self) -> RaftGroup:
        """Raises RequestRejected unless this broker is a Raft member."""
        ...

    def change_timeout_s(self) -> float:
        """How long a response may wait for the commit of a change of members."""
        ...

    # Lifetime

    def attach(self, host: Host) -> None:
        """Start in the initial role. A mode and its broker depend on each other: handlers ask the
        mode, and a role change acts on the parts that the handlers use. This call, once, after
        both are built, is the only connection made after construction."""
        ...

    async def join(self, host: str, port: int) -> str | None:
        """Listen for replicas beside the broker's host and port, and follow the master, before
        clients can connect. Returns the address for slaves, empty if there is none, and None if
        this broker has no slaves and need not register before clients connect."""
        ...

    async def start(self) -> None: ...
    async def leave(self) -> None: ...
    async def close(self) -> None: ...
    def abort(self) -> None: ...

    # Events

    def on_flushed(self) -> None:
        """The log was synced; called before responses are released."""
        ...

    def on_damage(self, offset: PhysicalOffset) -> None:
        """A record of the log cannot be read."""
        ...

    def tick(self) -> bool:
        """Called about ten times a second while the store works; returns False."""
        ...

    def second(self) -> None:
        """Called about once a second."""
        ...


def not_master_slave() -> RequestRejected:
    return RequestRejected(
        ResponseCode.SYSTEM_ERROR, "this broker is not in a group of master and slaves"
    )


def not_raft() -> RequestRejected:
    return RequestRejected(
        ResponseCode.INVALID_PARAMETER, "this broker is not a member of a Raft group"
    )
