"""`tianzhou pipeline`: declare, validate, run, resume and monitor pipelines."""

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tianzhou.admin.commands import session
from tianzhou.admin.commands.session import Session, Teller
from tianzhou.base.errors import UsageError
from tianzhou.base.nameserver_addresses import NAMESERVER_VARIABLES

if TYPE_CHECKING:
    from tianzhou.spark.pipelines.model import Pipeline

nameserver = click.option(
    "-n",
    "--nameserver",
    envvar=NAMESERVER_VARIABLES,
    show_envvar=True,
    metavar="HOST:PORT",
    help="Override the NameServer of the file.",
)
changes = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the file, e.g. source.tags=paid or sinks.0.path=lake.",
)
what = click.argument("what", metavar="FILE|NAME")
master = click.option(
    "--master",
    metavar="URL",
    help="Run on this Spark master: local[*] (default), spark://HOST:PORT, yarn, k8s://..., or "
    "sc://HOST:PORT for Spark Connect. Under spark-submit its master is the default.",
)


@click.group()
def pipeline() -> None:
    """Declare, validate, run, resume and monitor Spark pipelines."""


@pipeline.command()
@click.argument("name", default="archive")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@session.telling
def init(teller: Teller, name: str, file: Path | None) -> None:
    """Write a template: archive, aggregate, order-check or trace."""
    from tianzhou.spark.pipelines import builtin

    file = file or Path(f"{name}.yml")
    text = builtin.template(name)
    if file.exists():
        raise UsageError(f"{file} exists; choose another file")
    file.write_text(text, "utf-8")
    said = f"Wrote {file}. Next: tianzhou pipeline run {file} -n host:port"
    teller.done({"name": name, "file": str(file)}, said)


@pipeline.command()
@what
@nameserver
@changes
@click.option(
    "--plan", "with_plan", is_flag=True, help="Also plan it with Spark, against the real topics."
)
@session.telling
def validate(
    teller: Teller, *, what: str, nameserver: str | None, changes: tuple[str, ...], with_plan: bool
) -> None:
    """Validate the keys, values and expressions of a file. Reads no messages."""
    declared, directory = _find(what, nameserver, changes)
    if with_plan:
        from tianzhou.admin.commands import pipeline_run
        from tianzhou.spark.pipelines import builtin

        with builtin.located(what):
            pipeline_run.plan(declared, directory)
    teller.done({"name": declared.name, "planned": with_plan}, f"{what}: {declared.name} is valid")


@pipeline.command()
@what
@nameserver
@changes
@master
@click.option("--topic", help="Override source.topic.")
@click.option("--output", metavar="PATH", help="Override the path of the first sink.")
@click.option("--once", is_flag=True, help="Process the available messages, then stop.")
@click.option("--quiet", is_flag=True, help="Show statistics only at the end.")
@session.telling
def run(
    teller: Teller,
    *,
    what: str,
    nameserver: str | None,
    changes: tuple[str, ...],
    master: str | None,
    topic: str | None,
    output: str | None,
    once: bool,
    quiet: bool,
) -> None:
    """Run a pipeline until Ctrl-C; the next run resumes where this one stopped."""
    given: dict[str, Any] = {}
    if topic is not None:
        given["source.topic"] = topic
    if output is not None:
        given["sinks.0.path"] = output
    if once:
        given["trigger"] = {"availableNow": True}
    declared, directory = _find(what, nameserver, changes, given)
    from tianzhou.admin.commands import pipeline_run
    from tianzhou.spark.pipelines import builtin

    with builtin.located(what):
        pipeline_run.run(declared, directory, master=master, quiet=quiet)
    if teller.as_json:
        teller.done(_facts(declared, directory), "")


