"""Running seeds: one, many, or for a given time.

    python -m tianzhou.testing.sim.raft_run --seed 81623 --trace     one seed again, with a trace
    python -m tianzhou.testing.sim.raft_run --minutes 30             seeds that were not yet run

The second keeps a ledger of seeds and simulated hours in build/raft-ledger.jsonl.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final, NamedTuple

from tianzhou.base.errors import UsageError
from tianzhou.testing.sim.raft_faults import Faults
from tianzhou.testing.sim.raft_knobs import US_PER_S, draw
from tianzhou.testing.sim.raft_liveness import Liveness
from tianzhou.testing.sim.raft_world import Trace, World

FAULTS_S: Final = 45
"""Duration of the fault phase. With the phase after it a seed takes about a minute."""
ON_THE_WIRE: Final = 10
"""One of this many seeds encodes its messages to bytes and decodes them."""
LEDGER: Final = Path("build/raft-ledger.jsonl")


class Outcome(NamedTuple):
    seed: int
    simulated_us: int
    digest: int
    counts: Counter[str]


class Replayable:
    """Add to raised errors how to reproduce them."""

    def __init__(
        self, seed: int, skip: frozenset[int], *, first_faults: bool, witness: bool
    ) -> None:
        more = f" --skip {','.join(map(str, sorted(skip)))}" if skip else ""
        more += " --first-faults" if first_faults else ""
        more += " --witness" if witness else ""
        self._command = f"python -m tianzhou.testing.sim.raft_run --seed {seed}{more} --trace"

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"replay: {self._command}")


def run_seed(
    seed: int,
    trace: Trace | None = None,
    *,
    skip: frozenset[int] = frozenset(),
    first_faults: bool = False,
    witness: bool = False,
) -> Outcome:
    """Faults, then peace; raises if an invariant breaks."""
    with Replayable(seed, skip, first_faults=first_faults, witness=witness):
        dice = Random(seed)
        world = World(draw(dice, first_faults=first_faults, witness=witness), dice, trace)
        world.on_the_wire = seed % ON_THE_WIRE == 0
        world.say(f"{world.knobs}")
        Clients(world)
        faults = Faults(world, skip)
        world.run(FAULTS_S * US_PER_S)
        Liveness(world, faults).check()
    counts = Counter(world.counts)
    counts += Counter(
        events=world.timeline.events, messages=world.network.sent, faults=faults.struck
    )
    return Outcome(seed, world.now, world.timeline.digest, counts)


def shrink(seed: int) -> frozenset[int]:
    """Leave out as many faults as possible while the same violation remains."""
    complaint = _complaint(seed, frozenset())
    if not complaint:
        raise UsageError(f"seed {seed} passes: there is nothing to leave out")
    skip, size = frozenset[int](), 64
    while size:
        for first in range(1, 1000, size):
            more = skip | set(range(first, first + size))
            if more != skip and _complaint(seed, more) == complaint:
                skip = more
        size //= 4
    return skip


def _complaint(seed: int, skip: frozenset[int]) -> str:
    """Return what is broken, without the details."""
    try:
        run_seed(seed, skip=skip)
    except AssertionError as error:
        return str(error).split(":")[0]
    return ""


class Tally:
    """What many seeds amounted to."""

    def __init__(self) -> None:
        self.seeds = 0
        self.simulated_us = 0
        self.counts: Counter[str] = Counter()

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.simulated_us += outcome.simulated_us
        self.counts += outcome.counts

    def text(self, wall_s: float) -> str:
        hours = self.simulated_us / US_PER_S / 3600
        speed = self.simulated_us / US_PER_S / wall_s if wall_s else 0.0
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(self.counts.items()))
        return f"{self.seeds} seeds, {hours:.2f} simulated hours, {speed:.0f} x real time: {counts}"


def _next_seed() -> int:
    if not LEDGER.exists():
        return 1_000_000
    rows = [json.loads(line) for line in LEDGER.read_text(encoding="utf-8").splitlines()]
    return max(row["end"] for row in rows)


def _until(deadline: float, first: int) -> Iterator[int]:
    seed = first
    while time.monotonic() < deadline:
        yield seed
        seed += 1


def go_on(minutes: float, jobs: int) -> Tally:
    """Run new seeds on several processes, and append a line to the ledger."""
    began, first, tally = time.monotonic(), _next_seed(), Tally()
    seeds = _until(began + minutes * 60, first)
    try:
        with multiprocessing.Pool(jobs) as pool:
            for outcome in pool.imap(run_seed, _paced(seeds, tally, jobs)):
                tally.add(outcome)
    finally:
        _note(tally, first, time.monotonic() - began)
    return tally


def _note(tally: Tally, first: int, wall_s: float) -> None:
    """Record the run in the ledger, even after a failure."""
    row = {
        "first": first,
        "end": first + tally.seeds,
        "wall_s": round(wall_s, 1),
        "simulated_hours": round(tally.simulated_us / US_PER_S / 3600, 3),
        "counts": dict(sorted(tally.counts.items())),
    }
    LEDGER.parent.mkdir(parents=True, exist_ok=True)
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(json.dumps(row) + "\n")
    sys.stdout.write(tally.text(wall_s) + "\n")


def _paced(seeds: Iterator[int], tally: Tally, jobs: int) -> Iterator[int]:
    """Submit only a little more than is done: a pool queues everything it is given."""
    for given, seed in enumerate(seeds):
        while given > tally.seeds + 4 * jobs:
            time.sleep(0.01)
        yield seed


def _tell(now_us: int, what: str) -> None:
    sys.stdout.write(f"{now_us / US_PER_S:10.6f} {what}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulated Raft groups")
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--trace", action="store_true", help="tell everything that happens")
    parser.add_argument("--skip", default="", help="leave out these faults, by number")
    parser.add_argument("--first-faults", action="store_true", help="only those of the beginning")
    parser.add_argument("--witness", action="store_true", help="the group has a witness")
    parser.add_argument("--shrink", action="store_true", help="find out which faults matter")
    parser.add_argument("--minutes", type=float, default=10.0, help="run new seeds for this long")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    skip = frozenset(int(number) for number in options.skip.split(",") if number)
    if options.shrink:
        if options.seed is None:
            parser.error("--shrink needs a seed that fails: say --seed NUMBER")
        try:
            skip = shrink(options.seed)
        except UsageError as error:
            parser.exit(1, f"{error}\n")
    if options.seed is not None:
        trace = _tell if options.trace else None
        outcome = run_seed(
            options.seed,
            trace,
            skip=skip,
            first_faults=options.first_faults,
            witness=options.witness,
        )
        sys.stdout.write(f"{outcome}\n")
    else:
        go_on(options.minutes, options.jobs)


class Clients:
    """Write unique values and read them, through every member that believes it is the leader."""

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


if __name__ == "__main__":
    main()
