"""`tianzhou dead-letters`: what groups have given up, looked at, repaired, and sent again."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tianzhou.base.errors import UsageError

if TYPE_CHECKING:
    from tianzhou.spark.tables.history_table import Cluster

where_ = click.option(
    "--where", default="true", metavar="SQL",
    help="Only these: an expression over body, tags, keys, originTopic, storeTimestamp, ...",
)  # fmt: skip
nameserver = click.option(
    "-n", "--nameserver", envvar="TIANZHOU_NAMESERVER", required=True,
    help="host:port, or TIANZHOU_NAMESERVER.",
)  # fmt: skip
archive = click.option(
    "--archive", envvar="TIANZHOU_ARCHIVE", help="Also those that only an archive has."
)


@click.group("dead-letters")
def dead_letters() -> None:
    """Look at what consumer groups have given up, repair it, and send it again."""


@dead_letters.command("list")
@nameserver
def list_(nameserver: str) -> None:
    """Groups that have dead letters."""
    from tianzhou.cmd.spark_session import spark_errors
    from tianzhou.spark.options import read_options_of
    from tianzhou.spark.pipelines.dead_letters import boxes

    with spark_errors():
        options = read_options_of({"nameserver": nameserver, "topic": "TBW102"}, is_stream=False)
        found = boxes(options)
    for group, count in found.items():
        click.echo(f"{group}: {count:,} dead letters")
    if not found:
        click.echo("No group has dead letters")


@dead_letters.command()
@click.argument("group")
@nameserver
@archive
@where_
@click.option("--rows", default=20, show_default=True, help="At most so many.")
def show(group: str, nameserver: str, archive: str | None, where: str, rows: int) -> None:
    """Show dead letters of a group, the newest first."""
    from tianzhou.cmd import sql_view
    from tianzhou.cmd.spark_session import SHORT, session
    from tianzhou.spark.pipelines.dead_letters import Wish, chosen, letters

    with session("tianzhou-dead-letters", master="local[2]", config=SHORT, log=_log()) as spark:
        found = chosen(letters(spark, group, _cluster(nameserver, archive)), Wish(group, where))
        newest = found.orderBy("storeTimestamp", ascending=False)
        columns = ("origin", "originTopic", "tags", "keys", "storeTimestamp", "body")
        sql_view.table(newest.select(*columns), rows)


@dead_letters.command()
@click.argument("group")
@nameserver
@archive
@where_
@click.option(
    "--set", "changes", multiple=True, metavar="COLUMN=SQL",
    help="Repair: body, tags or keys become this expression.",
)  # fmt: skip
@click.option("--to", default="", help="Another topic than where they came from.")
@click.option("--rate", type=float, help="Messages a second, at most.")
@click.option("--again", is_flag=True, help="Also those that were replayed before.")
@click.option(
    "--record", default="dead-letter-replays", show_default=True,
    help="Directory with the record of replays; a replay that was cut off goes on.",
)  # fmt: skip
def replay(
    group: str,
    nameserver: str,
    archive: str | None,
    where: str,
    changes: tuple[str, ...],
    to: str,
    rate: float | None,
    again: bool,
    record: str,
) -> None:
    """Send dead letters of a group again, where they came from, each once."""
    from tianzhou.cmd.spark_session import SHORT, session
    from tianzhou.spark.pipelines.dead_letters import Wish
    from tianzhou.spark.pipelines.dead_letters import replay as do
    from tianzhou.spark.pipelines.replays import Replays

    pairs = [change.partition("=") for change in changes]
    if not all(equals for _, equals, _ in pairs):
        raise UsageError("--set: write COLUMN=SQL, such as body=\"replace(body, 'a', 'b')\"")
    wish = Wish(
        group, where, {name.strip(): text.strip() for name, _, text in pairs}, to, rate, again
    )
    with session("tianzhou-dead-letters", master="local[2]", config=SHORT, log=_log()) as spark:
        place = Replays(str(Path(record).resolve()) if "://" not in record else record)
        done = do(spark, wish, _cluster(nameserver, archive), place)
    click.echo(f"Replay {done.id}: {done.sent:,} dead letters of {group} sent; record in {record}")


def _cluster(nameserver: str, archive: str | None) -> "Cluster":
    from tianzhou.spark.tables.history_table import Cluster

    return Cluster({"nameserver": nameserver}, archive)


def _log() -> Path:
    return Path(tempfile.gettempdir()) / "tianzhou-dead-letters.log"
