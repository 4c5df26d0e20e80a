"""`tianzhou sql`: ask topics and their archive, as one table each."""

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tianzhou.admin.commands.failures import not_found
from tianzhou.admin.commands.session import DEFAULT_NAMESERVER, as_json
from tianzhou.base.errors import UsageError
from tianzhou.base.nameserver_addresses import NAMESERVER_VARIABLES
from tianzhou.cmd.pipeline import master

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@click.command()
@click.argument("text", metavar="SELECT")
@click.option(
    "-n", "--nameserver", envvar=NAMESERVER_VARIABLES, show_envvar=True, metavar="HOST:PORT",
    help=f"A NameServer; {DEFAULT_NAMESERVER} unless --archive is to be asked alone.",
)  # fmt: skip
@click.option(
    "--archive", envvar="TIANZHOU_ARCHIVE",
    help="The table of `tianzhou pipeline run archive`, or TIANZHOU_ARCHIVE.",
)  # fmt: skip
@click.option(
    "--bodies", type=click.Choice(["auto", "json", "text", "raw"]), default="auto",
    show_default=True, help="What the column body is; auto looks at some messages.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "json", "parquet"]), default="table",
    show_default=True, help="json, or --json, is one object for each line.",
)  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path), help="Write to this file or directory.")
@click.option("--rows", default=100, show_default=True, help="Rows of a table, at most.")
@master
@as_json
def sql(
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

    A topic is a table of its messages, those that the broker has and, with --archive, those that
    it no longer has. Behind its name may stand TIMESTAMP AS OF '2026-11-16T08:00:00Z', or OFFSET
    BETWEEN 100 AND 200 (of each queue).
    """
    form = "json" if as_json else form
    if nameserver is None and archive is None:
        nameserver = DEFAULT_NAMESERVER
    if form == "parquet" and output is None:
        raise UsageError("--format parquet needs --output")
    if output is not None and output.exists():
        raise UsageError(f"{output} is there already; name another file")
    from tianzhou.cmd.spark_session import SHORT, session, spark_errors
    from tianzhou.spark.tables.errors import UnknownTable
    from tianzhou.spark.tables.history_table import Cluster, topics_of
    from tianzhou.spark.tables.query import query_once

    cluster = Cluster({"nameserver": nameserver} if nameserver else {}, archive)
    with spark_errors():
        topics_of(cluster)  # whether anybody answers, before Spark takes its time to start
    log = Path(tempfile.gettempdir()) / "tianzhou-sql.log"
    with session("tianzhou-sql", master=master, config=SHORT, log=log) as spark:
        try:
            found = query_once(spark, text, cluster, bodies=bodies)
        except UnknownTable as error:
            raise not_found(str(error)) from error
        show(found, form, output, rows_max=rows)


def show(found: "DataFrame", form: str, output: Path | None, *, rows_max: int) -> None:
    from tianzhou.cmd import sql_view

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
