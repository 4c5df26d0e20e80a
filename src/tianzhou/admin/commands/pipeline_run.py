"""Run pipelines and reports in a terminal: a session, a live view, an orderly stop."""

import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.live import Live

from tianzhou.admin.commands import pipeline_view
from tianzhou.admin.commands.pipeline import stop_on_signals
from tianzhou.admin.commands.spark_session import SHORT, session
from tianzhou.admin.commands.sql import show
from tianzhou.spark.pipelines import reading, trace
from tianzhou.spark.pipelines.model import Pipeline
from tianzhou.spark.pipelines.pipeline_directory import PipelineDirectory
from tianzhou.spark.pipelines.pipeline_file import as_text
from tianzhou.spark.pipelines.running import PipelineRun
from tianzhou.spark.tables.history_table import Cluster, history
from tianzhou.wire.names import TRACE_TOPIC


def run(pipeline: Pipeline, directory: Path, *, master: str | None, quiet: bool) -> None:
    """Run until it ends or a signal stops it. Raises PipelineError if a query fails."""
    # Check before Spark starts, which takes seconds.
    reading.check_source(reading.checked_options(pipeline))
    place = PipelineDirectory(pipeline, directory)
    console = Console(stderr=True)
    with place.locked():
        console.print(f"{pipeline.name}: starting Spark, log in {_log(place)}")
        with session(
            f"tianzhou-{pipeline.name}",
            master=master,
            config=as_text(pipeline.spark),
            log=_log(place),
        ) as spark:
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
    with session(
        "tianzhou-plan",
        master="local[1]",
        config={**SHORT, **as_text(pipeline.spark)},
        log=_log(place),
    ) as spark:
        PipelineRun(spark, pipeline, directory).plan()


def _log(place: PipelineDirectory) -> Path:
    """Next to the checkpoint, or in the working directory if the checkpoint is remote."""
    return Path(place.path) / "spark.log" if place.is_local else Path.cwd() / "spark.log"


def report(
    audited: str | None,
    *,
    nameserver: str,
    archive: str | None,
    master: str | None,
    form: str,
    output: Path | None,
) -> None:
    """Audit a topic, or report the latencies of all traced messages."""
    cluster = Cluster({"nameserver": nameserver}, archive)
    log = Path(tempfile.gettempdir()) / "tianzhou-report.log"
    with session("tianzhou-report", master=master, config=SHORT, log=log) as spark:
        records = trace.records(history(spark, TRACE_TOPIC, cluster)).cache()
        if audited is None:
            found = trace.latency_report(records)
        else:
            there = trace.stored(history(spark, audited, cluster))
            made = trace.produced(records, audited)
            found = trace.audit_report(made, there, trace.consumed(records))
        show(found, form, output, rows_max=1000)
