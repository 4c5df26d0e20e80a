"""A member of a Raft group: its node, and what drives it: time, messages and the disk.

The broker appends through `RaftGroup`, reads from it what is confirmed (`Replicas`), and is
notified when the member leads, follows, or is fenced. `RaftDriver` calls the node for everything
that happens, and reports the result to the group.

A save of the node first writes term and vote, in a separate thread because they are synced at once;
then the log, which is written here and synced by the flush thread of the store. There is one save
at a time, and everything that arrives meanwhile is in the next one: a group commit.

It is one file because group and driver share one node: an append of the broker, a message and a
flush each end in the same round of saves, and are read together.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Final, Protocol

from tianzhou.base.errors import ProtocolError, UsageError
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.net.rearm import rearm
from tianzhou.net.rpc import RequestRejected
from tianzhou.raft import membership
from tianzhou.raft.config import RaftConfig
from tianzhou.raft.leader import has_committed_in_term
from tianzhou.raft.membership import Members
from tianzhou.raft.messages import Append, Install, Kind, LogIndex, Message, NodeId, Term
from tianzhou.raft.node import Node, Refusal
from tianzhou.raft.ready import HardState, Ready, Save
from tianzhou.raft.roles import Role
from tianzhou.record.chunk import RecordChunk
from tianzhou.replication.durability import Outcome
from tianzhou.replication.raft_entry import decode_mark
from tianzhou.replication.raft_peers import Greeting, Peers
from tianzhou.replication.raft_settings import RaftSettings, peers_of
from tianzhou.replication.raft_state import new_doubt
from tianzhou.replication.raft_storage import Opened
from tianzhou.store.commit_log import Appended
from tianzhou.store.errors import DiskFull, StoreDamaged, StoreError
from tianzhou.wire._generated_codes import ResponseCode

log: Final = logging.getLogger("tianzhou.raft")

TICKS_PER_ELECTION: Final = 10
INFLIGHT_MAX: Final = 64
APPEND_BYTES_MAX: Final = 1 << 20
PREFERRED_LAG_MAX: Final = 1000
"""Entries; as in DLedger."""
FULL_RETRY_S: Final = 1.0


class RaftDisk:
    """Makes the saves of a node durable. Owner: the driver."""

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
        """Whether a save is written that was not reported as durable yet."""
        return self._awaited is not None

    def save_state(self, state: HardState, then: Callable[[BaseException | None], object]) -> None:
        """Write term and vote in a thread, which then calls `then` with the error, or None."""
        done = self._thread.submit(self._files.save, state)
        done.add_done_callback(lambda _: then(done.exception()))

    def write(self, save: Save) -> None:
        """Write the log of a save. Raises DiskFull: nothing was written, or it is truncated when it
        is written again. Raises other errors of the store, and ValueError."""
        if save.begin is not None:
            self._storage.begin(save.begin)
        self._awaited = self._storage.write(save.entries) if save.entries else PhysicalOffset(0)

    def take_durable(self) -> bool:
        """Whether the written save is durable now. True once for each save."""
        if self._awaited is None:
            return False
        if not self._relaxed and self._store.flushed < self._awaited:
            return False
        self._awaited = None
        return True

    def record_damage(self, hard: HardState, place: int) -> None:
        """Record that the log is damaged, and that this member is therefore in doubt."""
        self._files.save(hard if hard.doubt else hard._replace(doubt=new_doubt()))
        self._storage.note_damage(place)

    def close(self) -> None:
        """Wait for a vote that may be on its way to the disk."""
        self._thread.shutdown(wait=True)


class Listener(Protocol):
    """Receives the events of a member."""

    def role_changed(self) -> None:
        """Handle a change of the role, the term or the leader. Called before all other events of
        it."""
        ...

    def progressed(self, ready: Ready) -> None:
        """Handle a new commit index, or new entries to apply."""
        ...

    def fenced(self, reason: str) -> None:
        """Handle a failed disk: this member has stopped taking part in the group."""
        ...


class RaftDriver:
    """Drives a node with time, messages and the disk. Owner: the event loop."""

    def __init__(
        self,
        node: Node,
        disk: RaftDisk,
        *,
        send: Callable[[Message], None],
        listener: Listener,
        tick_s: float,
    ) -> None:
        self.node = node
        self._disk = disk
        self._send = send
        self._listener = listener
        self._tick_s = tick_s
        self._loop = asyncio.get_running_loop()
        self._ticker: asyncio.TimerHandle | None = None
        self._is_awake = False
        self._seen = self._look()
        self.is_full = False
        """Whether the disk is full: such a member does not stand for election."""
        self.is_stopped = False

    def start(self) -> None:
        self._ticker = self._loop.call_later(self._tick_s, self._tick)
        self.wake()

    def stop(self) -> None:
        """Stop: send and do nothing from now on."""
        self.is_stopped = True
        if self._ticker is not None:
            self._ticker.cancel()
        self._disk.close()

    # What happens

    def step(self, message: Message) -> None:
        if not self.is_stopped:
            self.node.step(message)
            self.wake()

    def lost(self, member: NodeId) -> None:
        """The connection from this member ended."""
        if not self.is_stopped:
            self.node.lost(member)
            self.wake()

    def wake(self) -> None:
        """Schedule the work that the node requests, once per iteration of the event loop."""
        if not self._is_awake:
            self._loop.call_soon(self._run)
            self._is_awake = True  # set last: scheduling the call may raise MemoryError

    def _tick(self) -> None:
        if self.is_stopped:
            return
        self._ticker = rearm(self._loop, self._tick_s, self._tick)
        if self._disk.is_broken:
            self._fence("the store is broken")
            return
        if not self.is_full or self.node.role is Role.LEADER:
            self.node.tick()
        self.drain()

    def _run(self) -> None:
        self._is_awake = False
        self.drain()

    # Executing the actions of the node

    def drain(self) -> None:
        node = self.node
        self._notice()
        while not self.is_stopped and node.has_ready():
            try:
                ready = node.ready()
            except StoreDamaged as error:
                self.doubt(error.offset or 0, str(error))
                return
            if ready.save is not None:
                self._save(ready.save)
            for message in ready.messages:
                self._send(message)
            self._notice()
            self._listener.progressed(ready)

    def _look(self) -> tuple[Role, int, NodeId]:
        return self.node.role, self.node.hard.term, self.node.leader

    def _notice(self) -> None:
        seen = self._look()
        if seen != self._seen:
            self._seen = seen
            self._listener.role_changed()

    def _save(self, save: Save) -> None:
        if save.state is None:
            self._write(save)
        else:
            call, saved_state = self._loop.call_soon_threadsafe, self._saved_state
            self._disk.save_state(save.state, lambda error: call(saved_state, save, error))

    def _saved_state(self, save: Save, error: BaseException | None) -> None:
        if self.is_stopped:
            return
        if error is not None:
            self._fence(f"saving term and vote failed: {error}")
            return
        self._write(save)
        self.drain()

    def _write(self, save: Save) -> None:
        if self.is_stopped:
            return
        try:
            self._disk.write(save)
        except DiskFull as error:
            if not self.is_full:
                log.warning("raft.disk_full", extra={"reason": str(error)})
            self.is_full = True
            self.node.resign()
            self._loop.call_later(FULL_RETRY_S, self._write, save._replace(begin=None))
            return
        except (StoreError, OSError, ValueError) as error:
            self._fence(f"writing the log failed: {error}")
            return
        self.is_full = False
        self._confirm()

    def flushed(self) -> None:
        """Handle a sync of the store."""
        if not self.is_stopped and self._disk.is_syncing:
            self._confirm()
            self.wake()

    def _confirm(self) -> None:
        if self._disk.take_durable():
            self.node.advance()

    def doubt(self, place: int, reason: str) -> None:
        """Record damage of the log: the member must not vote or lead before it is repaired."""
        if self.is_stopped:
            return
        self._disk.close()
        try:
            self._disk.record_damage(self.node.hard, place)
        except OSError as error:
            reason = f"{reason}; and recording it failed: {error}"
        self._fence(reason)

    def _fence(self, reason: str) -> None:
        log.error("raft.fenced", extra={"reason": reason})
        self.is_stopped = True
        if self._ticker is not None:
            self._ticker.cancel()
        self._listener.fenced(reason)


def _check_content(message: Message) -> None:
    """Check the payload, which Raft itself does not read, before it becomes part of the log. Raises
    UsageError or ProtocolError."""
    if isinstance(message, Install):
        decode_mark(message.mark)
        peers_of(membership.decode(message.members).addresses)
    elif isinstance(message, Append):
        for entry in message.entries:
            if entry.kind is Kind.MEMBERS:
                peers_of(membership.decode(entry.data).addresses)


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
        self._peers_given = peers_of(settings.raft_peers)
        ticks = TICKS_PER_ELECTION
        tick_ms = settings.raft_election_ms / ticks
        config = RaftConfig(
            election_ticks=ticks,
            heartbeat_ticks=max(1, round(settings.raft_heartbeat_ms / tick_ms)),
            append_bytes_max=APPEND_BYTES_MAX,
            inflight_max=INFLIGHT_MAX,
        )
        saved = self.storage.saved(state)
        self.node = Node(settings.raft_id, config, Random(), storage=self.storage, saved=saved)
        greeting = Greeting(
            settings.raft_group, settings.raft_id, self.store.config.commit_log_file_bytes, broker
        )
        self.peers = Peers(
            greeting, self._received, self._lost, self._is_member, secret=settings.raft_secret
        )
        self.driver = RaftDriver(
            self.node,
            RaftDisk(opened, relaxed=settings.raft_relaxed),
            send=self.peers.send,
            listener=self,
            tick_s=tick_ms / 1000,
        )
        self._led_term: Term | None = None
        """The term in which this member accepts messages; None while it accepts none."""
        reached = self._reached = _Reached(saved.commit, self.storage.end_of(saved.commit))
        self._met: tuple[Members, frozenset[NodeId]] | None = None
        self.store.limit_visible(lambda: reached.applied_end)
        self.store.when_expired(self._trim)

    async def start(self) -> None:
        host, _, port = self._peers_given[self.node.id].rpartition(":")
        self.peers.listen(host.strip("[]"), int(port))
        self._meet()
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

    # Members

    def _meet(self) -> None:
        """Connect to all current members, and to removed ones that must still learn of it.
        Addresses in this member's settings win: the route to a member may differ from here."""
        members = self.members
        met = members, members.everyone() | self.node.core.leading.peers.keys()
        if met != self._met:
            self._met, known = met, self.addresses()
            self.peers.reach({name: known[name] for name in met[1] if name in known})

    def addresses(self) -> dict[NodeId, str]:
        return peers_of(self.members.addresses) | self._peers_given

    def _is_member(self, name: NodeId) -> bool:
        """Whether to accept messages from this member. A member that does not know the membership
        yet accepts all members from its settings."""
        history = self.node.core.log.members
        known = {one for _, members in history.rows() for one in members.everyone()}
        return name in known or (name in self._peers_given and not self._reached.applied)

    # Events of the driver and the connections

    def _received(self, message: Message) -> None:
        try:
            _check_content(message)
        except (UsageError, ProtocolError) as error:
            log.warning("raft.nonsense", extra={"peer": message.sender, "reason": str(error)})
            return
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
        self._meet()
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
        """Return the connected voter that has most of this log, if there is one."""
        peers, is_there = self.node.core.leading.peers, self.peers.is_connected
        voters = [name for name in peers if self.members.may_vote(name) and is_there(name)]
        fit = [name for name in voters if not peers[name].doubt]
        return max(fit, key=lambda name: peers[name].match, default=None)

    @property
    def members(self) -> Members:
        return self.node.core.log.members.current

    @property
    def is_leading(self) -> bool:
        return self._led_term is not None

    @property
    def applied(self) -> LogIndex:
        """Everything up to this entry is applied."""
        return self._reached.applied

    @property
    def leader_broker(self) -> str:
        """The address of the leader's broker, as far as this member knows it."""
        return self.peers.brokers.get(self.node.leader, "")
