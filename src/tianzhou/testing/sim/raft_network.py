"""The network between simulated members: it loses, delays, duplicates, reorders and cuts."""

from collections.abc import Callable, Iterable
from random import Random

from tianzhou.raft.messages import Message, NodeId
from tianzhou.testing.sim.raft_knobs import Knobs


class Network:
    """Decides what happens to each message. The world delivers it."""

    def __init__(self, knobs: Knobs, dice: Random, push: Callable[[int, Message], None]) -> None:
        self._push = push
        self._random = dice.random
        self.loss = knobs.loss
        self.duplicate = knobs.duplicate
        self._delay_min_us = knobs.delay_min_us
        self.delay_spread_us = knobs.delay_spread_us
        self.cut: set[tuple[NodeId, NodeId]] = set()
        """Pairs of sender and receiver between which no message passes."""
        self.clogged: dict[tuple[NodeId, NodeId], int] = {}
        """Pairs between which every message takes this much longer."""
        self.sent = 0

    def send(self, message: Message) -> None:
        self.sent += 1
        link = (message.sender, message.to)
        if link in self.cut:
            return
        roll = self._random
        if self.loss and roll() < self.loss:
            return
        extra = self.clogged.get(link, 0) if self.clogged else 0
        # Squared: mostly fast, now and then slow, and so often out of order.
        self._push(self._delay_min_us + extra + int(roll() ** 2 * self.delay_spread_us), message)
        if self.duplicate and roll() < self.duplicate:
            self._push(self._delay_min_us + extra + int(roll() * 3 * self.delay_spread_us), message)

    # Partitions

    def heal(self) -> None:
        self.cut.clear()
        self.clogged.clear()

    def separate(self, one: Iterable[NodeId], other: Iterable[NodeId]) -> None:
        """Cut the direction from `one` to `other`; the other direction is not affected."""
        others = list(other)
        self.cut |= {(a, b) for a in one for b in others if a != b}

    def partition(self, dice: Random, ids: list[NodeId]) -> str:
        """Partition the network in one of several shapes, and return which."""
        self.heal()
        ids = dice.sample(ids, len(ids))
        shape = dice.choice(("isolate", "halves", "one-way in", "one-way out", "ring", "bridge"))
        lone, rest, half = ids[:1], ids[1:], len(ids) // 2
        match shape:
            case "isolate":
                self.separate(lone, rest)
                self.separate(rest, lone)
            case "halves":
                self.separate(ids[:half], ids[half:])
                self.separate(ids[half:], ids[:half])
            case "one-way in":
                self.separate(lone, rest)
            case "one-way out":
                self.separate(rest, lone)
            case "ring":
                # Each member hears only its neighbours.
                count = len(ids)
                near = {(ids[i], ids[(i + step) % count]) for i in range(count) for step in (1, -1)}
                self.cut = {(a, b) for a in ids for b in ids if a != b} - near
            case _:
                # One member sees both halves, which do not see each other.
                self.separate(rest[:half], rest[half:])
                self.separate(rest[half:], rest[:half])
        return shape
