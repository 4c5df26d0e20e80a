"""A whole Raft group on one thread, in virtual time.

One heap of events in the order of their times; every choice comes from one seeded dice. Nothing
waits: an hour of a group passes in seconds, and the same seed gives the same hour again.
"""

from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

from tianzhou.raft.codec import decode, encode
from tianzhou.raft.config import RaftConfig
from tianzhou.raft.membership import members_of
from tianzhou.raft.messages import Entry, Kind, LogIndex, Message, NodeId, VoteRequest
from tianzhou.raft.node import Position, Refusal
from tianzhou.raft.ready import ReadAt, Ready, Save
from tianzhou.raft.roles import Role
from tianzhou.testing.sim.raft_checks import Before, Checks, Ghost
from tianzhou.testing.sim.raft_invariants import all_invariants
from tianzhou.testing.sim.raft_knobs import NEVER_US, Knobs
from tianzhou.testing.sim.raft_member import SimMember, Waiting
from tianzhou.testing.sim.raft_network import Network

_MASK: Final = (1 << 61) - 1
SLOW_FSYNC_US: Final = 400_000

Action = Callable[[Any], None]
Trace = Callable[[int, str], None]


class Timeline:
    """Simulated time: scheduled calls, made in the order of their times."""

    def __init__(self) -> None:
        self.now = 0
        """Microseconds since the start."""
        self.digest = 0
        """Equal for equal histories."""
        self.events = 0
        self._heap: list[tuple[int, int, Action, Any]] = []
        self._seq = 0

    def at(self, delay_us: int, action: Action, argument: Any) -> None:
        """Schedule a call after a delay in microseconds."""
        self._seq += 1
        heappush(self._heap, (self.now + delay_us, self._seq, action, argument))

    def run(self, until: int, goal: Callable[[], bool] | None = None) -> bool:
        """Let time pass up to `until`, or until the goal is reached; return whether it was."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, seq, action, argument = heappop(heap)
            self.digest = (self.digest * 31 + self.now + seq) & _MASK
            self.events += 1
            action(argument)
            if goal is not None and goal():
                return True
        self.now = until
        return False


class World:
    """Members, their network, the acknowledgements that clients got, and the checks.

    Owner: the thread of the test.
    """

    def __init__(self, knobs: Knobs, dice: Random, trace: Trace | None = None) -> None:
        self.knobs = knobs
        self.dice = dice
        self.trace = trace
        self.timeline = Timeline()
        self.counts: dict[str, int] = {}
        self.save_crash = knobs.save_crash
        self.on_the_wire = False
        """Every message is written to bytes and read from them."""
        self.network = Network(knobs, dice, self._post)
        self.members = self._make_members()
        self.ghost = Ghost(self.members)
        self.checks = Checks(all_invariants(self.ghost))
        for member in self.members.values():
            self.start(member)
            self.at(dice.randrange(knobs.tick_us), self._tick, member)

    def _make_members(self) -> dict[NodeId, SimMember]:
        knobs, dice = self.knobs, self.dice
        names = [f"n{number}" for number in range(knobs.members + knobs.spares)]
        first = members_of(names[: knobs.members])
        witness = names[knobs.members - 1] if knobs.has_witness else ""
        first = first._replace(witnesses=frozenset({witness} - {""}))
        config = RaftConfig(
            append_bytes_max=knobs.append_bytes_max,
            inflight_max=knobs.inflight_max,
            uncommitted_bytes_max=20 * knobs.append_bytes_max,
            learner_lag_max=3,
        )
        found: dict[NodeId, SimMember] = {}
        for name in names:
            skew = 1 + knobs.clock_skew * (dice.random() - 0.4)
            own = replace(config, is_witness=name == witness)
            found[name] = SimMember(name, first, own, int(knobs.tick_us * skew))
        return found

    # Time

    @property
    def now(self) -> int:
        return self.timeline.now

    def at(self, delay_us: int, action: Action, argument: Any) -> None:
        """Schedule a call after a delay in microseconds."""
        self.timeline.at(delay_us, action, argument)

    def run(self, until: int, goal: Callable[[], bool] | None = None) -> bool:
        """Let time pass up to `until`, or until the goal is reached; return whether it was."""
        return self.timeline.run(until, goal)

    def say(self, what: str) -> None:
        if self.trace is not None:
            self.trace(self.now, what)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # Members

    def start(self, member: SimMember) -> None:
        member.start(self.dice)
        self.say(f"{member.id} starts: {member.disk.state} last {member.disk.last}")
        for told in self.checks.start:
            told(member)

    def crash(self, member: SimMember) -> None:
        if member.node is not None:
            self.count("crashes")
            self.say(f"{member.id} crashes")
            member.stop()
            member.disk.crash(self.dice, self.knobs.lose_all)
            if self.knobs.reset_us != NEVER_US:
                for other in self.up():
                    self.at(
                        int(self.knobs.tick_us * self.dice.random()), self.lose, (other, member)
                    )

    def lose(self, who: tuple[SimMember, SimMember]) -> None:
        """End the connection from one member to another, which notices."""
        member, peer = who
        if member.node is not None and self.now >= member.faults.paused_until:
            for told in self.checks.lost:
                told(member, peer)
            member.node.lost(peer.id)
            self.drain(member)

    def up(self) -> list[SimMember]:
        return [member for member in self.members.values() if member.node is not None]

    def leaders(self) -> list[SimMember]:
        """Return the running members that lead, or believe to."""
        leading = [member for member in self.members.values() if member.role is Role.LEADER]
        return [
            one for one in leading if one.node is not None and self.now >= one.faults.paused_until
        ]

    def _tick(self, member: SimMember) -> None:
        self.at(member.tick_us, self._tick, member)
        if member.node is not None and self.now >= member.faults.paused_until:
            self.tick(member)

    def tick(self, member: SimMember) -> None:
        """Let time pass for a member. A member whose disk is full does not stand for election."""
        node = member.live()
        if self.now >= member.faults.full_until or node.role is Role.LEADER:
            node.tick()
        self.drain(member)
        for told in self.checks.tick:
            told(member)

    def _post(self, delay_us: int, message: Message) -> None:
        self.timeline.at(delay_us, self._deliver, message)

    def _deliver(self, message: Message) -> None:
        member = self.members[message.to]
        node = member.node
        if node is None:
            return
        if self.now < member.faults.paused_until:
            self.at(member.faults.paused_until - self.now, self._deliver, message)
            return
        if self.on_the_wire:
            message = decode(b"".join(encode(message)))
        if self.trace is not None:
            self.say(f"{message.sender}→{message.to} {message}")
        if type(message) is VoteRequest:
            before = Before(node.hard, len(node.core.outbox))
            node.step(message)
            for asked in self.checks.asked:
                asked(member, message, before)
        else:
            node.step(message)
        for told in self.checks.delivered:
            told(member, message)
        self.drain(member)

    def drain(self, member: SimMember) -> None:
        """Carry out what the node asks for: persist, send, apply."""
        node = member.node
        while node is not None and node.has_ready():
            ready = node.ready()
            if ready.save is not None:
                self._write(member, ready.save)
            self._notice(member)
            for message in ready.messages:
                for told in self.checks.send:
                    told(member, message)
                self.network.send(message)
            self._settle(member, ready)
        if node is not None and (member.role is not node.role or member.term != node.hard.term):
            self._notice(member)

    def _notice(self, member: SimMember) -> None:
        """Role or term may have changed."""
        node = member.live()
        if member.role is node.role and member.term == node.hard.term:
            return
        self.say(f"{member.id} is {node.role.value} in term {node.hard.term}")
        if node.role is Role.LEADER:
            self.count("elections")
        elif member.role is Role.LEADER:
            self.count("depositions")
        member.role, member.term = node.role, node.hard.term
        if node.role is not Role.LEADER:
            member.waiting.clear()  # their fate is open
        for told in self.checks.role:
            told(member)

    # Disks

    def _write_later(self, what: tuple[SimMember, int, Save]) -> None:
        member, life, save = what
        if member.life == life and member.node is not None:
            self._put(member, save)

    def _write(self, member: SimMember, save: Save) -> None:
        for told in self.checks.save:
            told(member, save)
        self._put(member, save)

    def _put(self, member: SimMember, save: Save) -> None:
        if self.now < member.faults.full_until:
            member.live().resign()
            wait = member.faults.full_until - self.now
            self.at(wait, self._write_later, (member, member.life, save))
            return
        member.disk.write(save)
        knobs, dice = self.knobs, self.dice
        wait = int(knobs.fsync_us * (0.5 + dice.random()))
        if knobs.slow_fsync and dice.random() < knobs.slow_fsync:
            wait += int(SLOW_FSYNC_US * dice.random())
        self.at(wait, self._synced, (member, member.life))
        if self.save_crash and _is_worth_a_crash(member, save) and dice.random() < self.save_crash:
            self.count("crashes at a chosen save")
            self.at(int(wait * 2 * dice.random()), self._crash_life, (member, member.life))

    def _crash_life(self, who: tuple[SimMember, int]) -> None:
        member, life = who
        if member.life == life and member.node is not None:
            self.crash(member)
            self.at(int(self.knobs.restart_us * self.dice.random()), self.restart, member)

    def restart(self, member: SimMember) -> None:
        if member.node is None:
            self.start(member)

    def _synced(self, who: tuple[SimMember, int]) -> None:
        member, life = who
        if member.life != life or member.node is None:
            return
        if self.now < member.faults.paused_until:
            self.at(member.faults.paused_until - self.now, self._synced, who)
            return
        if member.faults.sync_fails:
            self._fence(member)
            return
        before = member.disk.state
        member.disk.sync(member.applied)  # more may be committed than is on this disk
        for told in self.checks.synced:
            told(member, before)
        member.node.advance()
        self.drain(member)

    def _fence(self, member: SimMember) -> None:
        """Handle a failed sync: the content of the disk is unknown, so the process ends and starts
        again."""
        self.count("syncs failed")
        member.faults.sync_fails = False
        self.crash(member)
        self.at(int(self.knobs.restart_us * self.dice.random()), self.restart, member)

    # Clients

    def _settle(self, member: SimMember, ready: Ready) -> None:
        """Apply committed entries and acknowledge them to clients."""
        before = member.commit
        if ready.commit != before:
            member.commit = ready.commit
            for told in self.checks.log.commit:
                told(member, before)
        if ready.apply_to > member.applied:
            first = max(LogIndex(member.applied + 1), LogIndex(member.disk.start.index + 1))
            for told in self.checks.log.apply:
                told(member, first, LogIndex(ready.apply_to + 1))
            member.applied = ready.apply_to
        waiting = member.waiting
        while waiting and waiting[0].index <= ready.commit:
            self._ack(member, waiting.popleft())
        for read in ready.reads:
            self._answer(member, read)

    def _ack(self, member: SimMember, waiting: Waiting) -> None:
        self.count("acknowledged")
        entry = Entry(waiting.index, waiting.term, Kind.CHUNK, waiting.value)
        for told in self.checks.log.ack:
            told(member, entry)
        ghost = self.ghost
        ghost.acked = max(ghost.acked, waiting.index)
        ghost.acked_entries[waiting.index] = waiting.term, waiting.value

    def _answer(self, member: SimMember, read: ReadAt) -> None:
        self.count("reads")
        assert isinstance(read.token, int)
        for told in self.checks.log.read:
            told(member, LogIndex(read.token), read.index)

    def propose(self, member: SimMember, value: bytes) -> bool:
        """Propose a value of a client to a member, and return whether it was accepted."""
        if self.now < member.faults.full_until:
            member.live().resign()  # the log is written before a value is proposed
            self.drain(member)
            return False
        position = member.live().propose(value)
        if isinstance(position, Refusal):
            return False
        self._wait_for(member, position, value)
        return True

    def _wait_for(self, member: SimMember, position: Position, value: bytes) -> None:
        member.waiting.append(Waiting(position.index, position.term, value))

    def read(self, member: SimMember) -> None:
        """A client wants to see everything that was acknowledged before now."""
        member.live().read(int(self.ghost.acked))
        self.drain(member)


def _is_worth_a_crash(member: SimMember, save: Save) -> bool:
    """A vote, a leader's first entry, a membership, a new beginning."""
    if save.begin is not None or (save.state is not None and save.state.vote):
        return True
    return any(entry.kind is not Kind.CHUNK for entry in save.entries) and bool(member.life)
