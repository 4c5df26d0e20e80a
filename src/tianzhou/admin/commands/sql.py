"""`tianzhou sql`: query topics and their archive, as one table each."""

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tianzhou.admin.commands.failures import not_found
from tianzhou.admin.commands.pipeline import master
from tianzhou.admin.commands.session import DEFAULT_NAMESERVER, as_json
from tianzhou.base.errors import UsageError
from tianzhou.base.nameserver_addresses import NAMESERVER_VARIABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@click.command()
@click.argument("text", metavar="SELECT")
@click.option(
    "-n",
    "--nameserver",
    envvar=NAMESERVER_VARIABLES,
    show_envvar=True,
    metavar="HOST:PORT",
    help=f"Use this NameServer; default: {DEFAULT_NAMESERVER}, or none with --archive.",
)
@click.option(
    "--archive",
    envvar="TIANZHOU_ARCHIVE",
    metavar="PATH",
    show_envvar=True,
    help="Also query this table of `tianzhou pipeline run archive`.",
)
@click.option(
    "--bodies",
    type=click.Choice(["auto", "json", "text", "raw"]),
    default="auto",
    show_default=True,
    help="Set the type of the column body; auto samples some messages.",
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
@click.option(
    "--rows",
    default=100,
    show_default=True,
    metavar="COUNT",
    help="Show at most COUNT rows in a table.",
)
@master
@as_json
def sql(
    *,
    text: str,
    nameserver: str | None,
    archive: str | None,
    bodies: Any,
    form: str,
    output: Path | None,
    rows: int,
    master: str | None,
    as_json: bool,
) -> None:
    """Run a SELECT over topics.

    A topic is a table of its messages: those on the broker and, with --archive, also expired ones.
    Its name may be followed by TIMESTAMP AS OF '2026-11-16T08:00:00Z', or by OFFSET BETWEEN 100 AND
    200 (of each queue).
    """
    form = "json" if as_json else form
    if nameserver is None and archive is None:
        nameserver = DEFAULT_NAMESERVER
    if form == "parquet" and output is None:
        raise UsageError("--format parquet requires --output")
    if output is not None and output.exists():
        raise UsageError(f"{output} exists; choose another file")
    from tianzhou.admin.commands.spark_session import SHORT, session, spark_errors
    from tianzhou.spark.tables.errors import UnknownTable
    from tianzhou.spark.tables.history_table import Cluster, topics_of
    from tianzhou.spark.tables.query import query_once

    cluster = Cluster({"nameserver": nameserver} if nameserver else {}, archive)
    with spark_errors():
        topics_of(cluster)  # fail before Spark starts, which takes seconds
    log = Path(tempfile.gettempdir()) / "tianzhou-sql.log"
    with session("tianzhou-sql", master=master, config=SHORT, log=log) as spark:
        try:
            found = query_once(spark, text, cluster, bodies=bodies)
        except UnknownTable as error:
            raise not_found(str(error)) from error
        show(found, form, output, rows_max=rows)


def show(found: "DataFrame", form: str, output: Path | None, *, rows_max: int) -> None:
    from tianzhou.admin.commands import sql_view

    if form == "table":
        sql_view.table(found, rows_max)
    elif form == "parquet":
        assert output is not None
        found.write.mode("error").parquet(str(output))
        click.echo(f"Wrote {output}", err=True)
    elif output is not None:
        with output.open("x", encoding="utf-8", newline="") as file:
            sql_view.lines(found, form, file)
        click.echo(f"Wrote {output}", err=True)
    else:
        sql_view.lines(found, form, sys.stdout)
