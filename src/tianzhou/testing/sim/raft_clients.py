"""Clients of a simulated group: they write unique values, and read."""

from tianzhou.testing.sim.raft_world import World


class Clients:
    """Send to every member that believes to be the leader, even if there are two."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._written = 0
        self.next()

    def next(self, _: object = None) -> None:
        world, dice = self._world, self._world.dice
        world.at(int(world.knobs.proposals_us * 2 * dice.random()) + 1, self.next, None)
        leaders = world.leaders()
        if not leaders:
            return
        leader = dice.choice(leaders) if len(leaders) > 1 else leaders[0]
        for _ in range(dice.randrange(world.knobs.burst) + 1 if world.knobs.burst > 1 else 1):
            self._written += 1
            # Of different sizes, so that messages are cut in different places.
            value = b"%d:" % self._written + b"." * (self._written * 7 % 40)
            if not world.propose(leader, value):
                break
        world.drain(leader)
        if world.knobs.reads and leader.node is not None and dice.random() < world.knobs.reads:
            world.read(leader)
