"""The stage of a scenario: a started cluster of some shape, with its topic."""

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from tianzhou.testing.chaos import looking
from tianzhou.testing.chaos.cluster import QUEUES, TOPIC, Broker, Cluster, Mode, wait_for
from tianzhou.testing.chaos.consuming import MEMBERS
from tianzhou.testing.chaos.evidence import Evidence, Replica, are_level, sum_up
from tianzhou.testing.chaos.history import Place, Queue
from tianzhou.testing.chaos.processes import HOST, spare_ports
from tianzhou.testing.chaos.proxy import Link

LEVEL_S: Final = 30.0
LEADER_S: Final = 20.0
MEMBERS_OF_RAFT: Final = 3
WITNESS: Final = "w"
DISK_BYTES: Final = 64 << 20

_LEADS: Final = re.compile(r"^(\S+ \S+),(\d{3}) \w+ +raft\.serves ", re.MULTILINE)


class Edge(NamedTuple):
    """A link between brokers of one group."""

    caller: Broker
    target: Broker
    link: Link


@dataclass(slots=True)
class Stage:
    """A running cluster and its links. Owner: a scenario."""

    cluster: Cluster
    mode: Mode
    dice: Random
    groups: list[list[Broker]]
    """The brokers of each group; the first is the master, as of the last `find_masters`."""
    edges: list[Edge] = field(default_factory=list[Edge])
    has_slaves: bool = False
    """The first group is a master with slaves."""
    _level_ends: list[int] = field(default_factory=list[int])
    """Where the logs of each group ended when they were equal."""

    @property
    def master(self) -> Broker:
        return self.groups[0][0]

    @property
    def slave(self) -> Broker:
        return self.groups[0][1]

    @property
    def third(self) -> Broker:
        """The other follower of a Raft group."""
        return self.groups[0][2]

    @property
    def witness(self) -> Broker:
        """The witness of two copies, which is in no group."""
        return next(broker for broker in self.cluster.brokers if broker.raft_id == WITNESS)

    @property
    def ha_link(self) -> Link:
        """The link between the slave and the master of the first group."""
        ((_, _, link),) = self.edges
        return link

    def from_master(self) -> list[Link]:
        return [edge.link for edge in self.edges if edge.caller is self.master]

    def to_master(self) -> list[Link]:
        return [edge.link for edge in self.edges if edge.target is self.master]

    def around(self, broker: Broker) -> list[Link]:
        return [edge.link for edge in self.edges if broker in (edge.caller, edge.target)]

    def find_masters(self) -> None:
        """Put the master of each group first. Waits until each group has one."""

        def found() -> bool:
            masters = looking.masters(self.cluster.nameserver)
            for group in self.groups:
                at = masters.get(group[0].group)
                rank = next((n for n, broker in enumerate(group) if broker.address == at), None)
                if rank is None or not group[rank].server.is_alive:
                    return False
                group.insert(0, group.pop(rank))
            return True

        wait_for(found, LEADER_S, lambda: f"{looking.masters(self.cluster.nameserver)} lead")

    def wait_followed(self) -> None:
        """Wait until every slave is connected: earlier sends would get a weaker status."""
        if self.has_slaves:
            at, count = self.master.address, len(self.groups[0]) - 1
            wait_for(
                lambda: looking.slaves_in_sync(at) == count,
                LEADER_S,
                lambda: f"{looking.slaves_in_sync(at)} of {count} slaves follow",
            )

    # At the end

    def wait_settled(self, last_due: float) -> None:
        """Wait until no message is pending: all delayed messages are due, and every transaction is
        decided."""
        time.sleep(max(0.0, last_due - time.monotonic()))
        self.find_masters()

        def held() -> list[int]:
            return [looking.waiting(group[0].address) for group in self.groups]

        wait_for(lambda: not any(held()), LEVEL_S, lambda: f"masters still hold back {held()}")

    def wait_level(self) -> float:
        """Wait until all replicas of a group have the same log; return the seconds it took."""
        began = time.monotonic()
        self.find_masters()
        for master, *others in self.groups:
            for other in others:
                _wait_equal(master, other, Broker.log_end)
                _wait_same_messages(master, other)
        self._level_ends = [group[0].log_end() for group in self.groups]
        return time.monotonic() - began

    def stored(self) -> dict[Place, str]:
        """Return the visible messages of the masters."""
        return {place: value for group in self.groups for place, value in _scan(group[0]).items()}

    def elections(self) -> list[float]:
        """Return when members began to lead, as their logs have it, in the monotonic clock."""
        behind = time.time() - time.monotonic()
        return sorted(
            time.mktime(time.strptime(second, "%Y-%m-%d %H:%M:%S")) + int(ms) / 1000 - behind
            for group in self.groups
            for broker in group
            for second, ms in _LEADS.findall(broker.server.log())
        )

    def gather(self) -> Evidence:
        """Scan all replicas, then stop the brokers and verify their files."""
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
            tuple(sum_up(broker.name, broker.data, TOPIC, end) for broker in group)
            for group, end in zip(self.groups, self._level_ends, strict=True)
        )
        return Evidence(replicas, len(masters), sums, committed)