@pipeline.command()
@what
@changes
@click.option(
    "--png",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw throughput, lag and latency to FILE.",
)
@session.looking
def status(teller: Teller, what: str, changes: tuple[str, ...], png: Path | None) -> None:
    """Show the progress and statistics of a pipeline, running or not."""
    declared, directory = _find(what, None, changes)
    from tianzhou.admin.commands import pipeline_view
    from tianzhou.spark.pipelines import history
    from tianzhou.spark.pipelines.pipeline_directory import PipelineDirectory

    place = PipelineDirectory(declared, directory)
    if png is not None:
        from tianzhou.spark.pipelines.chart import draw

        samples = history.load(place)
        draw(samples, title=declared.name).savefig(png)
        said = f"Drew {len(samples)} micro-batches into {png}"
        teller.done({"name": declared.name, "batches": len(samples), "png": str(png)}, said)
        return
    teller.show(
        lambda: _facts(declared, directory),
        lambda _: pipeline_view.status(declared.name, place, history.load(place)),
    )


def _facts(declared: "Pipeline", directory: Path) -> dict[str, Any]:
    from tianzhou.admin.commands import pipeline_view
    from tianzhou.spark.pipelines import history
    from tianzhou.spark.pipelines.pipeline_directory import PipelineDirectory

    place = PipelineDirectory(declared, directory)
    return pipeline_view.facts(declared.name, place, history.load(place))


@pipeline.command("list")
@click.argument(
    "directory", type=click.Path(exists=True, file_okay=False, path_type=Path), default="."
)
@session.looking
def list_(teller: Teller, directory: Path) -> None:
    """List the pipelines of a directory and the built-in ones."""
    from tianzhou.admin.commands import pipeline_view

    teller.show(lambda: pipeline_view.rows(directory), pipeline_view.listed)


@pipeline.command()
@what
@changes
@session.force
@session.telling
def reset(teller: Teller, what: str, changes: tuple[str, ...], yes: bool) -> None:
    """Delete the progress of a pipeline; the next run starts over. Written rows stay."""
    declared, directory = _find(what, None, changes)
    from tianzhou.spark.pipelines.pipeline_directory import PipelineDirectory

    place = PipelineDirectory(declared, directory)
    teller.confirm(
        f"Delete the progress of {declared.name} ({place.path})? The next run reads its source "
        "from the beginning and writes existing rows again; only a table that is a plain copy of "
        "topics resumes after its last row",
        yes=yes,
    )
    place.reset()
    teller.done(
        {"name": declared.name, "checkpoint": place.path},
        f"{declared.name} starts over with the next run",
    )


@pipeline.command()
@click.argument("kind", type=click.Choice(["trace", "audit"]))
@click.option("--topic", help="Audit this topic (audit only).")
@click.option(
    "--archive", envvar="TIANZHOU_ARCHIVE", help="Include messages that only this archive has."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    default="table",
    show_default=True,
    help="Choose the output format; json (or --json) prints one object per line.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Write to this file or directory.",
)
@master
@session.asking
def report(
    session: Session,
    *,
    kind: str,
    topic: str | None,
    archive: str | None,
    form: str,
    output: Path | None,
    master: str | None,
) -> None:
    """Report on traces (trace: latencies from producer to store to consumer, per topic and group;
    audit: produced, stored and consumed messages, per producer and hour)."""
    if kind == "audit" and topic is None:
        raise UsageError("audit requires --topic")
    if form == "parquet" and output is None:
        raise UsageError("--format parquet requires --output")
    from tianzhou.admin.commands import pipeline_run

    pipeline_run.report(
        topic if kind == "audit" else None,
        nameserver=session.nameserver,
        archive=archive,
        master=master,
        form="json" if session.as_json else form,
        output=output,
    )


def _find(
    what: str,
    nameserver: str | None,
    changes: tuple[str, ...],
    given: Mapping[str, Any] | None = None,
) -> "tuple[Pipeline, Path]":
    from tianzhou.spark.pipelines import builtin
    from tianzhou.spark.pipelines.places import read_value

    all_given: dict[str, Any] = {}
    if nameserver is not None:
        all_given["source.nameserver"] = nameserver
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise UsageError(f"invalid --set {change!r}; use KEY=VALUE")
        all_given[key] = read_value(value)
    return builtin.find(what, {**all_given, **(given or {})})


def stop_on_signals() -> "list[int]":
    """Collect SIGINT and SIGTERM; the pipeline stops at the first one."""
    came: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: came.append(number))
    return came
