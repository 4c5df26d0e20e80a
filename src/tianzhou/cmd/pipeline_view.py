"""How pipelines look in a terminal."""

import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from tianzhou.spark.pipelines import builtin, history
from tianzhou.spark.pipelines.chart import bars
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.history import Sample
from tianzhou.spark.pipelines.pipeline_file import load
from tianzhou.spark.pipelines.running import Run
from tianzhou.spark.pipelines.workplace import Workplace

WIDTH = 40


def live(running: Run) -> Group:
    """What is shown while it runs."""
    return Group(_figures(running.pipeline.name, running.samples), _charts(running.samples))


def ended(running: Run) -> Text:
    by_query = _by_query(running.samples[running.kept :])
    parts = [
        f"{name}: {sum(s.rows_in for s in found):,} in, {_rows_out(found)} out, "
        f"{len(found)} micro-batches"
        for name, found in by_query.items()
    ]
    return Text(f"{running.pipeline.name} ended. " + ("; ".join(parts) or "Nothing was there."))


def show_status(name: str, place: Workplace, samples: list[Sample]) -> None:
    console = Console()
    pid = place.runs_in()
    console.print(f"{name}: " + (f"runs in process {pid}" if pid else "does not run"))
    if not samples:
        console.print(f"No micro-batch yet ({place.path})")
        return
    console.print(_figures(name, samples), _charts(samples))


def _rows_out(samples: list[Sample]) -> str:
    known = [sample.rows_out for sample in samples if sample.rows_out is not None]
    return f"{sum(known):,}" if known else "?"


def _by_query(samples: list[Sample]) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.query, []).append(sample)
    return found


def _figures(name: str, samples: list[Sample]) -> Table:
    table = Table(title=name, title_justify="left", box=None, pad_edge=False)
    table.add_column("query")
    for title in ("batches", "rows in", "rows out", "rows/s", "behind", "batch", "latency"):
        table.add_column(title, justify="right")
    for query, found in sorted(_by_query(samples).items(), reverse=True):
        last = found[-1]
        latency = "" if last.latency_ms is None else f"{last.latency_ms / 1000:.1f} s"
        table.add_row(
            query, f"{last.batch + 1:,}", f"{sum(s.rows_in for s in found):,}",
            _rows_out(found), f"{last.rows_per_s:,.0f}", f"{last.behind:,}",
            f"{last.batch_ms:,} ms", latency,
        )  # fmt: skip
    return table


def _charts(samples: list[Sample]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    first = [s for s in samples if s.query == samples[0].query] if samples else []
    for title, values in (
        ("rows/s", [s.rows_per_s for s in first]),
        ("behind", [float(s.behind) for s in first]),
        ("latency", [(s.latency_ms or 0) / 1000 for s in first]),
    ):
        most = max(values, default=0.0)
        table.add_row(title, Text(bars(values, WIDTH), style="cyan"), f"max {most:,.1f}")
    return table


def facts(name: str, place: Workplace, samples: list[Sample]) -> dict[str, Any]:
    """What `status --json` prints."""
    return {
        "name": name,
        "process": place.runs_in(),
        "checkpoint": place.path,
        "queries": {
            query: {
                "batches": found[-1].batch + 1,
                "rowsIn": sum(s.rows_in for s in found),
                "rowsOut": sum(s.rows_out or 0 for s in found),
                "behind": found[-1].behind,
                "batchMs": found[-1].batch_ms,
                "latencyMs": found[-1].latency_ms,
                "endedMsAgo": int(time.time() * 1000) - found[-1].time_ms,
            }
            for query, found in _by_query(samples).items()
        },
    }


def show_list(directory: Path) -> None:
    console = Console()
    table = Table(box=None, pad_edge=False)
    for title in ("pipeline", "name", "state", "description"):
        table.add_column(title)
    for file in sorted([*directory.glob("*.yml"), *directory.glob("*.yaml")]):
        try:
            found = load(file)
        except PipelineError as error:
            table.add_row(file.name, "", "not valid", str(error).partition(": ")[2])
            continue
        place = Workplace(found, directory)
        samples = history.load(place)
        state = "runs" if place.runs_in() else f"{len(samples)} batches" if samples else "new"
        table.add_row(file.name, found.name, state, found.description)
    for name in builtin.NAMES:
        about = builtin.find(name)[0].description
        table.add_row(name, name, "comes with the package", about)
    console.print(table)
