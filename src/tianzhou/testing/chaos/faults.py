"""The table of faults. Each fault starts, lasts a while, and is repaired."""

import contextlib
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

from tianzhou.testing.chaos.cluster import Broker
from tianzhou.testing.chaos.processes import ProcessFailed, command
from tianzhou.testing.chaos.proxy import Link, Toward
from tianzhou.testing.chaos.stage import Stage
from tianzhou.testing.kit.patience import Patience

Act = Callable[[Stage], object]
GARBAGE_BYTES: Final = (1, 7, 8, 20, 4_096)
HEAD_START_S_MAX: Final = 3.0
"""By how much one of two faults ends before the other."""
PROMOTIONS: Final = frozenset({"promote", "depose"})
CHANGED_S: Final = 60.0
"""How long an operator retries to change the members of a group."""
UNCOMBINED: Final = frozenset({"none", "rolling-restart", "kill-all"})
"""Faults that leave no target for a second one, or have no target."""
FRAME_BYTES_MAX: Final = 5_000
"""A link freezes within this many bytes: inside one of the next frames."""


@dataclass(frozen=True, slots=True)
class Fault:
    what: str
    strike: Act
    repair: Act
    lasts_s: float = 2.5
    severs: bool = False
    """Meanwhile no slave receives from the master, or none can respond."""
    weakens: bool = False
    """Like `severs`, but from an unknown time on."""
    stops_sends: bool = False
    """The only master is unavailable meanwhile."""
    silence_s_max: float | None = None
    """The longest allowed time without an acknowledged send, from the start of the fault."""
    answers_min: int = 50
    """Minimum of sends that are answered meanwhile, if a master is available."""
    touches: frozenset[str] = frozenset()
    """The fault's target: of two faults at once, the second must have another target."""
    count: int = 1
    """The number of faults: each may explain one more copy of a delayed message."""


MASTER: Final = frozenset({"master"})
SLAVE: Final = frozenset({"slave"})
THIRD: Final = frozenset({"third"})
LINKS: Final = frozenset({"links"})
NAMES: Final = frozenset({"nameserver"})


def _nothing(_: Stage) -> None:
    pass


# Processes


def _kill_both(stage: Stage) -> None:
    stage.slave.server.kill()
    stage.master.server.kill()


def _start_master(stage: Stage) -> None:
    stage.cluster.start([stage.master])


def _start_slave(stage: Stage) -> None:
    stage.cluster.start([stage.slave])


def _start_both(stage: Stage) -> None:
    stage.cluster.start([stage.master, stage.slave])


def _start_names(stage: Stage) -> None:
    stage.cluster.names.start()
    stage.cluster.names.wait_ready()


def _move(stage: Stage) -> None:
    """Kill the master for good; an operator promotes the slave."""
    stage.master.server.kill()
    command("broker", "promote", stage.master.group, "-n", stage.cluster.nameserver, "--yes")


def _depose(stage: Stage) -> None:
    """The master hangs, and an operator promotes the slave; the old master resumes without having
    noticed."""
    stage.master.server.pause()
    command("broker", "promote", stage.master.group, "-n", stage.cluster.nameserver, "--yes")


# Links


def _freeze(stage: Stage) -> None:
    stage.ha_link.freeze(Toward.CALLER, stage.dice.randrange(1, FRAME_BYTES_MAX))


def _break(stage: Stage) -> None:
    """Break the connection in the middle of a frame: the slave must discard the partial frame."""
    stage.ha_link.heal()
    stage.ha_link.reset()


def _heal(stage: Stage) -> None:
    stage.ha_link.heal()


def _write_garbage(stage: Stage, broker: Broker, address: str) -> None:
    """Connect to a port of a broker, unless another fault has killed it."""
    if not broker.server.is_alive:
        return
    host, _, port = address.rpartition(":")
    for size in GARBAGE_BYTES:
        with socket.create_connection((host, int(port)), timeout=5.0) as intruder:
            intruder.sendall(stage.dice.randbytes(size))


