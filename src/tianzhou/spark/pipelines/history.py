"""Metrics of micro-batches, from Spark's progress reports."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from tianzhou.spark import plan
from tianzhou.spark.pipelines.pipeline_directory import PipelineDirectory

SAMPLES_KEPT: Final = 2_000
"""For all queries together: 90 minutes with a micro-batch every three seconds."""

IN: Final = "tianzhou_in"
OUT: Final = "tianzhou_out"
"""Names of the observed metrics in which queries count their rows."""


class Sample(msgspec.Struct, frozen=True):
    """Metrics of one micro-batch."""

    query: str
    batch: int
    time_ms: int
    """When it ended."""
    rows_in: int
    rows_out: int | None
    """None with Spark Connect, which does not report it."""
    behind: int
    """Messages that are stored but not yet read."""
    batch_ms: int
    latency_ms: int | None
    """From storing the oldest message of the micro-batch to its end."""

    @property
    def rows_per_s(self) -> float:
        return self.rows_in * 1000 / self.batch_ms if self.batch_ms else 0.0


def sample_of(query: str, progress: Mapping[str, Any]) -> Sample:
    """Convert a progress report. Missing values become 0."""
    batch_ms = int(progress.get("durationMs", {}).get("triggerExecution", 0))
    begun = datetime.fromisoformat(str(progress["timestamp"])).timestamp()
    end_ms = int(begun * 1000) + batch_ms
    observed: dict[str, dict[str, Any]] = progress.get("observedMetrics") or {}
    nothing: dict[str, Any] = {}
    oldest = observed.get(IN, nothing).get("oldest_ms")
    return Sample(
        query=query,
        batch=int(progress["batchId"]),
        time_ms=end_ms,
        rows_in=_rows_in(progress),
        rows_out=observed.get(OUT, nothing).get("rows"),
        behind=sum(_behind(source) for source in progress.get("sources", ())),
        batch_ms=batch_ms,
        latency_ms=None if oldest is None else end_ms - int(oldest),
    )


def _rows_in(progress: Mapping[str, Any]) -> int:
    """Return the input rows; Spark Connect omits the sum."""
    given = progress.get("numInputRows")
    if given is not None:
        return int(given)
    return sum(int(source.get("numInputRows") or 0) for source in progress.get("sources", ()))


def _behind(source: Mapping[str, Any]) -> int:
    end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    return plan.row_count(end, latest)


def _offsets(value: Any) -> plan.Offsets:
    table = json.loads(value) if isinstance(value, str) else value
    return plan.from_json(table) if table else {}


def load(place: PipelineDirectory) -> list[Sample]:
    return msgspec.json.decode(place.history(), type=list[Sample])


def save(place: PipelineDirectory, samples: Iterable[Sample]) -> None:
    place.keep_history(msgspec.json.encode(list(samples)[-SAMPLES_KEPT:]))
