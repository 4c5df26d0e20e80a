"""`make chaos`: run all scenarios, several at a time, with a live display and a final table.

    python -m chaos.run_chaos                                  all faults, and pairs of the seed
    python -m chaos.run_chaos --only kill-slave/sf-sr --seed 7  repeat one scenario
    python -m chaos.run_chaos --only cut                        scenarios with this fault

The files of a failed scenario are kept in build/chaos. Every outcome is a line in
build/chaos.jsonl.
"""

import argparse
import contextlib
import json
import logging
import multiprocessing
import shutil
import sys
import traceback
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from chaos.cpp_load import cpp_clients
from clients.cpp_client import installed
from tianzhou.testing.chaos.administering import administrators
from tianzhou.testing.chaos.cluster import CannotMount
from tianzhou.testing.chaos.history import Outcome
from tianzhou.testing.chaos.load import Foreigners, together
from tianzhou.testing.chaos.scenarios import Report, Scenario, percentile, play_of
from tianzhou.testing.chaos.table import SCENARIOS, drawn

PLACE: Final = Path("build/chaos")
LEDGER: Final = Path("build/chaos.jsonl")

News = tuple[str, str]
"""A scenario, and its current step."""
_news: "list[SimpleQueue[News]]" = []
"""In a worker: the queue for progress reports."""


@dataclass(frozen=True, slots=True)
class Done:
    name: str
    report: Report | None
    failure: str = ""
    skipped: str = ""
    """Why this machine cannot run the scenario."""


def _begin(news: "SimpleQueue[News]") -> None:
    _news.append(news)


@contextlib.contextmanager
def client_log(path: Path) -> Generator[None]:
    """Write warnings of the load's clients to a file: under faults there are many."""
    handler, log = logging.FileHandler(path, encoding="utf-8"), logging.getLogger("tianzhou")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()


def clients_of(python: Path, scenario: Scenario, seed: int) -> Foreigners:
    """The C++ client, and administrators wherever the members of one group must agree."""
    cpp = cpp_clients(python, scenario)
    return together(cpp, administrators(seed)) if scenario.can_be_administered else cpp


def play(name: str, seed: int, python: Path) -> Done:
    """Run a scenario in a worker. Any failure is part of the result."""
    scenario = SCENARIOS[name]
    place = PLACE / f"{name.replace('/', '-')}-{seed}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    playing = play_of(scenario, place.resolve(), seed, clients_of(python, scenario, seed))
    playing.tell = lambda what: _news[0].put((name, what))
    try:
        with client_log(place / "clients.log"):
            report = playing.run()
    except CannotMount as error:
        return Done(name, None, skipped=f"a small disk can't be mounted: {error}")
    except Exception as error:
        return Done(name, None, "".join(traceback.format_exception(error)))
    shutil.rmtree(place)
    return Done(name, report)


class Display:
    """Shows what each scenario does, and how many are done."""

    def __init__(self, console: Console, count: int) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[phase]}"),
            console=console,
        )
        self._all = self.progress.add_task("scenarios", total=count, phase="")
        self._rows: dict[str, TaskID] = {}

    def tell(self, name: str, what: str) -> None:
        if name not in self._rows:
            self._rows[name] = self.progress.add_task(f"  {name}", total=1, phase=what)
        self.progress.update(self._rows[name], phase=what)

    def done(self, done: Done) -> None:
        self.progress.advance(self._all)
        if done.name in self._rows:
            self.progress.remove_task(self._rows.pop(done.name))
        word = "[red]FAILED[/]" if done.failure else "[green]kept[/]"
        if done.skipped:
            word = "[yellow]skipped[/]"
        self.progress.console.print(f"{word} {done.name} {done.skipped}")


