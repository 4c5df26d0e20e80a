"""What a scenario plays on: a cluster of some shape, started, with its topic made."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from tianzhou.testing.chaos import logs, looking
from tianzhou.testing.chaos.cluster import QUEUES, TOPIC, Broker, Cluster, Mode, wait_for
from tianzhou.testing.chaos.consuming import MEMBERS
from tianzhou.testing.chaos.evidence import Evidence, Replica
from tianzhou.testing.chaos.history import Place, Queue
from tianzhou.testing.chaos.proxy import Link

LEVEL_S: Final = 30.0


@dataclass(slots=True)
class Stage:
    """Owner: a scenario."""

    cluster: Cluster
    mode: Mode
    dice: Random
    groups: list[list[Broker]]
    """The brokers of each group; the first is the master."""
    link: Link | None = None
    """Between the slave and the master of the first group."""

    @property
    def master(self) -> Broker:
        return self.groups[0][0]

    @property
    def slave(self) -> Broker:
        return self.groups[0][1]

    @property
    def ha_link(self) -> Link:
        assert self.link is not None, "this shape has no link between brokers"
        return self.link

    # At the end

    def wait_level(self) -> float:
        """Until all replicas of a group have the same log, and show it; seconds it took."""
        began = time.monotonic()
        for master, *others in self.groups:
            for other in others:
                wait_for(
                    lambda a=master, b=other: a.log_end() == b.log_end() > 0,
                    LEVEL_S,
                    lambda a=master, b=other: f"{a.name} {a.log_end()}, {b.name} {b.log_end()}",
                )
                wait_for(
                    lambda a=master, b=other: len(_scan(a)) == len(_scan(b)),
                    LEVEL_S,
                    lambda a=master, b=other: f"{len(_scan(a))} and {len(_scan(b))} messages",
                )
        return time.monotonic() - began

    def stored(self) -> dict[Place, str]:
        """What the masters show."""
        return {place: value for group in self.groups for place, value in _scan(group[0]).items()}

    def gather(self) -> Evidence:
        """Look at everything, then stop the brokers and look at their files."""
        masters = [group[0] for group in self.groups]
        others = [broker for group in self.groups for broker in group[1:]]
        replicas = tuple(Replica(broker.name, _scan(broker)) for broker in (*masters, *others))
        committed = {
            (MEMBERS, Queue(master.group, queue_id)): offset
            for master in masters
            for queue_id in range(QUEUES)
            if (offset := looking.committed(master.address, MEMBERS, TOPIC, queue_id)) is not None
        }
        self.cluster.stop_all()
        sums = tuple(
            tuple(logs.sum_up(broker.name, broker.data) for broker in group)
            for group in self.groups
        )
        return Evidence(replicas, len(masters), sums, committed)


def _scan(broker: Broker) -> dict[Place, str]:
    return looking.scan(broker.address, broker.group, TOPIC, QUEUES)


Shape = Callable[[Cluster, Mode, Random], Stage]


def alone(cluster: Cluster, mode: Mode, dice: Random) -> Stage:
    """One broker."""
    return Stage(cluster, mode, dice, [[_master(cluster, "broker-a", mode)]])


def two(cluster: Cluster, mode: Mode, dice: Random) -> Stage:
    """Two groups of one broker each: sends fail over to the other."""
    names = ("broker-a", "broker-b")
    return Stage(cluster, mode, dice, [[_master(cluster, name, mode)] for name in names])


def _master(cluster: Cluster, group: str, mode: Mode) -> Broker:
    return cluster.add(group, f"{group}-master", mode.settings())


def pair(cluster: Cluster, mode: Mode, dice: Random) -> Stage:
    """A master and a slave."""
    made = cluster.pair("broker-a", mode)
    return Stage(cluster, mode, dice, [[made.master, made.slave]], made.link)


def set_up(directory: Path, shape: Shape, mode: Mode, dice: Random) -> Stage:
    """Everything serves, and the topic is known."""
    cluster = Cluster(directory)
    with contextlib.ExitStack() as failing:
        failing.callback(cluster.close)
        stage = shape(cluster, mode, dice)
        cluster.start(cluster.brokers)
        cluster.create_topic()
        failing.pop_all()
    return stage
