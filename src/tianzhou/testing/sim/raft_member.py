"""One simulated member: a node, its disk, and the clients that wait for it."""

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tianzhou.raft.config import RaftConfig
from tianzhou.raft.membership import Members
from tianzhou.raft.messages import LogIndex, NodeId, Term
from tianzhou.raft.node import Node
from tianzhou.raft.roles import Role
from tianzhou.testing.sim.raft_disk import RaftDisk


class Waiting(NamedTuple):
    """A client waits until this entry is committed."""

    index: LogIndex  # pyright: ignore[reportIncompatibleMethodOverride]
    term: Term
    value: bytes


@dataclass(slots=True)
class MemberFaults:
    """Current faults of one member. Times are those of the world."""

    paused_until: int = 0
    full_until: int = 0
    """Until then the disk accepts no writes."""
    sync_fails: bool = False
    """The next sync of the disk fails."""


class SimMember:
    """A node with its disk and its faults. `node` is None while the process is down."""

    def __init__(self, name: NodeId, members: Members, config: RaftConfig, tick_us: int) -> None:
        self.id = name
        self.config = config
        self.disk = RaftDisk(members)
        self.tick_us = tick_us
        self.node: Node | None = None
        self.life = 0
        """Grows with every start, to tell apart work that an earlier process started."""
        self.faults = MemberFaults()
        self.applied = LogIndex(0)
        self.waiting: deque[Waiting] = deque()
        # What was seen last, to notice changes.
        self.role = Role.LEARNER
        self.term = Term(0)
        self.commit = LogIndex(0)

    def start(self, dice: Random) -> Node:
        assert self.node is None
        self.life += 1
        saved = self.disk.saved()
        self.node = Node(
            self.id, self.config, Random(dice.random()), storage=self.disk, saved=saved
        )
        self.role, self.term = self.node.role, saved.state.term
        self.applied = self.disk.start.index
        self.commit = self.node.core.log.commit
        return self.node

    def stop(self) -> None:
        self.node = None
        self.role = Role.LEARNER
        self.waiting.clear()

    @property
    def is_witness(self) -> bool:
        return self.config.is_witness

    def live(self) -> Node:
        assert self.node is not None, f"{self.id} is down"
        return self.node
