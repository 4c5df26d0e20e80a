"""A member of a Raft group that is a broker.

The broker appends through `RaftGroup`, reads from it what is confirmed (`Replicas`), and is
notified when the member leads, follows, or is fenced. `RaftDriver` calls the node for everything
that happens, and reports the result to the group.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Final, Protocol

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.net.rpc import RequestRejected
from tianzhou.raft.leader import copies_suffice, has_committed_in_term
from tianzhou.raft.membership import Members
from tianzhou.raft.messages import LogIndex, Message, NodeId, Term
from tianzhou.raft.node import Node, Refusal
from tianzhou.raft.ready import HardState, Ready, Save
from tianzhou.raft.roles import Role
from tianzhou.record.chunk import RecordChunk
from tianzhou.replication.durability import Outcome
from tianzhou.replication.raft_contacts import Contacts
from tianzhou.replication.raft_driver import RaftDriver, config_of
from tianzhou.replication.raft_entry import decode_mark
from tianzhou.replication.raft_peers import Greeting
from tianzhou.replication.raft_settings import RaftSettings
from tianzhou.replication.raft_state import new_doubt
from tianzhou.replication.raft_storage import Opened
from tianzhou.store.commit_log import Appended
from tianzhou.store.errors import DiskFull
from tianzhou.wire._generated_codes import ResponseCode

log: Final = logging.getLogger("tianzhou.raft")

PREFERRED_LAG_MAX: Final = 1000
"""Entries; as in DLedger."""


class RaftDisk:
    """The `MemberDisk` of a broker: term and vote in a file, the log in its store, which another
    thread syncs. Owner: the driver."""

    def __init__(self, opened: Opened, *, relaxed: bool) -> None:
        """`relaxed`: written bytes count as durable without a sync."""
        self._store, self._storage, self._files, _ = opened
        self._relaxed = relaxed
        self._thread = ThreadPoolExecutor(1, "tianzhou-raft")
        self._awaited: PhysicalOffset | None = None
        """The current save is complete when the log is synced up to here."""

    @property
    def is_broken(self) -> bool:
        return self._store.is_broken

    @property
    def is_syncing(self) -> bool:
        return self._awaited is not None

    def save_state(self, state: HardState, then: Callable[[BaseException | None], object]) -> None:
        done = self._thread.submit(self._files.save, state)
        done.add_done_callback(lambda _: then(done.exception()))

    def write(self, save: Save) -> None:
        if save.begin is not None:
            self._storage.begin(save.begin)
        self._awaited = self._storage.write(save.entries) if save.entries else PhysicalOffset(0)

    def take_durable(self) -> bool:
        if self._awaited is None:
            return False
        if not self._relaxed and self._store.flushed < self._awaited:
            return False
        self._awaited = None
        return True

    def record_damage(self, hard: HardState, place: int) -> None:
        self._files.save(hard if hard.doubt else hard._replace(doubt=new_doubt()))
        self._storage.note_damage(place)

    def close(self) -> None:
        self._thread.shutdown(wait=True)


class Serving(Protocol):
    """What the group needs from the broker of a member."""

    def lead(self) -> None:
        """Start to accept messages: everything in the log is committed and applied."""
        ...

    def follow(self) -> None:
        """Stop accepting messages: another member leads, or none."""
        ...

    def settle(self) -> None:
        """Handle a new commit index: make messages visible, and send waiting responses."""
        ...

    def fenced(self, reason: str) -> None: ...


class _Reached:
    """How far a member has committed and applied the log. Owner: the group."""

    __slots__ = ("applied", "applied_end", "committed_end")

    def __init__(self, applied: LogIndex, end: PhysicalOffset) -> None:
        self.applied = applied
        self.applied_end = end
        """Where that entry ends in the commit log: up to here messages are visible."""
        self.committed_end = end
        """Up to here the log is committed; on a leader it may be ahead of what is applied."""


class RaftGroup:
    """A running member; implements `Replicas` and the driver's `Listener`. Owner: the event
    loop."""

    def __init__(
        self, settings: RaftSettings, opened: Opened, *, broker: str, serving: Serving
    ) -> None:
        self._settings = settings
        self.store, self.storage, self.files, state = opened
        self._serving = serving
        config, tick_s = config_of(settings)
        saved = self.storage.saved(state)
        self.node = Node(settings.raft_id, config, Random(), storage=self.storage, saved=saved)
        greeting = Greeting(
            settings.raft_group, settings.raft_id, self.store.config.commit_log_file_bytes, broker
        )
        self.contacts = Contacts(
            settings,
            self.node,
            greeting,
            on_message=self._received,
            on_lost=self._lost,
            check_mark=decode_mark,
        )
        self.peers = self.contacts.peers
        self.driver = RaftDriver(
            self.node,
            RaftDisk(opened, relaxed=settings.raft_relaxed),
            send=self.peers.send,
            listener=self,
            tick_s=tick_s,
        )
        self._led_term: Term | None = None
        """The term in which this member accepts messages; None while it accepts none."""
        reached = self._reached = _Reached(saved.commit, self.storage.end_of(saved.commit))
        self.store.limit_visible(lambda: reached.applied_end)
        self.store.when_expired(self._trim)

    async def start(self) -> None:
        self.contacts.listen()
        self.driver.start()

    async def close(self) -> None:
        self.driver.stop()
        await self.peers.close()
        self._note()
        self.files.close()

    def abort(self) -> None:
        self.driver.stop()
        self.peers.abort()
        self.files.close()

    # Events of the connections and the driver

    def _received(self, message: Message) -> None:
        self.driver.step(message)

    def _lost(self, member: NodeId) -> None:
        self.driver.lost(member)

    def role_changed(self) -> None:
        node = self.node
        log.info(
            "raft.role",
            extra={"role": node.role.value, "term": node.hard.term, "leader": node.leader},
        )
        if (node.role, node.hard.term) != (Role.LEADER, self._led_term):
            self._led_term = None
            self._serving.follow()

    def progressed(self, ready: Ready) -> None:
        self.contacts.meet()
        reached, moved = self._reached, False
        if ready.apply_to > reached.applied:
            reached.applied, moved = ready.apply_to, True
            reached.applied_end = self.storage.end_of(ready.apply_to)
        if self._led_term is not None:
            # Entries that a leader commits are already in its own log.
            end = self.storage.end_of(min(ready.commit, self.storage.last))
            moved |= end > reached.committed_end
            reached.committed_end = end
        elif moved:
            reached.committed_end = reached.applied_end
        if moved:
            self._serving.settle()
        self._lead_if_ready()

    def _lead_if_ready(self) -> None:
        node, reached = self.node, self._reached
        if self.is_leading or node.role is not Role.LEADER or not has_committed_in_term(node.core):
            return
        if reached.applied == self.storage.last == node.core.log.last:
            self._led_term = node.hard.term
            reached.committed_end = reached.applied_end
            try:
                self._serving.lead()
            except DiskFull as error:
                log.warning("raft.cannot_serve", extra={"reason": str(error)})
                self._led_term, self.driver.is_full = None, True
                node.resign()  # heartbeats of this member would prevent another leader
                self.driver.wake()
            else:
                log.info("raft.serves", extra={"term": node.hard.term})

    def fenced(self, reason: str) -> None:
        self._led_term = None
        self._serving.follow()
        self._serving.fenced(reason)

    def flushed(self) -> None:
        self.driver.flushed()

    def found_damage(self, place: int) -> None:
        """Handle a read error of the log. The other members have the bytes: this member stops, and
        the next start lets them repair it."""
        self.driver.doubt(place, f"the log is damaged at {place}")

    def second(self) -> None:
        """Do periodic work; call it about once a second."""
        self._note()
        self._prefer()

    def _trim(self) -> None:
        """Handle expired files at once: a member that needs one must learn where the log starts
        now, and a reader of an expired file would take the log for damaged."""
        index = self.storage.trim()
        if index > self.node.core.log.start.index:
            self.node.trimmed(index)

    def _prefer(self) -> None:
        """Transfer leadership to the preferred member, if it responds and is nearly up to date."""
        if not self.is_leading or not self._settings.raft_preferred:
            return
        for name in self._settings.raft_preferred.replace(",", ";").split(";"):
            if name.strip() == self.node.id:
                return
            peer = self.node.core.leading.peers.get(name.strip())
            if peer is not None and not peer.doubt and self.peers.is_connected(name.strip()):
                if peer.match >= self.storage.last - PREFERRED_LAG_MAX:
                    self.transfer(name.strip())
                return

    def _note(self) -> None:
        self.files.note_commit(self._reached.applied, self._reached.applied_end)

    # Writing

    def check_append(self, size: int = 0) -> None:
        """Raise RequestRejected unless this member is the leader and may propose this many bytes
        now."""
        node = self.node
        if self._led_term is None or node.role is not Role.LEADER:
            raise RequestRejected(
                ResponseCode.SERVICE_NOT_AVAILABLE, "this member does not lead its group"
            )
        refusal = node.may_propose(size)
        if refusal is Refusal.FULL:
            raise RequestRejected(ResponseCode.SYSTEM_BUSY, refusal.value)
        if refusal is not None:
            raise RequestRejected(ResponseCode.SERVICE_NOT_AVAILABLE, refusal.value)

    def append(self, chunk: RecordChunk) -> Appended:
        """Append a leader's messages. Raises RequestRejected, and what a store raises."""
        self.check_append(len(chunk.data))
        try:
            self._write_tail()
            return self.storage.append(chunk, self.node.hard.term, self._propose)
        except DiskFull:
            self._give_up()
            raise
        finally:
            self.driver.wake()

    def _write_tail(self) -> None:
        """Write entries that the node appended itself, before any others."""
        tail = self.node.core.log.after(self.storage.last)
        if tail:
            self.storage.write(tail)

    def _propose(self, data: bytes) -> None:
        position = self.node.propose(data)
        assert not isinstance(position, Refusal), f"{position}: was checked before"

    def _give_up(self) -> None:
        """Transfer leadership because the disk is full. Everything that was written is proposed, so
        another member can take over; if none can, the others elect a leader after a timeout."""
        self.driver.is_full = True
        heir = self.best_heir()
        if heir is None or self.transfer(heir) is not None:
            self.node.resign()

    # Replicas

    @property
    def replicated(self) -> PhysicalOffset:
        return self._reached.committed_end

    def missing(self) -> Outcome | None:
        return None

    @property
    def too_late(self) -> Outcome:
        return Outcome.NO_QUORUM

    # Managing

    def transfer(self, target: NodeId) -> Refusal | None:
        refusal = self.node.hand_over(target)
        if refusal is None and target != self.node.id:
            # From here until the successor accepts messages, no member does.
            log.info("raft.hands_over", extra={"term": self.node.hard.term, "heir": target})
        self.driver.wake()
        return refusal

    def change(self, target: Members) -> Refusal | LogIndex:
        position = self.node.change(target)
        self.driver.wake()
        return position if isinstance(position, Refusal) else position.index

    def best_heir(self) -> NodeId | None:
        """Return the connected member that has most of this log and may lead, if there is one."""
        peers, is_there = self.node.core.leading.peers, self.peers.is_connected
        copies = [name for name in peers if self.members.may_lead(name) and is_there(name)]
        fit = [name for name in copies if not peers[name].doubt]
        return max(fit, key=lambda name: peers[name].match, default=None)

    @property
    def members(self) -> Members:
        return self.node.core.log.members.current

    @property
    def is_leading(self) -> bool:
        return self._led_term is not None

    @property
    def needs_witness(self) -> bool:
        """Whether this leader commits with its witness, because too few copies keep up."""
        return (
            self.is_leading and bool(self.members.witnesses) and not copies_suffice(self.node.core)
        )

    @property
    def applied(self) -> LogIndex:
        """Everything up to this entry is applied."""
        return self._reached.applied

    @property
    def leader_broker(self) -> str:
        """The address of the leader's broker, as far as this member knows it."""
        return self.peers.brokers.get(self.node.leader, "")