def _intrude(stage: Stage) -> None:
    """Unknown peers write to the master's port, and one of them impersonates the master."""
    _write_garbage(stage, stage.master, stage.master.ha_address)
    stage.ha_link.pretend(stage.dice.randbytes(max(GARBAGE_BYTES)))
    stage.ha_link.reset()


# Members of a Raft group


def _cut_all(links: list[Link]) -> None:
    for link in links:
        link.cut()


def heal_all(stage: Stage) -> None:
    """End what was done to links."""
    stage.cluster.proxies.heal()


def _slow_all(stage: Stage) -> None:
    for edge in stage.edges:
        edge.link.slow(delay_s=0.02)


def _kill_all(stage: Stage) -> None:
    for broker in stage.groups[0]:
        broker.server.kill()


def _start_all(stage: Stage) -> None:
    stage.cluster.start(stage.groups[0])


def _kill_majority(stage: Stage) -> None:
    stage.slave.server.kill()
    stage.master.server.kill()


def _restart_each(stage: Stage) -> None:
    """Restart the members one after the other; the leader last, so that it hands over once."""
    for broker in reversed(stage.groups[0]):
        broker.server.stop()
        stage.cluster.start([broker])


def wipe(broker: Broker) -> None:
    """Replace the broker's disk with an empty one."""
    broker.server.kill()
    for path in broker.data.iterdir():  # the directory itself may be a mount point
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _wipe_follower(stage: Stage) -> None:
    wipe(stage.slave)


def _remove_member(stage: Stage) -> None:
    """An operator removes a follower from the group, and then its machine. The group refuses if
    another fault left it without a majority of the remaining members."""
    member, names = stage.third, stage.cluster.nameserver
    try:
        command("raft", "remove", member.group, member.raft_id, "-n", names, "--yes")
    except ProcessFailed:
        return
    wipe(member)


def _add_member(stage: Stage) -> None:
    """The member rejoins as a new one, while the other fault may still be active."""
    member, names = stage.third, stage.cluster.nameserver
    if member.server.is_alive:
        return  # the group refused to remove it
    member.server.start()
    _repeat("raft", "add", member.group, f"{member.raft_id}={member.raft_address}", "-n", names)
    member.server.wait_ready()


def _repeat(*words: str) -> None:
    """Repeat a command until it succeeds, as an operator does while a group elects."""
    patience = Patience(CHANGED_S)
    while True:
        try:
            command(*words)
        except ProcessFailed:
            if patience.is_over():
                raise
        else:
            return


