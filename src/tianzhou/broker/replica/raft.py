"""A broker as a member of a Raft group: whoever is elected is the master.

The group decides; this carries it out. Consumers are served by every member all the time, with what
is committed.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.broker.replica import slave_sync
from tianzhou.broker.replica.coalesced_call import CoalescedCall
from tianzhou.broker.replica.host import RaftHost
from tianzhou.broker.replica.raft_metadata import QUEUE, RaftMetadata, Tables
from tianzhou.broker.replica.slave_sync import SlaveSync
from tianzhou.broker.role import Role
from tianzhou.raft.roles import Role as RaftRole
from tianzhou.replication.raft_group import Opened, RaftGroup
from tianzhou.replication.raft_settings import RaftSettings, broker_id_of, peers_of
from tianzhou.store.derive_record import QueueUnits
from tianzhou.store.errors import DiskFull
from tianzhou.wire.names import MASTER_ID

log: Final = logging.getLogger("tianzhou.raft")

HAND_OVER_S: Final = 1.0
"""How long a leader that stops waits for its successor."""
_PAUSE_S: Final = 0.02
_TICKS_PER_SECOND: Final = 10


class RaftMember:
    """Owner: the event loop."""

    def __init__(
        self,
        settings: RaftSettings,
        opened: Opened,
        broker: RaftHost,
        clock: Clock,
        on_fenced: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._on_fenced = on_fenced
        self._ticks = 0
        self._slave_id = broker_id_of(settings.raft_id, peers_of(settings.raft_peers))
        parts = broker.parts
        self.metadata = RaftMetadata(
            opened.store,
            Tables(
                opened.store, parts.topics, parts.groups, parts.offsets,
                parts.delays, parts.timers, parts.removal,
            ),
            parts.writer, clock,
        )  # fmt: skip
        self._settle_soon = CoalescedCall(parts.writer.settle)
        self._read_soon = CoalescedCall(self._read)
        self.metadata.follow()
        shared = slave_sync.Tables(opened.store, parts.topics, parts.groups, parts.offsets)
        self._sync = SlaveSync(shared, every_s=HAND_OVER_S)
        self._handing_over: asyncio.Task[None] | None = None
        self.group = RaftGroup(settings, opened, broker=broker.address, serving=self)
        broker.durability.replicas = self.group
        broker.durability.flush_waits = False  # a majority has it on disk; that may be without us
        broker.durability.replicas_timeout_s = settings.raft_ack_timeout_ms / 1000
        parts.writer.append = self.group.append
        parts.raft.group = self.group
        parts.raft.timeout_s = settings.raft_ack_timeout_ms / 1000
        parts.pull.group = self
        parts.watches = (*parts.watches, self)
        parts.topics.changed.append(self.metadata.tell_at_once)
        parts.writer.arrived.append(self._arrived)
        parts.removal.is_replicated = True
        parts.gate.commit = self.metadata.commit
        parts.floor.followed = self.metadata.progress
        parts.gate.check_commit = self.group.check_append
        broker.on_flushed.append(self.group.flushed)
        if settings.raft_relaxed:
            log.warning("raft.relaxed", extra={"remedy": "messages may be acknowledged that a loss "
                        "of power takes; unset raft_relaxed"})  # fmt: skip

    async def start(self) -> None:
        store = self.group.store
        told = store.on_damage

        def found(place: int) -> None:
            told(place)
            self.group.found_damage(place)

        store.on_damage = found
        await self.group.start()

    async def close(self) -> None:
        """A leader lets another take over first, so that nobody waits for an election."""
        await self._hand_over()
        await self.group.close()
        self._cancel()

    def abort(self) -> None:
        self.group.abort()
        self._cancel()

    def _cancel(self) -> None:
        if self._handing_over is not None:
            self._handing_over.cancel()
        self._sync.stop()
        self._settle_soon.cancel()
        self._read_soon.cancel()

    async def _hand_over(self) -> None:
        heir = self.group.best_heir()
        if not self.group.is_leading or heir is None:
            return
        self.metadata.tell()
        self._broker.parts.writer.write_gathered()
        if self.group.transfer(heir) is None:
            for _ in range(round(HAND_OVER_S / _PAUSE_S)):
                await asyncio.sleep(_PAUSE_S)
                if self.group.node.role is not RaftRole.LEADER and self.group.node.leader:
                    return

    # Serving

    def lead(self) -> None:
        broker, node = self._broker, self.group.node
        broker.parts.writer.settle()
        self.metadata.lead()
        broker.take_role(Role.MASTER, broker_id=MASTER_ID, epoch=node.hard.term)
        self.metadata.begin()

    def follow(self) -> None:
        role_state, node = self._broker.role_state, self.group.node
        self.metadata.follow()
        if role_state.is_master:
            self._broker.take_role(
                Role.SLAVE, broker_id=self._slave_id, epoch=max(node.hard.term, role_state.epoch)
            )
        self._name_leader()

    def _name_leader(self) -> None:
        """Let followers redirect clients that request a change to the leader. A member learns who
        leads before it learns the address of the leader's broker."""
        role_state = self._broker.role_state
        if not role_state.is_master:
            role_state.master_address = self.group.leader_broker
            role_state.master_name = self.group.node.leader

    def settle(self) -> None:
        """Answers, and what the node says to others, leave before queues and index are written."""
        self._broker.parts.writer.release()
        self._broker.parts.raft.progressed()
        self._settle_soon()

    def fenced(self, reason: str) -> None:
        self._on_fenced(reason)

    # Reading

    def where_next(self, unread_bytes: int) -> int:
        return MASTER_ID

    @property
    def lacks_messages(self) -> bool:
        return not self._broker.role_state.is_master

    # Metadata

    def _arrived(self, run: QueueUnits) -> None:
        """Handle committed metadata: read it once everything that came with it is visible."""
        if run.queue == QUEUE:
            self._read_soon()

    def _read(self) -> None:
        try:
            self.metadata.read()
        except DiskFull as error:
            log.warning("raft.metadata_waits", extra={"reason": str(error)})  # retried

    # Watch

    def tick(self) -> bool:
        self._name_leader()
        self._broker.parts.raft.progressed()
        self.metadata.tick()
        self._ticks += 1
        if self._ticks % _TICKS_PER_SECOND == 0:
            self.group.second()
            self._hand_over_offsets()
        return False

    def _hand_over_offsets(self) -> None:
        """Consumers may have committed offsets here while there was no leader."""
        leader, accepted = (
            self._broker.role_state.master_address,
            self._broker.parts.offsets.accepted,
        )
        if accepted is not None and accepted.ahead():
            self.metadata.settle_offsets()
        is_busy = self._handing_over is not None and not self._handing_over.done()
        if leader and accepted is not None and accepted.ahead() and not is_busy:
            coroutine = self._sync.hand_over(leader)
            self._handing_over = asyncio.get_running_loop().create_task(coroutine)

    def finish(self) -> None:
        pass
