"""`tianzhou dead-letters`: inspect, edit and replay dead letters with Spark SQL."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tianzhou.admin.commands import output
from tianzhou.admin.commands.bars import progress_bar
from tianzhou.admin.commands.session import Session, asking, group_name, watched
from tianzhou.base.errors import UsageError
from tianzhou.wire.names import DEFAULT_TOPIC

if TYPE_CHECKING:
    from tianzhou.spark.tables.history_table import Cluster

where_ = click.option(
    "--where", default="true", metavar="SQL",
    help="Select by an expression over body, tags, keys, originTopic, storeTimestamp, ...",
)  # fmt: skip
archive = click.option(
    "--archive", envvar="TIANZHOU_ARCHIVE", help="Include dead letters that only this archive has."
)


@click.group("dead-letters")
def dead_letters() -> None:
    """Inspect, edit and replay dead letters with SQL, on Spark."""


@dead_letters.command("list")
@watched
def list_(session: Session) -> None:
    """List groups that have dead letters."""
    from tianzhou.cmd.spark_session import spark_errors
    from tianzhou.spark.options import read_options_of
    from tianzhou.spark.pipelines.dead_letters import dead_letter_counts

    def look() -> list[dict[str, Any]]:
        where = {"nameserver": session.nameserver, "topic": DEFAULT_TOPIC}
        with spark_errors():
            found = dead_letter_counts(read_options_of(where, is_stream=False))
        return [{"group": group, "dead_letters": count} for group, count in found.items()]

    columns = {"group": "group", "dead_letters": "dead letters"}
    none = "no group has dead letters"
    session.show(look, lambda rows: output.listing(rows, columns, none))


@dead_letters.command()
@group_name
@archive
@where_
@click.option(
    "--rows", default=20, show_default=True, metavar="COUNT", help="Show at most COUNT rows."
)
@asking
def show(session: Session, group: str, archive: str | None, where: str, rows: int) -> None:
    """Show dead letters of a group, the newest first."""
    from tianzhou.cmd import spark_session, sql_view
    from tianzhou.spark.pipelines.dead_letters import ReplayRequest, chosen, letters

    with spark_session.session(
        "tianzhou-dead-letters", master="local[2]", config=spark_session.SHORT, log=_log()
    ) as spark:
        all_of_them = letters(spark, group, _cluster(session.nameserver, archive))
        asked = ReplayRequest(group, where)
        newest = chosen(all_of_them, asked).orderBy("storeTimestamp", ascending=False)
        shown = newest.select("origin", "originTopic", "tags", "keys", "storeTimestamp", "body")
        if session.as_json:
            output.echo_json([sql_view.plain(row) for row in shown.limit(rows).collect()])
        else:
            sql_view.table(shown, rows)


@dead_letters.command()
@group_name
@archive
@where_
@click.option(
    "--set", "changes", multiple=True, metavar="COLUMN=SQL",
    help="Set body, tags or keys to this expression before the replay; repeatable.",
)  # fmt: skip
@click.option(
    "--to", default="", metavar="TOPIC", help="Send to TOPIC instead of the original topic."
)
@click.option("--rate", type=float, metavar="RATE", help="Send at most RATE messages per second.")
@click.option("--again", is_flag=True, help="Include dead letters that were replayed before.")
@click.option(
    "--record", default="dead-letter-replays", show_default=True,
    metavar="DIRECTORY", help="Record replays in DIRECTORY, so that an interrupted one resumes.",
)  # fmt: skip
@asking
def replay(
    session: Session,
    group: str,
    archive: str | None,
    where: str,
    changes: tuple[str, ...],
    to: str,
    rate: float | None,
    again: bool,
    record: str,
) -> None:
    """Replay dead letters of a group to their original topic, each once."""
    from tianzhou.cmd import spark_session
    from tianzhou.spark.pipelines.dead_letters import ReplayRequest
    from tianzhou.spark.pipelines.dead_letters import replay as do
    from tianzhou.spark.pipelines.replays import Replays

    pairs = [change.partition("=") for change in changes]
    if not all(equals for _, equals, _ in pairs):
        raise UsageError("--set must be COLUMN=SQL, e.g. body=\"replace(body, 'a', 'b')\"")
    request = ReplayRequest(
        group, where, {name.strip(): text.strip() for name, _, text in pairs}, to, rate, again
    )
    place = Replays(str(Path(record).resolve()) if "://" not in record else record)
    with (
        spark_session.session(
            "tianzhou-dead-letters", master="local[2]", config=spark_session.SHORT, log=_log()
        ) as spark,
        progress_bar(None, "sent") as tell,
    ):
        where_they_are = _cluster(session.nameserver, archive)
        done = do(spark, request, where_they_are, place, on_sent=tell)
    session.done(
        {"group": group, "replay": done.id, "sent": done.sent, "record": record},
        f"Replay {done.id}: {done.sent:,} dead letters of {group} sent; recorded in {record}",
    )


def _cluster(nameserver: str, archive: str | None) -> "Cluster":
    from tianzhou.spark.tables.history_table import Cluster

    return Cluster({"nameserver": nameserver}, archive)


def _log() -> Path:
    return Path(tempfile.gettempdir()) / "tianzhou-dead-letters.log"