def run(names: Sequence[str], seed: int, jobs: int, console: Console) -> list[Done]:
    python, found = installed(), list[Done]()
    context = multiprocessing.get_context("spawn")
    news: SimpleQueue[News] = context.SimpleQueue()
    display = Display(console, len(names))
    with (
        display.progress,
        ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(news,)) as pool,
    ):
        running: list[Future[Done]] = [pool.submit(play, name, seed, python) for name in names]
        for name, future in zip(names, running, strict=True):
            # A worker that died raises its error from `result` below.
            future.add_done_callback(lambda _, name=name: news.put(("", name)))
        while len(found) < len(names):
            name, what = news.get()
            if name:
                display.tell(name, what)
                continue
            done = running[names.index(what)].result()
            found.append(done)
            display.done(done)
            _note(done, seed)
    return found


def _note(done: Done, seed: int) -> None:
    row: dict[str, object] = {
        "scenario": done.name,
        "seed": seed,
        "failure": done.failure,
        "skipped": done.skipped,
    }
    if done.report is not None:
        row |= {
            "seconds": round(done.report.seconds, 2),
            "silence_s": round(done.report.silence_s, 3),
            "recovery_s": round(done.report.recovery_s, 3),
            "level_s": round(done.report.level_s, 3),
            "deliveries": done.report.deliveries,
            "elections": done.report.elections,
            "failovers_s": [round(seconds, 3) for seconds in done.report.failovers_s],
            **{outcome.value: count for outcome, count in done.report.counts.items()},
            **{kind.value: count for kind, count in done.report.kinds.items()},
        }
    LEDGER.parent.mkdir(parents=True, exist_ok=True)
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(json.dumps(row) + "\n")


def summary(found: Sequence[Done]) -> Table:
    table = Table(title="messages, and seconds", padding=(0, 0))
    table.add_column("scenario", no_wrap=True)
    for title in ("stored", "unknown", "refused", "given", "silent", "back", "level", "whole"):
        table.add_column(title, justify="right", no_wrap=True)
    for done in sorted(found, key=lambda done: (not done.failure, done.name)):
        report = done.report
        if report is None:
            word = "[yellow]skipped[/]" if done.skipped else "[red]FAILED[/]"
            table.add_row(done.name, word)
            continue
        counts = [f"{report.counts[outcome]:,}" for outcome in Outcome]
        times = (report.silence_s, report.recovery_s, report.level_s, report.seconds)
        table.add_row(
            done.name, *counts, f"{report.deliveries:,}", *(f"{time:.2f}" for time in times)
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Clusters of processes under faults")
    parser.add_argument("--only", default="", help="run only scenarios whose names start with this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    names = drawn(options.seed)
    if options.only:
        names = [name for name in SCENARIOS if name.startswith(options.only)]
    if options.only in SCENARIOS:
        names = [options.only]
    console = Console()
    if not names:
        sys.exit(f"no scenario starts with {options.only!r}; there are: {', '.join(SCENARIOS)}")
    found = run(names, options.seed, options.jobs, console)
    console.print(summary(found))
    failed = [done for done in found if done.failure]
    for done in failed:
        console.rule(done.name)
        console.print(done.failure, markup=False, highlight=False)
        console.print(f"replay: make chaos ONLY={done.name} SEED={options.seed}", style="bold")
    acknowledged = sum(done.report.counts[Outcome.OK] for done in found if done.report)
    waits = [seconds for done in found if done.report for seconds in done.report.failovers_s]
    if waits:
        kills = sum(SCENARIOS[done.name].rounds for done in found if done.report)
        console.print(
            f"{kills} leaders killed; until a client's next acknowledged send: median "
            f"{percentile(waits, 0.5):.2f} s, 99th percentile {percentile(waits, 0.99):.2f} s, "
            f"longest {max(waits):.2f} s"
        )
    played = [done for done in found if not done.skipped]
    console.print(
        f"{len(played) - len(failed)} of {len(played)} scenarios kept the guarantees, "
        f"{len(found) - len(played)} skipped, {acknowledged:,} acknowledged messages"
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
