"""The faults of scenarios: a table. Each strikes, lasts a while, and is mended."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tianzhou.testing.chaos.proxy import Toward
from tianzhou.testing.chaos.stage import Stage

Act = Callable[[Stage], object]
GARBAGE_BYTES: Final = (1, 7, 8, 20, 4_096)
FRAME_BYTES_MAX: Final = 5_000
"""A link freezes within so many bytes: somewhere in one of the next frames."""


@dataclass(frozen=True, slots=True)
class Fault:
    what: str
    strike: Act
    mend: Act
    lasts_s: float = 2.5
    severs: bool = False
    """No slave can hear the master meanwhile, or none can answer."""
    stops_sends: bool = False
    """The only master is not there meanwhile."""


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


# Links


def _freeze(stage: Stage) -> None:
    stage.ha_link.freeze(Toward.CALLER, stage.dice.randrange(1, FRAME_BYTES_MAX))


def _break(stage: Stage) -> None:
    """The connection breaks where it stands: the slave has half a frame and must forget it."""
    stage.ha_link.heal()
    stage.ha_link.reset()


def _heal(stage: Stage) -> None:
    stage.ha_link.heal()


def _intrude(stage: Stage) -> None:
    """Strangers write to the master's port, and a stranger pretends to be the master."""
    host, _, port = stage.master.ha_address.rpartition(":")
    for size in GARBAGE_BYTES:
        with socket.create_connection((host, int(port)), timeout=5.0) as stranger:
            stranger.sendall(stage.dice.randbytes(size))
    stage.ha_link.pretend(stage.dice.randbytes(max(GARBAGE_BYTES)))
    stage.ha_link.reset()


FAULTS: Final = {
    "none": Fault("nothing", _nothing, _nothing, lasts_s=1.0),
    "kill-master": Fault(
        "kill -9 of the master",
        lambda stage: stage.master.server.kill(), _start_master,
        lasts_s=1.0, stops_sends=True,
    ),
    "kill-slave": Fault(
        "kill -9 of the slave",
        lambda stage: stage.slave.server.kill(), _start_slave, severs=True,
    ),
    "kill-both": Fault(
        "kill -9 of master and slave at once", _kill_both, _start_both, lasts_s=0.5,
        stops_sends=True,
    ),
    "pause-master": Fault(
        "SIGSTOP of the master",
        lambda stage: stage.master.server.pause(), lambda stage: stage.master.server.resume(),
        stops_sends=True,
    ),
    "pause-slave": Fault(
        "SIGSTOP of the slave",
        lambda stage: stage.slave.server.pause(), lambda stage: stage.slave.server.resume(),
        severs=True,
    ),
    "cut": Fault(
        "cut between slave and master", lambda stage: stage.ha_link.cut(), _heal, severs=True
    ),
    "cut-to-slave": Fault(
        "cut from master to slave", lambda stage: stage.ha_link.cut(Toward.CALLER), _heal,
        severs=True,
    ),
    "cut-to-master": Fault(
        "cut from slave to master", lambda stage: stage.ha_link.cut(Toward.TARGET), _heal,
        severs=True,
    ),
    "slow": Fault(
        "slow link", lambda stage: stage.ha_link.slow(delay_s=0.05, bytes_per_s=400_000), _heal
    ),
    "freeze": Fault("link frozen within a frame", _freeze, _heal),
    "freeze-break": Fault("link frozen within a frame, then broken", _freeze, _break),
    "reset": Fault(
        "connection reset", lambda stage: stage.ha_link.reset(), _nothing, lasts_s=1.0
    ),
    "garbage": Fault("garbage on the port of replication", _intrude, _break),
}  # fmt: skip
