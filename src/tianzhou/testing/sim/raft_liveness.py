"""L1: once a majority is healthy and connected, the group works again and keeps working.

With a witness, the majority is one that may have a leader: if the witness is in it, then so is the
copy that has most.

L2: if the leader of a group with a witness dies while the other copies keep up, one takes over.
"""

from typing import Final

from tianzhou.raft.messages import LogIndex, NodeId, Term
from tianzhou.raft.roles import Role
from tianzhou.testing.sim.raft_checks import Violation, is_quorum
from tianzhou.testing.sim.raft_faults import Faults
from tianzhou.testing.sim.raft_member import SimMember
from tianzhou.testing.sim.raft_world import World

TIMEOUTS_TO_RECOVER: Final = 10
"""Election timeouts, at their longest, until a leader has to be there and to commit."""
OLD_MESSAGES: Final = 5
"""Shortest election timeouts: three for messages on a clogged link, two for giving up."""
TIMEOUTS_STABLE: Final = 20
TIMEOUTS_KEPT_UP: Final = 3
"""Shortest election timeouts that the other copies keep up before a leader dies."""
CLOCK_SKEW: Final = 0.1


def _end_of(member: SimMember) -> tuple[Term, LogIndex]:
    disk = member.disk
    return disk.term_at(disk.last), disk.last