def _damage_follower(stage: Stage) -> None:
    """Kill a follower and flip a bit of the acknowledged data on its disk."""
    stage.slave.server.kill()
    path = min((stage.slave.data / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[stage.dice.randrange(len(data.rstrip(b"\0")) // 2)] ^= 0x10
    path.write_bytes(data)


def _transfer(stage: Stage) -> None:
    """An operator transfers the leadership to a follower. This may fail: another fault may have
    left the group without a leader."""
    target = stage.slave
    with contextlib.suppress(ProcessFailed):
        command("raft", "transfer", target.group, target.raft_id, "-n", stage.cluster.nameserver)


def _intrude_members(stage: Stage) -> None:
    """Unknown peers write to the port of every member and impersonate the leader's peers."""
    for edge in stage.edges:
        _write_garbage(stage, edge.target, edge.link.target)
    for link in stage.from_master():
        link.pretend(stage.dice.randbytes(max(GARBAGE_BYTES)))
        link.reset()


FAULTS: Final = {
    "none": Fault("nothing", _nothing, _nothing, lasts_s=1.0),
    "kill-master": Fault(
        "kill -9 of the master",
        lambda stage: stage.master.server.kill(), _start_master,
        lasts_s=1.0, stops_sends=True,
        touches=MASTER,
    ),
    "kill-slave": Fault(
        "kill -9 of the slave",
        lambda stage: stage.slave.server.kill(), _start_slave, severs=True,
        touches=SLAVE,
    ),
    "kill-both": Fault(
        "kill -9 of master and slave at once", _kill_both, _start_both, lasts_s=0.5,
        stops_sends=True,
        touches=MASTER | SLAVE,
    ),
    "pause-master": Fault(
        "SIGSTOP of the master",
        lambda stage: stage.master.server.pause(), lambda stage: stage.master.server.resume(),
        stops_sends=True,
        touches=MASTER,
    ),
    "pause-slave": Fault(
        "SIGSTOP of the slave",
        lambda stage: stage.slave.server.pause(), lambda stage: stage.slave.server.resume(),
        severs=True,
        touches=SLAVE,
    ),
    "cut": Fault(
        "cut between slave and master", lambda stage: stage.ha_link.cut(), _heal, severs=True,
        touches=LINKS,
    ),
    "cut-to-slave": Fault(
        "cut from master to slave", lambda stage: stage.ha_link.cut(Toward.CALLER), _heal,
        severs=True,
        touches=LINKS,
    ),
    "cut-to-master": Fault(
        "cut from slave to master", lambda stage: stage.ha_link.cut(Toward.TARGET), _heal,
        severs=True,
        touches=LINKS,
    ),
    "slow": Fault(
        "slow link", lambda stage: stage.ha_link.slow(delay_s=0.05, bytes_per_s=400_000), _heal,
        touches=LINKS,
    ),
    "freeze": Fault("link frozen within a frame", _freeze, _heal, weakens=True, touches=LINKS),
    "freeze-break": Fault(
        "link frozen within a frame, then broken", _freeze, _break, weakens=True,
        touches=LINKS,
    ),
    "reset": Fault(
        "connection reset", lambda stage: stage.ha_link.reset(), _nothing, lasts_s=1.0,
        touches=LINKS,
    ),
    "kill-nameserver": Fault(
        "kill -9 of the NameServer", lambda stage: stage.cluster.names.kill(), _start_names,
        touches=NAMES,
    ),
    "promote": Fault(
        "death of the master, and promotion of the slave", _move, _start_master, lasts_s=1.0,
        stops_sends=True,
        touches=MASTER,
    ),
    "depose": Fault(
        "SIGSTOP of the master, and promotion of the slave", _depose,
        lambda stage: stage.master.server.resume(), lasts_s=4.0, stops_sends=True, touches=MASTER,
    ),
    "garbage": Fault(
        "garbage on the port of replication", _intrude, _break, weakens=True, touches=LINKS
    ),
}  # fmt: skip
"""On one broker, or on a master and a slave."""

RAFT_FAULTS: Final = {
    "kill-leader": Fault(
        "kill -9 of the leader", lambda stage: stage.master.server.kill(), _start_master,
        lasts_s=4.0, silence_s_max=5.0,
        touches=MASTER,
    ),
    "kill-follower": Fault(
        "kill -9 of a follower", lambda stage: stage.slave.server.kill(), _start_slave,
        touches=SLAVE,
    ),
    "kill-majority": Fault(
        "kill -9 of the leader and a follower", _kill_majority, _start_both, lasts_s=1.5,
        stops_sends=True,
        touches=MASTER | SLAVE,
    ),
    "kill-all": Fault(
        "kill -9 of all members at once", _kill_all, _start_all, lasts_s=0.5, stops_sends=True,
        touches=MASTER | SLAVE,
    ),
    "pause-leader": Fault(
        "SIGSTOP of the leader", lambda stage: stage.master.server.pause(),
        lambda stage: stage.master.server.resume(), lasts_s=6.0, silence_s_max=8.0,
        answers_min=1,  # a producer waits three seconds for an answer that does not come, or six
        touches=MASTER,
    ),
    "pause-follower": Fault(
        "SIGSTOP of a follower", lambda stage: stage.slave.server.pause(),
        lambda stage: stage.slave.server.resume(),
        touches=SLAVE,
    ),
    "cut-leader": Fault(
        "leader cut off", lambda stage: _cut_all(stage.around(stage.master)), heal_all,
        lasts_s=4.0, silence_s_max=5.0,
        touches=LINKS,
    ),
    "cut-from-leader": Fault(
        "cut from the leader to all", lambda stage: _cut_all(stage.from_master()),
        heal_all, lasts_s=4.0, silence_s_max=5.0,
        touches=LINKS,
    ),
    "cut-to-leader": Fault(
        "cut from all to the leader", lambda stage: _cut_all(stage.to_master()),
        heal_all, lasts_s=4.0, silence_s_max=5.0,
        touches=LINKS,
    ),
    "cut-follower": Fault(
        "follower cut off", lambda stage: _cut_all(stage.around(stage.slave)), heal_all,
        touches=LINKS,
    ),
    "slow-members": Fault("slow links between all members", _slow_all, heal_all, touches=LINKS),
    "garbage-members": Fault(
        "garbage on the ports of members", _intrude_members, heal_all, touches=LINKS
    ),
    "wipe-follower": Fault(
        "loss of a follower's disk", _wipe_follower, _start_slave, lasts_s=0.5, touches=SLAVE
    ),
    "damage-follower": Fault(
        "damaged bytes on a follower's disk", _damage_follower, _start_slave, lasts_s=0.5,
        touches=SLAVE,
    ),
    "fill-leader": Fault(
        "a full disk under the leader", lambda stage: stage.master.fill_disk(),
        lambda stage: stage.master.free_disk(), lasts_s=4.0, silence_s_max=8.0, answers_min=1,
        touches=MASTER,
    ),
    "fill-follower": Fault(
        "a full disk under a follower", lambda stage: stage.slave.fill_disk(),
        lambda stage: stage.slave.free_disk(), touches=SLAVE,
    ),
    "reconfigure": Fault(
        "removal of a follower, and its return as a new member", _remove_member, _add_member,
        touches=THIRD,
    ),
    "transfer": Fault(
        "leadership moved by an operator", _transfer, _nothing, lasts_s=1.0, silence_s_max=5.0,
    ),
    "rolling-restart": Fault(
        "restart of each member", _restart_each, _nothing, lasts_s=0.1, silence_s_max=3.0,
        touches=MASTER | SLAVE,
    ),
}  # fmt: skip
"""On three members of a Raft group."""

NEEDS_SMALL_DISKS: Final = frozenset({"fill-leader", "fill-follower", "fill-witness"})


# Two faults at once


def both(first: Fault, second: Fault) -> Fault:
    """Start the second fault while the first is active; a random choice decides which ends first.

    Together they may exceed what the cluster tolerates, so availability is not required until both
    have ended; earlier guarantees must hold anyway.
    """

    def strike(stage: Stage) -> None:
        first.strike(stage)
        time.sleep(first.lasts_s / 2)  # the duration of the fault, not a wait for a condition
        second.strike(stage)

    def repair(stage: Stage) -> None:
        # In parallel: a member may wait for the other one before it serves.
        ahead, behind = stage.dice.sample((first, second), 2)
        with ThreadPoolExecutor(2) as repairers:
            began = repairers.submit(ahead.repair, stage)
            wait((began,), timeout=stage.dice.uniform(0.0, HEAD_START_S_MAX))
            ended = repairers.submit(behind.repair, stage)
            began.result()
            ended.result()

    return Fault(
        f"{first.what}; meanwhile {second.what}",
        strike,
        repair,
        lasts_s=second.lasts_s,
        stops_sends=True,
        touches=first.touches | second.touches,
        count=2,
    )


def fault_named(name: str, table: Mapping[str, Fault]) -> Fault:
    """A fault of the table, or two of them: `cut-leader+kill-follower`."""
    first, _, second = name.partition("+")
    return both(table[first], table[second]) if second else table[first]


def can_be_both(first: str, second: str, table: Mapping[str, Fault]) -> bool:
    """Whether the second fault has a target while the first is active."""
    if {first, second} & UNCOMBINED or table[first].touches & table[second].touches:
        return False
    # A promotion needs a slave and a NameServer that respond.
    return second not in PROMOTIONS or not table[first].touches & (SLAVE | NAMES)
