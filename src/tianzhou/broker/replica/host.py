"""What replication uses of the broker around it."""

from collections.abc import Callable
from typing import Protocol

from tianzhou.broker.alarms import Alarms
from tianzhou.broker.fetch.pull import Pull
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import Groups
from tianzhou.broker.replica.admin import AdminReplication
from tianzhou.broker.replica.admin_raft import AdminRaft
from tianzhou.broker.replica.expiry_floor import ExpiryFloor
from tianzhou.broker.replica.gate import RoleGate
from tianzhou.broker.role import Role, RoleState
from tianzhou.broker.scheduled.delay import Delays
from tianzhou.broker.scheduled.timer import Timers
from tianzhou.broker.slice import Service, Watch
from tianzhou.broker.topics.removal import TopicRemoval
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.replication.durability import Durability


class MasterParts(Protocol):
    """What becoming the master, or ceasing to be it, concerns."""

    writer: Writer
    topics: Topics
    offsets: ConsumerOffsets
    services: tuple[Service, ...]


class ReplicaParts(MasterParts, Protocol):
    """What a replica keeps up to date, or is shown in."""

    groups: Groups
    pull: Pull
    replication: AdminReplication
    raft: AdminRaft
    alarms: Alarms
    gate: RoleGate
    removal: TopicRemoval
    floor: ExpiryFloor
    delays: Delays
    timers: Timers
    watches: tuple[Watch, ...]


class RaftHost(Protocol):
    """The broker that a Raft group serves clients through."""

    role_state: RoleState
    durability: Durability
    address: str
    on_flushed: list[Callable[[], None]]

    @property
    def parts(self) -> ReplicaParts: ...

    def take_role(self, role: Role, *, broker_id: int, epoch: int) -> None: ...
