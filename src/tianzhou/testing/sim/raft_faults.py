"""Faults of a simulated group, and what its operators do meanwhile."""

from collections.abc import Callable, Collection
from random import Random
from typing import Final

from tianzhou.raft.membership import Members, members_of
from tianzhou.raft.messages import LogIndex, NodeId
from tianzhou.testing.sim.raft_knobs import NEVER_US
from tianzhou.testing.sim.raft_member import SimMember
from tianzhou.testing.sim.raft_world import World

PAUSE_US_MAX: Final = 5_000_000


class Faults:
    """Draws faults until it is stopped. At most a minority is ever damaged at the same time.

    Faults are numbered and each has dice of its own, so that one can be left out (`skip`) and the
    others stay nearly what they were: this is how a failure is made shorter.
    """

    def __init__(self, world: World, skip: frozenset[int] = frozenset()) -> None:
        self._world = world
        self._seed = world.dice.randrange(1 << 40)
        self._dice = Random(self._seed)
        self._skip = skip
        self._stopped = False
        self.struck = 0
        knobs = world.knobs
        for every_us, fault in (
            (knobs.crash_us, self._crash),
            (knobs.pause_us, self._pause),
            (knobs.partition_us, self._partition),
            (knobs.clog_us, self._clog),
            (knobs.wipe_us, self._break_disk),
            (knobs.transfer_us, self._hand_over),
            (knobs.change_us, self._change_members),
            (knobs.trim_us, self._expire),
            (knobs.full_us, self._fill_disk),
            (knobs.failed_sync_us, self._fail_sync),
            (knobs.leap_us, self._leap),
            (knobs.reset_us, self._reset),
        ):
            if every_us != NEVER_US:
                self._soon((every_us, fault))

    def stop(self) -> None:
        self._stopped = True

    def _soon(self, kind: tuple[int, Callable[[], None]]) -> None:
        self._world.at(int(kind[0] * 2 * self._dice.random()) + 1, self._strike, kind)

    def _strike(self, kind: tuple[int, Callable[[], None]]) -> None:
        if self._stopped:
            return
        self.struck += 1
        self._dice = Random(self._seed + self.struck)
        if self.struck not in self._skip:
            kind[1]()
        self._soon(kind)

    def _crash(self) -> None:
        """One member, the leader more often than not; now and then all at once."""
        world, dice = self._world, self._dice
        victims = world.up()
        if dice.random() > 0.1 and victims:
            leaders = world.leaders()
            victims = [dice.choice(leaders if leaders and dice.random() < 0.5 else victims)]
        for victim in victims:
            world.crash(victim)
            world.at(int(world.knobs.restart_us * dice.random()), world.restart, victim)

    def _pause(self) -> None:
        world, dice = self._world, self._dice
        victim = dice.choice(list(world.members.values()))
        longest = min(PAUSE_US_MAX, world.knobs.election_us * 4)
        victim.faults.paused_until = world.now + int(longest * dice.random() ** 2)
        world.count("pauses")
        world.say(f"{victim.id} stands still until {victim.faults.paused_until}")
        world.at(victim.faults.paused_until - world.now, self._read_at_once, victim)

    def _read_at_once(self, member: SimMember) -> None:
        """Pause a member; when it resumes, it may still believe to be the leader."""
        if member in self._world.leaders():
            self._world.read(member)

    def _partition(self) -> None:
        world, dice = self._world, self._dice
        if dice.random() < 0.3:
            world.network.heal()
            world.say("the network is whole")
            return
        shape = world.network.partition(dice, list(world.members))
        world.count("partitions")
        world.say(f"the network is cut: {shape}")

    def _clog(self) -> None:
        world, dice = self._world, self._dice
        names = list(world.members)
        link = dice.choice(names), dice.choice(names)
        delay = int(world.knobs.election_us * 3 * dice.random())
        world.network.clogged = {link: delay}
        world.count("clogged links")

    def _break_disk(self) -> None:
        """Wipe a disk, or damage its log. The member finds out when it starts again."""
        world, dice = self._world, self._dice
        members = list(world.members.values())
        broken = sum(1 for member in members if member.disk.state.doubt)
        if 2 * (broken + 1) >= self._fewest_voters():
            return  # one more would exceed the limit
        victim = dice.choice(members)
        disk, doubt = victim.disk, dice.randrange(1, 1 << 30)
        if disk.state.doubt or self._is_last_copy(victim):
            return
        world.crash(victim)
        if disk.last > disk.start.index and dice.random() < 0.5:
            at = LogIndex(dice.randrange(disk.start.index, disk.last) + 1)
            disk.damage(at, doubt)
            world.say(f"{victim.id} has lost its log from {at} on")
        else:
            disk.wipe(doubt)
            world.say(f"{victim.id} has lost its disk")
        world.count("disks damaged")
        world.at(int(world.knobs.restart_us * dice.random()), world.restart, victim)

    def _is_last_copy(self, victim: SimMember) -> bool:
        """Whether a witness may know of entries that only this disk has, or had when it sent them.
        Without it they are lost, and the group rightly has no leader any more."""
        world = self._world
        members = world.members.values()
        if victim.is_witness or not any(member.is_witness for member in members):
            return False
        others = [
            (leader.disk.term_at(leader.disk.last), leader.disk.last)
            for leader in world.leaders()
            if leader is not victim and leader.term == max(member.term for member in members)
        ]
        ends = [(member.disk.term_at(member.disk.last), member.disk.last) for member in members]
        return not others or max(others) < max(ends)

    def _fill_disk(self) -> None:
        """Fill the disk for a while; a leader has to notice and hand over."""
        world, dice = self._world, self._dice
        leaders = world.leaders()
        members = list(world.members.values())
        victim = dice.choice(leaders if leaders and dice.random() < 0.5 else members)
        victim.faults.full_until = world.now + int(world.knobs.election_us * 6 * dice.random())
        world.count("disks full")
        world.say(f"the disk of {victim.id} is full until {victim.faults.full_until}")

    def _fail_sync(self) -> None:
        victim = self._dice.choice(list(self._world.members.values()))
        victim.faults.sync_fails = True
        self._world.say(f"the next sync of {victim.id} fails")

    def _leap(self) -> None:
        """The clock of a member jumps: many ticks at once."""
        world, dice = self._world, self._dice
        up = [member for member in world.up() if world.now >= member.faults.paused_until]
        if not up:
            return
        victim, ticks = dice.choice(up), dice.randrange(2, 25)
        world.count("clocks that jumped")
        world.say(f"the clock of {victim.id} jumps by {ticks} ticks")
        for _ in range(ticks):
            if victim.node is not None:
                world.tick(victim)

    def _reset(self) -> None:
        """Break a connection between live members: either end may suspect the leader."""
        world, dice = self._world, self._dice
        up = world.up()
        if len(up) > 1:
            one, other = dice.sample(up, 2)
            world.count("connections broken")
            world.lose((one, other))

    def _fewest_voters(self) -> int:
        """Return the number for all memberships that may be in force; 0 while one is changing."""
        found = {member.disk.saved().members[-1][1] for member in self._world.members.values()}
        return 0 if len(found) > 1 else min(len(members.voters) for members in found)

    def _hand_over(self) -> None:
        world, dice = self._world, self._dice
        for leader in world.leaders():
            target = dice.choice(list(world.members))
            if target != leader.id and leader.live().hand_over(target) is None:
                world.count("handed over")
                world.say(f"{leader.id} hands over to {target}")
            world.drain(leader)

    def _change_members(self) -> None:
        world = self._world
        if any(member.disk.state.doubt for member in world.members.values()):
            return  # operators wait until everybody is repaired
        for leader in world.leaders():
            target = self._other_members()
            # A leader must reject newcomers as voters; then they join as learners. It must also
            # reject a second change while the first is open.
            self._ask(leader, target)
            self._ask(leader, self._first_as_learners(leader, target))
            now = leader.live().core.log.members.current
            self._ask(leader, self._of(now.voters, ()))
            world.drain(leader)

    def _ask(self, leader: SimMember, target: Members) -> None:
        done = leader.live().change(target)
        self._world.say(f"{leader.id} is asked for {target}: {done}")

    def _first_as_learners(self, leader: SimMember, target: Members) -> Members:
        now = leader.live().core.log.members.current
        fresh = target.voters - now.voters - now.learners
        if not fresh:
            return target
        return self._of(now.voters, (target.learners | fresh) - now.voters)

    def _other_members(self) -> Members:
        """Return any set of voters and learners, mostly close to the initial one."""
        dice, names = self._dice, list(self._world.members)
        self._world.count("membership changes asked for")
        count = dice.randrange(max(1, len(names) // 2), len(names) + 1)
        voters = dice.sample(names, count)
        learners = [name for name in names if name not in voters and dice.random() < 0.5]
        return self._of(voters, learners)

    def _of(self, voters: Collection[NodeId], learners: Collection[NodeId]) -> Members:
        """These members, and at least one of the voters a copy."""
        witnesses = {one.id for one in self._world.members.values() if one.is_witness}
        if witnesses.issuperset(voters):
            voters = [*voters, min(self._world.members.keys() - witnesses)]
        members = members_of(voters, set(learners) - set(voters))
        return members._replace(witnesses=members.everyone() & witnesses)

    def _expire(self) -> None:
        """Delete the oldest part of a member's log."""
        world, dice = self._world, self._dice
        victim = dice.choice(list(world.members.values()))
        if victim.node is None or victim.disk.pending is not None:
            return
        self._trim(victim, dice.random())

    def _trim(self, member: SimMember, share: float) -> None:
        disk = member.disk
        latest = min(member.applied, disk.last)
        index = LogIndex(disk.start.index + int((latest - disk.start.index) * share))
        if index > disk.start.index:
            disk.trim(index)
            member.live().trimmed(index)
            self._world.count("logs expired")
            self._world.say(f"{member.id} has given up its log up to {index}")
