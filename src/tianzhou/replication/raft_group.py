"""A member of a Raft group: files, log, node, driver and connections.

The broker appends through it, reads from it what is confirmed (`Replicas`), and is notified when
the member leads, follows, or is fenced.
"""

import logging
from random import Random
from typing import Final, NamedTuple, Protocol

from tianzhou.base.clock import Clock
from tianzhou.base.errors import ProtocolError, UsageError
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.net.rpc import RequestRejected
from tianzhou.raft import membership
from tianzhou.raft.config import RaftConfig
from tianzhou.raft.leader import has_committed_in_term
from tianzhou.raft.membership import Members
from tianzhou.raft.messages import Append, Install, Kind, LogIndex, Message, NodeId
from tianzhou.raft.node import Node, Refusal
from tianzhou.raft.ready import HardState, Ready
from tianzhou.raft.roles import Role
from tianzhou.record.chunk import RecordChunk
from tianzhou.replication.durability import Outcome
from tianzhou.replication.raft_driver import RaftDriver
from tianzhou.replication.raft_peers import Greeting, Peers
from tianzhou.replication.raft_settings import RaftSettings, check, peers_of
from tianzhou.replication.raft_state import RaftFiles, new_doubt
from tianzhou.replication.raft_storage import RaftStorage, decode_mark, first_group
from tianzhou.store.commit_log import Appended
from tianzhou.store.config import StoreConfig
from tianzhou.store.errors import DiskFull
from tianzhou.store.files import Files
from tianzhou.store.layout import paths_of
from tianzhou.store.preflight import examine
from tianzhou.store.scan import NOWHERE
from tianzhou.store.store import MessageStore
from tianzhou.wire._generated_codes import ResponseCode

log: Final = logging.getLogger("tianzhou.raft")

TICKS_PER_ELECTION: Final = 10
INFLIGHT_MAX: Final = 64
APPEND_BYTES_MAX: Final = 1 << 20
PREFERRED_LAG_MAX: Final = 1000
"""Entries; as in DLedger."""


class Opened(NamedTuple):
    """The recovered state of a member."""

    store: MessageStore
    storage: RaftStorage
    files: RaftFiles
    state: HardState


def open_member(
    settings: RaftSettings, disk: Files, root: str, config: StoreConfig, *, clock: Clock
) -> Opened:
    """Recover the directory of a member. A member that may have lost data is in doubt from now on,
    and its log ends before the damage."""
    peers = check(settings)
    files = RaftFiles(disk, root)
    is_new = files.is_new
    state: HardState | None = HardState(doubt=0 if settings.raft_new else new_doubt())
    if is_new:
        paths = paths_of(root, config)
        examine(disk, paths, config, clock.now_ms())  # before anything is written there
        if disk.list(paths.commit_log):
            raise UsageError(
                f"{root} holds messages of a broker without a group; give the member an empty "
                "directory, and let a pipeline or a consumer copy what is needed"
            )
        members = Members(frozenset(peers), addresses=text_of(peers))
        files.create(first_group(settings.raft_group, settings.raft_id, members), state)
        if state.doubt:
            log.warning(
                "raft.empty",
                extra={
                    "remedy": "the others repair this member, unless the "
                    "group is new: then start all of its members with --raft-new"
                },
            )
    else:
        state = files.load()
    visible = files.committed()[1]
    store = MessageStore(disk, root, config, clock, visible=visible, is_repaired=True)
    damage = [PhysicalOffset(found.start) for found in store.recovered.damage]
    noted = files.load_group().damaged
    damage += [PhysicalOffset(noted)] if noted >= 0 else []

    def doubt(place: PhysicalOffset) -> None:
        """Record the doubt before anything is truncated: a crash must not make the member lose the
        fact that it lost data."""
        nonlocal state
        state = (state or HardState())._replace(doubt=new_doubt())
        files.save(state)
        log.error("raft.in_doubt", extra={"place": place, "remedy": "the others repair it"})

    if state is None or damage:
        doubt(min(damage, default=PhysicalOffset(0)))
    storage = RaftStorage(
        store,
        files,
        sound_end=min(damage, default=NOWHERE),
        # A relaxed group accepts such a loss; in doubt, none of its members could be elected.
        on_loss=(lambda _: None) if settings.raft_relaxed else doubt,
    )
    assert state is not None, "a state that cannot be loaded is in doubt"
    group = storage.group
    if (group.name, group.member) != (settings.raft_group, settings.raft_id):
        raise UsageError(
            f"{root} belongs to {group.member} of group {group.name}, not to "
            f"{settings.raft_id} of {settings.raft_group}"
        )
    return Opened(store, storage, files, _not_before(state, storage))


