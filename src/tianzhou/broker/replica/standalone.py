"""A broker without replicas: always the master, and every change is final at once."""

from collections.abc import Callable

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.broker.replica.expiry_floor import Progress
from tianzhou.broker.replica.mode import (
    Announcement,
    Host,
    NameServerReport,
    OnCommitted,
    Promotion,
    not_master_slave,
    not_raft,
)
from tianzhou.broker.replica.role_change import LocalRole, RoleMachine
from tianzhou.broker.replica.roles import Effect, Event
from tianzhou.broker.role import Role, RoleState
from tianzhou.record.chunk import RecordChunk
from tianzhou.replication.durability import durability_of
from tianzhou.replication.raft_group import RaftGroup
from tianzhou.store.commit_log import Appended
from tianzhou.store.retention import Hold
from tianzhou.store.store import MessageStore
from tianzhou.wire.names import MASTER_ID
from tianzhou.wire.raft_bodies import RaftView
from tianzhou.wire.replication_bodies import ReplicationView


class Standalone:
    """The null mode. Owner: the broker loop."""

    def __init__(self, name: str, store: MessageStore) -> None:
        self._store = store
        self.role_state = RoleState(name, Role.MASTER, MASTER_ID)
        self.durability = durability_of(store)
        self.append: Callable[[RecordChunk], Appended] = store.append
        self.replicates_tables = False
        self.shared_settings = None
        self.lacks_messages = False
        self.where_next = None

    def may_administer(self, what: str) -> None:
        self.role_state.check_master(what)

    def check_commit(self) -> None:
        pass

    def commit(self, then: OnCommitted) -> bool:
        return False

    def kept_progress(self) -> Progress | None:
        return None

    def hold(self) -> Hold | None:
        return None

    def announcement(self) -> Announcement:
        return Announcement(self.role_state.epoch)

    def on_nameserver_report(self, report: NameServerReport) -> None:
        pass

    def use_id(self, broker_id: int) -> bool:
        return False

    def view(self, alone: ReplicationView) -> ReplicationView:
        return alone

    def raft_view(self) -> RaftView | None:
        return None

    def promotion(self) -> Promotion:
        raise not_master_slave()

    def raft_group(self) -> RaftGroup:
        raise not_raft()

    def change_timeout_s(self) -> float:
        return 0.0

    def attach(self, host: Host) -> None:
        local = LocalRole(
            self._store,
            self.role_state,
            writer=host.writer,
            offsets=host.offsets,
            services=host.services,
        )
        RoleMachine({Effect.BEGIN_WRITING: local.begin_writing}).handle(Event.START_ALONE)

    async def join(self, host: str, port: int) -> str | None:
        return None

    async def start(self) -> None:
        pass

    async def leave(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def on_flushed(self) -> None:
        pass

    def on_damage(self, offset: PhysicalOffset) -> None:
        pass

    def tick(self) -> bool:
        return False

    def second(self) -> None:
        pass