class Liveness:
    """The second phase of a run: faults end for a majority only.

    The other members stay down, or cut off in one direction or both: they must not be able to
    disturb.
    """

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        faults.stop()
        self._core = self._choose_core()
        self._heal()

    def check(self) -> None:
        world = self._world
        timeout = 2 * world.knobs.election_us
        deadline = world.now + TIMEOUTS_TO_RECOVER * timeout
        names = ", ".join(member.id for member in self._core)
        # Delayed messages arrive; a leader that does not hear the others steps down.
        world.run(world.now + OLD_MESSAGES * world.knobs.election_us)
        if not world.run(deadline, self._has_leader) and not self._catches_up(timeout):
            raise Violation(f"L1: {names} are whole and connected and elect no leader")
        leader = self._leader()
        assert leader is not None
        deadline = max(deadline, world.now + timeout)
        taken = world.run(deadline, lambda: world.propose(leader, b"at last"))
        if not taken or not self._settles(leader, deadline + timeout):
            raise Violation(f"L1: {leader.id} leads {names}, but nothing is committed")
        term, committed = leader.term, leader.commit
        ends = {member.id: member.disk.last for member in world.members.values()}
        world.run(world.now + TIMEOUTS_STABLE * timeout)
        if leader.role is not Role.LEADER or leader.term != term:
            raise Violation(f"L1: {leader.id} led {names}, and lost it without any fault")
        if not self._settles(leader, world.now + 2 * timeout):
            raise Violation(f"L1: {leader.id} does not commit what it took")
        self._check_others(leader, committed, ends)
        self._check_logs()
        self._check_takeover(leader)

    def _choose_core(self) -> list[SimMember]:
        """Return a majority without data loss; everyone while members change."""
        world = self._world
        everyone = list(world.members.values())
        rows = {member.disk.saved().members[-1][1] for member in everyone}
        if len(rows) > 1 or next(iter(rows)).outgoing:
            return everyone
        (members,) = rows
        voters = [m for m in everyone if m.id in members.voters and not m.disk.state.doubt]
        need = len(members.voters) // 2 + 1
        chosen = world.dice.sample(voters, world.dice.randrange(need, len(voters) + 1))
        best = max((m for m in voters if not m.is_witness), key=_end_of, default=None)
        if best is not None and best not in chosen and any(m.is_witness for m in chosen):
            chosen.append(best)
        assert is_quorum(members, {member.id for member in chosen})
        return chosen

    def _heal(self) -> None:
        world, network, dice = self._world, self._world.network, self._world.dice
        world.save_crash = 0
        network.heal()
        network.loss = network.duplicate = 0
        network.delay_spread_us = min(network.delay_spread_us, world.knobs.election_us // 20)
        inside = {member.id for member in self._core}
        outside = [member.id for member in world.members.values() if member.id not in inside]
        for member in world.members.values():
            member.faults.paused_until = min(member.faults.paused_until, world.now)
            member.faults.sync_fails = False
            member.tick_us = int(world.knobs.tick_us * (1 + CLOCK_SKEW * dice.random()))
            if member.id in inside:
                world.restart(member)
        for name in outside:
            for cut in ((inside, [name]), ([name], inside)):
                if dice.random() < 0.5:
                    network.separate(*cut)
        world.say(f"all is well between {sorted(inside)}; cut is {sorted(network.cut)}")

    def _catches_up(self, timeout: int) -> bool:
        """Voters that were added with an empty log need time; wait while they catch up."""
        world = self._world
        disks = [member.disk for member in world.up()]
        target, before = max(disk.last for disk in disks), -1
        while before < (now := sum(min(disk.last, target) for disk in disks)):
            before = now
            if world.run(world.now + timeout, self._has_leader):
                return True
        return False

    def _leader(self) -> SimMember | None:
        """One that has committed in its term, and has finished changing members.

        It need not be of the core: an old one may still be heard by a majority.
        """
        for member in self._world.leaders():
            log = member.live().core.log
            settled = log.members.current_index <= log.commit and not log.members.current.outgoing
            if settled and log.terms.at(log.commit) == member.term:
                return member
        return None

    def _has_leader(self) -> bool:
        return self._leader() is not None

    def _settles(self, leader: SimMember, deadline: int) -> bool:
        """Return whether everything the leader accepted so far is acknowledged in time."""
        self._world.drain(leader)
        if not leader.waiting:
            return True
        last = leader.waiting[-1].index
        return self._world.run(
            deadline, lambda: not leader.waiting or leader.waiting[0].index > last
        )

    def _check_others(
        self, leader: SimMember, committed: LogIndex, ends: dict[NodeId, LogIndex]
    ) -> None:
        """Check that every connected member has caught up, or is catching up, and is repaired."""
        world, cut = self._world, self._world.network.cut
        members = leader.live().core.log.members.current
        for member in world.up():
            links = {(leader.id, member.id), (member.id, leader.id)}
            if member.id in members.everyone() and not links & cut:
                if member.disk.last >= committed and member.disk.state.doubt:
                    raise Violation(f"L1: {leader.id} does not repair {member.id}")
                if member.disk.last < committed and member.disk.last <= ends[member.id]:
                    raise Violation(f"L1: {member.id} stays at {member.disk.last} of {committed}")

    def _check_takeover(self, leader: SimMember) -> None:
        world = self._world
        members = leader.live().core.log.members.current
        names = (members.voters & {member.id for member in world.up()}) - {leader.id}
        others = [world.members[name] for name in sorted(names)]
        is_cut = any({one, other} <= members.voters for one, other in world.network.cut)
        is_sound = not (is_cut or any(member.disk.state.doubt for member in others))
        if not (members.witnesses and is_sound and is_quorum(members, set(names))):
            return
        for _ in range(2 * TIMEOUTS_KEPT_UP):
            end = leader.disk.last
            world.run(world.now + world.knobs.election_us // 2)
            if any(member.disk.last < end for member in others if not member.is_witness):
                return
        world.count("takeovers")
        world.crash(leader)
        if not world.run(
            world.now + TIMEOUTS_TO_RECOVER * 2 * world.knobs.election_us, self._has_leader
        ):
            raise Violation(f"L2: {leader.id} died, and none of {sorted(names)} takes over")
        self._check_logs()

    def _check_logs(self) -> None:
        """Check that every acknowledged entry is in the log of the leader."""
        leader = self._leader()
        assert leader is not None
        for index, (term, value) in self._world.ghost.acked_entries.items():
            disk = leader.disk
            if index <= disk.start.index or index > disk.last:
                continue
            (entry,) = disk.entries(LogIndex(index), LogIndex(index), 0)
            if (entry.term, entry.data) != (term, value):
                raise Violation(f"L1: {value!r} was acknowledged; at {index} is {entry}")
