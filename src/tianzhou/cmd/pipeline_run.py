"""Run a pipeline in a terminal: a session, a live view, an orderly stop."""

import sys
from pathlib import Path

from rich.console import Console
from rich.live import Live

from tianzhou.cmd import pipeline_view
from tianzhou.cmd.pipeline import stop_on_signals
from tianzhou.cmd.spark_session import SHORT, session
from tianzhou.spark.pipelines import reading
from tianzhou.spark.pipelines.model import Pipeline
from tianzhou.spark.pipelines.pipeline_directory import PipelineDirectory
from tianzhou.spark.pipelines.pipeline_file import as_text
from tianzhou.spark.pipelines.running import PipelineRun


def run(pipeline: Pipeline, directory: Path, *, master: str | None, quiet: bool) -> None:
    """Run until it ends or a signal stops it. Raises PipelineError if a query fails."""
    # Check before Spark starts, which takes seconds.
    reading.check_source(reading.checked_options(pipeline))
    place = PipelineDirectory(pipeline, directory)
    console = Console(stderr=True)
    with place.locked():
        console.print(f"{pipeline.name}: starting Spark, log in {_log(place)}")
        with session(
            f"tianzhou-{pipeline.name}", master=master, config=as_text(pipeline.spark),
            log=_log(place),
        ) as spark:  # fmt: skip
            came = stop_on_signals()
            running = PipelineRun(spark, pipeline, directory)
            running.start()
            console.print(f"{pipeline.name}: running; press Ctrl-C to stop")
            try:
                _watch(running, console, came, quiet=quiet)
            finally:
                running.stop()
    console.print(pipeline_view.ended(running))


def _watch(running: PipelineRun, console: Console, came: list[int], *, quiet: bool) -> None:
    if quiet or not sys.stderr.isatty():
        running.watch(lambda: None, until=lambda: bool(came))
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        running.watch(lambda: live.update(pipeline_view.live(running)), until=lambda: bool(came))
        if came:
            live.update("stopping after the current micro-batches")


def plan(pipeline: Pipeline, directory: Path) -> None:
    """Do everything that a run does before it reads messages."""
    place = PipelineDirectory(pipeline, directory)
    with session("tianzhou-plan", master="local[1]", config={**SHORT, **as_text(pipeline.spark)},
                 log=_log(place)) as spark:  # fmt: skip
        PipelineRun(spark, pipeline, directory).plan()


def _log(place: PipelineDirectory) -> Path:
    """Next to the checkpoint, or in the working directory if the checkpoint is remote."""
    return Path(place.path) / "spark.log" if place.is_local else Path.cwd() / "spark.log"