def _not_before(state: HardState, storage: RaftStorage) -> HardState:
    """Raise the term of a lost state to that of the log."""
    term = storage.terms.last_term
    return state if state.term >= term else state._replace(term=term, vote="")


def text_of(addresses: dict[NodeId, str]) -> str:
    return ";".join(f"{name}={address}" for name, address in sorted(addresses.items()))


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
            self.storage,
            self.files,
            self.store,
            send=self.peers.send,
            listener=self,
            tick_s=tick_ms / 1000,
            relaxed=settings.raft_relaxed,
        )
        self._is_leading = False
        """Whether messages are accepted, in this term."""
        self._led_term = 0
        self._committed = self._applied = self.storage.end_of(saved.commit)
        self.applied = saved.commit
        self._met: tuple[Members, frozenset[NodeId]] | None = None
        self.store.limit_visible(lambda: self._applied)
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
        return name in known or (name in self._peers_given and not self.applied)

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
        if self._is_leading and (node.role, node.hard.term) != (Role.LEADER, self._led_term):
            self._is_leading = False
        if not self._is_leading:
            self._serving.follow()

    def progressed(self, ready: Ready) -> None:
        self._meet()
        moved = False
        if ready.apply_to > self.applied:
            self.applied, moved = ready.apply_to, True
            self._applied = self.storage.end_of(ready.apply_to)
        if self._is_leading:
            # Entries that a leader commits are already in its own log.
            end = self.storage.end_of(min(ready.commit, self.storage.last))
            moved |= end > self._committed
            self._committed = end
        elif moved:
            self._committed = self._applied
        if moved:
            self._serving.settle()
        self._lead_if_ready()

    def _lead_if_ready(self) -> None:
        node = self.node
        if self._is_leading or node.role is not Role.LEADER or not has_committed_in_term(node.core):
            return
        if self.applied == self.storage.last == node.core.log.last:
            self._is_leading, self._led_term = True, node.hard.term
            self._committed = self._applied
            try:
                self._serving.lead()
            except DiskFull as error:
                log.warning("raft.cannot_serve", extra={"reason": str(error)})
                self._is_leading, self.driver.is_full = False, True
                node.resign()  # heartbeats of this member would prevent another leader
                self.driver.wake()
            else:
                log.info("raft.serves", extra={"term": node.hard.term})

    def fenced(self, reason: str) -> None:
        self._is_leading = False
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
        if not self._is_leading or not self._settings.raft_preferred:
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
        self.files.note_commit(self.applied, self._applied)

    # Writing

    def check_append(self, size: int = 0) -> None:
        """Raise RequestRejected unless this member is the leader and may propose this many bytes
        now."""
        node = self.node
        if not self._is_leading or node.role is not Role.LEADER:
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
            self.driver.write_tail()
            return self.storage.append(chunk, self.node.hard.term, self._propose)
        except DiskFull:
            self._give_up()
            raise
        finally:
            self.driver.wake()

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
        return self._committed

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
        return self._is_leading

    @property
    def leader_broker(self) -> str:
        """The address of the leader's broker, as far as this member knows it."""
        return self.peers.brokers.get(self.node.leader, "")
