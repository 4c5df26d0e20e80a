"""The mode of a Raft member: the elected leader is the master, every other member is a slave.

The group elects the leader; this file executes its decisions. Every member serves consumers at all
times, with committed messages.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.broker.alarms import Alarm, Since
from tianzhou.broker.replica import slave_sync
from tianzhou.broker.replica.coalesced_call import CoalescedCall
from tianzhou.broker.replica.expiry_floor import Progress
from tianzhou.broker.replica.mode import (
    Announcement,
    Host,
    NameServerReport,
    OnCommitted,
    Promotion,
    not_master_slave,
)
from tianzhou.broker.replica.raft_metadata import QUEUE, RaftMetadata, Tables
from tianzhou.broker.replica.raft_view import hold_of, view_of
from tianzhou.broker.replica.role_change import LocalRole, RoleMachine
from tianzhou.broker.replica.roles import Effect, Event
from tianzhou.broker.replica.slave_sync import SlaveSync
from tianzhou.broker.role import Role, RoleState
from tianzhou.raft.quorum import is_pair
from tianzhou.raft.roles import Role as RaftRole
from tianzhou.record.chunk import RecordChunk
from tianzhou.replication.durability import Durability, durability_of
from tianzhou.replication.raft_group import RaftGroup
from tianzhou.replication.raft_settings import RaftSettings, broker_id_of, peers_of
from tianzhou.replication.raft_storage import Opened
from tianzhou.store.commit_log import Appended
from tianzhou.store.derive import QueueUnits
from tianzhou.store.errors import DiskFull
from tianzhou.store.retention import Hold
from tianzhou.wire.names import MASTER_ID
from tianzhou.wire.raft_bodies import RaftView
from tianzhou.wire.replication_bodies import ReplicationView

log: Final = logging.getLogger("tianzhou.raft")

HAND_OVER_S: Final = 1.0
"""How long a leader that stops waits for its successor."""
KEEP_UP_S: Final = 2.0
"""How long a leader that stops waits for a copy that has just started: until it keeps up, some
messages are on this disk alone, and no other member can be elected."""
PAIR: Final = "raft_pair"
"""The kind of the alarm of a group of two voters."""
_PAUSE_S: Final = 0.02
_TICKS_PER_SECOND: Final = 10


class _Attached(NamedTuple):
    """The broker around this mode, once it is built."""

    host: Host
    metadata: RaftMetadata
    machine: RoleMachine
    sync: SlaveSync
    settle_soon: CoalescedCall
    read_soon: CoalescedCall


class RaftMode:
    """Owner: the event loop. The `Serving` of its `RaftGroup`."""

    def __init__(
        self,
        settings: RaftSettings,
        opened: Opened,
        clock: Clock,
        *,
        name: str,
        address: str,
        on_fenced: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        """`name` is that of the broker, `address` where it serves clients."""
        self._clock = clock
        self._on_fenced = on_fenced
        self._ack_timeout_s = settings.raft_ack_timeout_ms / 1000
        self._slave_id = broker_id_of(settings.raft_id, peers_of(settings.raft_peers))
        self.role_state = RoleState(name, Role.SLAVE, self._slave_id)
        self.group = RaftGroup(settings, opened, broker=address, serving=self)
        self.durability = _durability(self.group, self._ack_timeout_s)
        self._is_started = False
        self._ticks = 0
        self._broker: _Attached | None = None
        self._handing_over: asyncio.Task[None] | None = None
        self._since = Since(clock)
        if settings.raft_relaxed:
            log.warning(
                "raft.relaxed",
                extra={
                    "remedy": "a power failure may lose acknowledged messages; unset raft_relaxed"
                },
            )

    # Serving

    def lead(self) -> None:
        self._attached.machine.handle(Event.ELECTED)

    def follow(self) -> None:
        self._attached.machine.handle(Event.FOLLOW)

    def settle(self) -> None:
        """More is committed. Responses, and messages to other members, leave before queues and
        index are written."""
        self._attached.host.writer.release()
        self._attached.host.on_raft_progress()
        self._attached.settle_soon()

    def fenced(self, reason: str) -> None:
        self._on_fenced(reason)

    # Effects

    def _machine(self, host: Host, metadata: RaftMetadata) -> RoleMachine:
        role_state, hard = self.role_state, lambda: self.group.node.hard
        local = LocalRole(
            self.group.store,
            role_state,
            writer=host.writer,
            offsets=host.offsets,
            services=host.services,
        )

        def begin_writing() -> None:
            if not role_state.is_master:
                local.begin_writing()

        def become_master() -> None:
            local.publish(Role.MASTER, broker_id=MASTER_ID, epoch=hard().term)

        # A group reports FOLLOW for every change of the leader, to members that follow already too.
        def stop_writing() -> None:
            if role_state.is_master:
                local.stop_writing()

        def become_slave() -> None:
            if role_state.is_master:
                epoch = max(hard().term, role_state.epoch)
                local.publish(Role.SLAVE, broker_id=self._slave_id, epoch=epoch)

        return RoleMachine(
            {
                Effect.REFUSE_WRITES: local.refuse_writes,
                Effect.SETTLE: host.writer.settle,
                Effect.ADOPT_TABLES: metadata.lead,
                Effect.BEGIN_WRITING: begin_writing,
                Effect.BECOME_MASTER: become_master,
                Effect.WRITE_TABLES: metadata.begin,
                Effect.SET_OFFSETS_APART: metadata.follow,
                Effect.STOP_WRITING: stop_writing,
                Effect.BECOME_SLAVE: become_slave,
                Effect.NAME_LEADER: self._name_leader,
            }
        )

    def _name_leader(self) -> None:
        """Redirect clients that request a change to the leader. A member learns the name of the
        leader before the address of the leader's broker."""
        self.role_state.set_master(self.group.leader_broker, self.group.node.leader)

    # What the rest of the broker asks

    @property
    def append(self) -> Callable[[RecordChunk], Appended]:
        return self.group.append

    @property
    def replicates_tables(self) -> bool:
        return True

    @property
    def shared_settings(self) -> None:
        return None

    @property
    def lacks_messages(self) -> bool:
        return not self.role_state.is_master

    def where_next(self, unread_bytes: int) -> int:
        return MASTER_ID

    def may_administer(self, what: str) -> None:
        self.role_state.check_master(what)

    def check_commit(self) -> None:
        self.group.check_append()

    def commit(self, then: OnCommitted) -> bool:
        self._attached.metadata.commit(then)
        return True

    def kept_progress(self) -> Progress | None:
        return self._attached.metadata.progress()

    def hold(self) -> Hold | None:
        return hold_of(self.group)

    # What registration and administration ask

    def announcement(self) -> Announcement:
        return Announcement(self.role_state.epoch)

    def on_nameserver_report(self, report: NameServerReport) -> None:
        """The group knows its leader better than a NameServer."""

    def use_id(self, broker_id: int) -> bool:
        return False

    def view(self, alone: ReplicationView) -> ReplicationView:
        return alone

    def raft_view(self) -> RaftView | None:
        return view_of(self.group)

    def promotion(self) -> Promotion:
        raise not_master_slave()

    def raft_group(self) -> RaftGroup:
        return self.group

    def change_timeout_s(self) -> float:
        return self._ack_timeout_s

    # Lifetime

    def attach(self, host: Host) -> None:
        store = self.group.store
        tables = Tables(store, host)
        metadata = RaftMetadata(store, tables, host.writer, self._clock)
        shared = slave_sync.Tables(store, host.topics, host.groups, host.offsets)
        self._broker = _Attached(
            host,
            metadata,
            self._machine(host, metadata),
            SlaveSync(shared, every_s=HAND_OVER_S),
            CoalescedCall(host.writer.settle),
            CoalescedCall(self._read),
        )
        host.alarms.add(self._alarms)
        self._attached.machine.handle(Event.START_AS_MEMBER)
        host.topics.changed.append(metadata.on_topics_changed)
        host.writer.arrived.append(self._arrived)

    @property
    def _attached(self) -> _Attached:
        assert self._broker is not None, "the broker is not built yet"
        return self._broker

    async def join(self, host: str, port: int) -> str | None:
        return None

    async def start(self) -> None:
        self._is_started = True
        await self.group.start()

    async def leave(self) -> None:
        """Let another member take over first if this one leads, so that clients need not wait for
        an election."""
        if self._is_started:
            await self._hand_over()
            await self.group.close()
        self._cancel()

    async def close(self) -> None:
        pass

    def abort(self) -> None:
        self.group.abort()
        self._cancel()

    def _cancel(self) -> None:
        if self._handing_over is not None:
            self._handing_over.cancel()
        self._attached.sync.stop()
        self._attached.settle_soon.cancel()
        self._attached.read_soon.cancel()

    async def _hand_over(self) -> None:
        for _ in range(round(KEEP_UP_S / _PAUSE_S)):
            if not self.group.needs_witness:
                break
            await asyncio.sleep(_PAUSE_S)
        heir = self.group.best_heir()
        if not self.group.is_leading or heir is None:
            return
        self._attached.metadata.write_changes()
        self._attached.host.writer.write_gathered()
        if self.group.transfer(heir) is None:
            for _ in range(round(HAND_OVER_S / _PAUSE_S)):
                await asyncio.sleep(_PAUSE_S)
                if self.group.node.role is not RaftRole.LEADER and self.group.node.leader:
                    return

    def _alarms(self) -> Iterator[Alarm]:
        """Warn of a group that needs two members and survives no more failures than one broker."""
        voters = len(self.group.members.voters)
        since_ms = self._since.began_ms(PAIR, holds=is_pair(voters))
        if since_ms:
            group = self.group.storage.group.name
            yield Alarm(
                kind=PAIR,
                text=f"its Raft group has {voters} voters and needs both: if either of them stops, "
                "the group accepts no messages; it survives no failure",
                remedy=f"add a third voter: tianzhou raft add {group} MEMBER=HOST:PORT; with "
                "--witness it has no messages",
                since_ms=since_ms,
                is_problem=False,
            )

    # Events

    def on_flushed(self) -> None:
        self.group.flushed()

    def on_damage(self, offset: PhysicalOffset) -> None:
        if self._is_started:
            self.group.found_damage(offset)

    def _arrived(self, units: QueueUnits) -> None:
        """Handle committed metadata: read it once everything that came with it is visible."""
        if units.queue == QUEUE:
            self._attached.read_soon()

    def _read(self) -> None:
        try:
            self._attached.metadata.read()
        except DiskFull as error:
            log.warning("raft.metadata_waits", extra={"reason": str(error)})  # retried

    def tick(self) -> bool:
        self._name_leader()
        self._attached.host.on_raft_progress()
        self._attached.metadata.tick()
        self._ticks += 1
        if self._ticks % _TICKS_PER_SECOND == 0:
            self.group.second()
            self._hand_over_offsets()
        return False

    def second(self) -> None:
        pass

    def _hand_over_offsets(self) -> None:
        """Send the leader offsets that consumers committed here while there was no leader."""
        leader, accepted = self.role_state.master_address, self._attached.host.offsets.accepted
        if accepted is not None and accepted.ahead():
            self._attached.metadata.settle_offsets()
        is_busy = self._handing_over is not None and not self._handing_over.done()
        if leader and accepted is not None and accepted.ahead() and not is_busy:
            coroutine = self._attached.sync.hand_over(leader)
            self._handing_over = asyncio.get_running_loop().create_task(coroutine)


def _durability(group: RaftGroup, timeout_s: float) -> Durability:
    """Responses wait for a majority that has the message on disk; this member need not be one of
    them."""
    alone = durability_of(group.store)
    return Durability(
        flushed=alone.flushed,
        flush_waits=False,
        flush_timeout_s=alone.flush_timeout_s,
        replicas=group,
        replicas_timeout_s=timeout_s,
    )
