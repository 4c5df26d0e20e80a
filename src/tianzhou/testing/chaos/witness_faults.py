"""Faults of two copies and a witness."""

from collections.abc import Mapping
from typing import Final

from tianzhou.testing.chaos.faults import RAFT_FAULTS, Fault, heal_all, wipe
from tianzhou.testing.chaos.stage import Stage

WITNESS: Final = frozenset({"witness"})
LINKS: Final = frozenset({"links"})


def _start_witness(stage: Stage) -> None:
    stage.cluster.start([stage.witness])


def _cut_witness(stage: Stage) -> None:
    for link in stage.around(stage.witness):
        link.cut()


WITNESS_FAULTS: Final[Mapping[str, Fault]] = {
    "kill-witness": Fault(
        "kill -9 of the witness",
        lambda stage: stage.witness.server.kill(),
        _start_witness,
        silence_s_max=2.0,
        touches=WITNESS,
    ),
    "pause-witness": Fault(
        "SIGSTOP of the witness",
        lambda stage: stage.witness.server.pause(),
        lambda stage: stage.witness.server.resume(),
        silence_s_max=2.0,
        touches=WITNESS,
    ),
    "cut-witness": Fault(
        "witness cut off", _cut_witness, heal_all, silence_s_max=2.0, touches=LINKS
    ),
    "wipe-witness": Fault(
        "loss of the disk of the witness",
        lambda stage: wipe(stage.witness),
        _start_witness,
        lasts_s=0.5,
        touches=WITNESS,
    ),
    "fill-witness": Fault(
        "a full disk under the witness",
        lambda stage: stage.witness.fill_disk(),
        lambda stage: stage.witness.free_disk(),
        silence_s_max=2.0,
        touches=WITNESS,
    ),
}
"""While both copies work, a witness is not needed."""

NEED_THREE: Final = frozenset({"reconfigure"})
PAIR_FAULTS: Final[Mapping[str, Fault]] = {
    name: fault
    for name, fault in {**RAFT_FAULTS, **WITNESS_FAULTS}.items()
    if name not in NEED_THREE
}
LOSE_A_DISK: Final = frozenset({"wipe-follower", "damage-follower"})


def leaves_a_copy(first: str, second: str) -> bool:
    """Whether two faults leave all acknowledged messages on a disk. While one copy is away the
    other has some alone, and may not lose its disk: these are the limits of two copies."""
    return not LOSE_A_DISK & {first, second} or bool(WITNESS_FAULTS.keys() & {first, second})