def _scan(broker: Broker) -> dict[Place, str]:
    return looking.scan(broker.address, broker.group, TOPIC, QUEUES)


def _wait_equal(one: Broker, other: Broker, measure: Callable[[Broker], int]) -> None:
    wait_for(
        lambda: measure(one) == measure(other) > 0,
        LEVEL_S,
        lambda: f"{one.name} has {measure(one)}, {other.name} {measure(other)}",
    )


def _wait_same_messages(one: Broker, other: Broker) -> None:
    wait_for(
        lambda: are_level(_scan(one), _scan(other)),
        LEVEL_S,
        lambda: f"{one.name} shows {len(_scan(one))} messages, {other.name} {len(_scan(other))}",
    )


Shape = Callable[[Cluster, Mode, Random], Stage]


def alone(cluster: Cluster, mode: Mode, dice: Random) -> Stage:
    """One broker."""
    return Stage(cluster, mode, dice, [[_master(cluster, "broker-a", mode)]])


def two(cluster: Cluster, mode: Mode, dice: Random) -> Stage:
    """Two groups of one broker each: sends fail over to the other."""
    names = ("broker-a", "broker-b")
    return Stage(cluster, mode, dice, [[_master(cluster, name, mode)] for name in names])


def _master(cluster: Cluster, group: str, mode: Mode) -> Broker:
    role = "SYNC_MASTER" if mode.sync_replication else "ASYNC_MASTER"
    settings = {**mode.settings(), "brokerId": "0", "brokerRole": role}
    return cluster.add(group, f"{group}-master", settings)


def pair(cluster: Cluster, mode: Mode, dice: Random) -> Stage:
    """A master, and a slave that reaches it through a proxy."""
    master = _master(cluster, "broker-a", mode)
    link = cluster.proxies.link("slave to master", master.ha_address)
    settings = {"brokerId": "1", "brokerRole": "SLAVE", "haMasterAddress": link.address}
    slave = cluster.add("broker-a", "broker-a-slave", {**mode.settings(), **settings})
    edge = Edge(slave, master, link)
    return Stage(cluster, mode, dice, [[master, slave]], [edge], has_slaves=True)


def raft(cluster: Cluster, mode: Mode, dice: Random) -> Stage:
    """Three members that elect their master; each pair is connected through two proxies, so that
    every direction of every link can be cut."""
    return _group(cluster, mode, dice, [f"n{rank}" for rank in range(MEMBERS_OF_RAFT)])


def witnessed(cluster: Cluster, mode: Mode, dice: Random) -> Stage:
    """Two members and a witness, connected in the same way."""
    return _group(cluster, mode, dice, ["n0", "n1", WITNESS])


def _group(cluster: Cluster, mode: Mode, dice: Random, names: list[str]) -> Stage:
    at = {name: f"{HOST}:{spare_ports(1)}" for name in names}
    links = {
        (one, other): cluster.proxies.link(f"{one} to {other}", at[other])
        for one in names
        for other in names
        if one != other
    }
    members: dict[str, Broker] = {}
    for name in names:
        peers = {other: link.address for (one, other), link in links.items() if one == name}
        peers[name] = at[name]
        settings = {
            "raft_enabled": "true",
            "raft_group": "raft-a",
            "raft_id": name,
            "raft_new": "true",
            "raft_peers": ";".join(f"{other}={peers[other]}" for other in names),
            "raft_witness": WITNESS if WITNESS in names else "",
        }
        is_witness = name == WITNESS
        members[name] = cluster.add("raft-a", f"raft-a-{name}", settings, is_witness=is_witness)
        members[name].raft_id, members[name].raft_address = name, at[name]
    edges = [Edge(members[one], members[other], link) for (one, other), link in links.items()]
    copies = [member for name, member in members.items() if name != WITNESS]
    return Stage(cluster, mode, dice, [copies], edges)


def raft_on_small_disks(cluster: Cluster, mode: Mode, dice: Random) -> Stage:
    """The same, each member with a separate disk that can be filled."""
    return _on_small_disks(raft(cluster, mode, dice))


def witnessed_on_small_disks(cluster: Cluster, mode: Mode, dice: Random) -> Stage:
    """Two members and a witness, each with a separate disk that can be filled."""
    return _on_small_disks(witnessed(cluster, mode, dice))


def _on_small_disks(stage: Stage) -> Stage:
    for broker in stage.cluster.brokers:
        broker.mount_disk(DISK_BYTES)
    return stage


def set_up(directory: Path, shape: Shape, mode: Mode, dice: Random) -> Stage:
    """Start a cluster and create its topic."""
    cluster = Cluster(directory)
    with contextlib.ExitStack() as failing:
        failing.callback(cluster.close)
        stage = shape(cluster, mode, dice)
        cluster.start(cluster.brokers)
        stage.find_masters()
        for broker in cluster.brokers:
            broker.configure({"raft_new": "false"})
        stage.wait_followed()
        cluster.create_topic()
        failing.pop_all()
    return stage
