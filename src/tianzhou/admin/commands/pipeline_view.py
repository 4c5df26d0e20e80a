"""Tables of `tianzhou pipeline`."""

import time
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tianzhou.spark.pipelines import builtin, history
from tianzhou.spark.pipelines.chart import bars
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.history import Sample
from tianzhou.spark.pipelines.pipeline_directory import PipelineDirectory
from tianzhou.spark.pipelines.pipeline_file import load
from tianzhou.spark.pipelines.running import PipelineRun

WIDTH = 40


def live(running: PipelineRun) -> Group:
    """The live view of a running pipeline."""
    return Group(_figures(running.pipeline.name, running.samples), _charts(running.samples))


def ended(running: PipelineRun) -> Text:
    by_query = _by_query(running.samples[running.kept :])
    parts = [
        f"{name}: {sum(s.rows_in for s in found):,} in, {_rows_out(found)} out, "
        f"{len(found)} micro-batches"
        for name, found in by_query.items()
    ]
    return Text(f"{running.pipeline.name} ended. " + ("; ".join(parts) or "No messages."))


def status(name: str, place: PipelineDirectory, samples: list[Sample]) -> Group:
    pid = place.runs_in()
    state = Text(f"{name}: " + (f"running in process {pid}" if pid else "not running"))
    if not samples:
        return Group(state, Text(f"No micro-batch yet ({place.path})"))
    return Group(state, _figures(name, samples), _charts(samples))


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
            query,
            f"{last.batch + 1:,}",
            f"{sum(s.rows_in for s in found):,}",
            _rows_out(found),
            f"{last.rows_per_s:,.0f}",
            f"{last.behind:,}",
            f"{last.batch_ms:,} ms",
            latency,
        )
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


def facts(name: str, place: PipelineDirectory, samples: list[Sample]) -> dict[str, Any]:
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


def rows(directory: Path) -> list[dict[str, Any]]:
    """What `list --json` prints: pipelines of a directory, then those of the package."""
    files = sorted([*directory.glob("*.yml"), *directory.glob("*.yaml")])
    packaged = [(name, builtin.find(name)[0].description) for name in builtin.NAMES]
    return [_row(file, directory) for file in files] + [
        _told(name, name=name, state="built-in", about=about) for name, about in packaged
    ]


def _row(file: Path, directory: Path) -> dict[str, Any]:
    try:
        found = load(file)
    except PipelineError as error:
        return _told(file.name, name="", state="invalid", about=str(error).partition(": ")[2])
    place = PipelineDirectory(found, directory)
    samples = history.load(place)
    state = "running" if place.runs_in() else f"{len(samples)} batches" if samples else "new"
    return _told(file.name, name=found.name, state=state, about=found.description)


def _told(pipeline: str, *, name: str, state: str, about: str) -> dict[str, Any]:
    return {"pipeline": pipeline, "name": name, "state": state, "description": about}


def listed(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    titles = ("pipeline", "name", "state", "description")
    for title in titles:
        table.add_column(title)
    for row in rows:
        table.add_row(*(Text(row[title]) for title in titles))
    return table
