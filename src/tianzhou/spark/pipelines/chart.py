"""Charts of a pipeline's metrics, as an image for notebooks and files, or as text."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Final

from tianzhou.base.extras import missing_extra
from tianzhou.spark.pipelines.builtin import find
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.history import Sample, load
from tianzhou.spark.pipelines.pipeline_directory import PipelineDirectory

_BARS: Final = "▁▂▃▄▅▆▇█"
_PANELS: Final[dict[str, Callable[[Sample], float]]] = {
    "rows per second": lambda sample: sample.rows_per_s,
    "messages behind": lambda sample: sample.behind,
    "latency, s": lambda sample: (sample.latency_ms or 0) / 1000,
}


def bars(values: Sequence[float], width: int) -> str:
    """Return one bar character for each of the last values."""
    shown = values[-width:]
    most = max(shown, default=0.0)
    if most <= 0:
        return _BARS[0] * len(shown)
    top = len(_BARS) - 1
    return "".join(_BARS[max(0, min(top, round(value / most * top)))] for value in shown)


def picture(what: str) -> Any:
    """Draw the metrics of a pipeline, given by file or name, for notebooks."""
    pipeline, directory = find(what)
    return draw(load(PipelineDirectory(pipeline, directory)), title=pipeline.name)


def draw(samples: Sequence[Sample], *, title: str = "") -> Any:
    """Return a matplotlib figure with rows per second, lag and latency of every query.

    Notebooks display it; `savefig` writes it to a file. Needs `pip install "tianzhou[charts]"`.
    Raises PipelineError if matplotlib is missing or there is no data.
    """
    try:
        figures = import_module("matplotlib.figure")
    except ModuleNotFoundError as error:
        raise PipelineError(missing_extra(error) or str(error)) from error
    if not samples:
        raise PipelineError("there is nothing to draw: no micro-batch has finished yet")
    figure = figures.Figure(figsize=(9, 7), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True)
    for axis, (label, value_of) in zip(axes, _PANELS.items(), strict=True):
        for query in sorted({sample.query for sample in samples}):
            found = [sample for sample in samples if sample.query == query]
            times = [datetime.fromtimestamp(sample.time_ms / 1000, UTC) for sample in found]
            axis.plot(times, [value_of(sample) for sample in found], marker=".", label=query)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.grid(visible=True, alpha=0.3)
    axes[0].legend(loc="upper left", frameon=False)
    axes[0].set_title(title)
    figure.autofmt_xdate()
    return figure
