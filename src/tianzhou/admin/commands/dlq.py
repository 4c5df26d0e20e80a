"""`tianzhou dlq`: list, show and replay dead letters.

Without SQL the brokers do the work. `--where`, `--set`, `--to`, `--rate` and `--archive` select and
edit dead letters on Spark, which is imported only then. Both use the same record of replays.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tianzhou.admin.commands import message_facts, output
from tianzhou.admin.commands.bars import progress_bar
from tianzhou.admin.commands.session import Session, asking, force, group_name, watched
from tianzhou.base.errors import UsageError
from tianzhou.wire.names import RETRY_PREFIX

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from tianzhou.client.core.replays import ReplayRun
    from tianzhou.spark.tables.history_table import Cluster

where_ = click.option(
    "--where",
    metavar="SQL",
    help="Select by an expression over body, tags, keys, originTopic, storeTimestamp, ...; needs "
    "Spark.",
)
archive = click.option(
    "--archive",
    envvar="TIANZHOU_ARCHIVE",
    metavar="DIRECTORY",
    help="Include dead letters that only this archive has; needs Spark.",
)


@click.group()
def dlq() -> None:
    """List, show and replay dead letters."""


@dlq.command("list")
@watched
def list_(session: Session) -> None:
    """List groups that have dead letters."""

    def load() -> list[dict[str, Any]]:
        return [
            {
                "group": letters.group,
                "dead_letters": letters.count,
                "not_replayed": letters.not_replayed,
                "last_ms": letters.last_ms,
            }
            for letters in session.admin.dlq.all()
        ]

    columns = {
        "group": "group",
        "dead_letters": "dead letters",
        "not_replayed": "not replayed",
        "last_ms": "latest",
    }
    none = "no group has dead letters"
    session.show(load, lambda rows: output.listing(rows, columns, none, times=("last_ms",)))


@dlq.command()
@group_name
@click.option(
    "--max",
    "count",
    default=32,
    show_default=True,
    type=click.IntRange(1),
    metavar="COUNT",
    help="Show at most COUNT dead letters, the newest ones; without SQL, COUNT per broker.",
)
@where_
@archive
@asking
def show(
    session: Session, *, group: str, count: int, where: str | None, archive: str | None
) -> None:
    """Show dead letters of a group, and which of them were replayed."""
    needs_spark = where is not None or archive is not None
    if needs_spark:
        _require_spark()
    session.admin.groups.show(group)
    if needs_spark:
        _show_with_sql(
            session, group, _cluster(session, archive), where=where or "true", count=count
        )
        return
    found = session.admin.dlq.peek(group, count=count)
    replayed = session.admin.dlq.replayed(group, found)
    rows = [
        {**message_facts.facts_of(letter), "replayed": letter.offset_id in replayed}
        for letter in found
    ]
    session.show(lambda: rows, message_facts.view_dead_letters)


@dlq.command()
@group_name
@click.option(
    "--max",
    "count",
    type=click.IntRange(1),
    metavar="COUNT",
    help="Replay at most COUNT, the oldest first.",
)
@click.option("--to-topic", is_flag=True, help="Send to the original topic, for all of its groups.")
@click.option("--to", default="", metavar="TOPIC", help="Send to TOPIC instead; needs Spark.")
@where_
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="COLUMN=SQL",
    help="Set body, tags or keys to this expression before the replay; repeatable; needs Spark.",
)
@archive
@click.option(
    "--rate", type=float, metavar="RATE", help="Send at most RATE messages per second; needs Spark."
)
@click.option(
    "--again", is_flag=True, help="Include dead letters that were replayed before; needs Spark."
)
@force
@asking
def replay(session: Session, *, group: str, yes: bool, **options: Any) -> None:
    """Replay dead letters that were not replayed yet, each once.

    They are delivered only to the group, unless --to-topic or --to is given. The brokers record
    which dead letters were replayed, for the command line, the dashboard and Spark.
    """
    request = _Request(group=group, **options)
    if request.needs_spark:
        _require_spark()
    session.admin.groups.show(group)
    if request.needs_spark:
        _replay_with_sql(session, request, yes=yes)
        return
    left = session.admin.dlq.show(group).not_replayed
    wanted = left if request.count is None else min(left, request.count)
    if wanted:
        session.confirm(f"Replay {wanted} dead letters of group {group}?", yes=yes)
    with progress_bar(wanted, "sent") as report:
        done = session.admin.dlq.replay(
            group, count=wanted, to_topic=request.to_topic, on_sent=report
        )
    facts = {"group": group, "topic": done.topic, "sent": done.count, "left": done.left}
    session.done(facts, f"{done.count:,} sent to {done.topic}, {done.left:,} left")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """The options of one replay. Raises UsageError if they contradict each other."""

    group: str
    count: int | None
    to_topic: bool
    to: str
    where: str | None
    changes: tuple[str, ...]
    archive: str | None
    rate: float | None
    again: bool

    def __post_init__(self) -> None:
        if self.to and self.to_topic:
            raise UsageError("--to and --to-topic contradict each other; pass one of them")
        if not all("=" in change for change in self.changes):
            raise UsageError("--set must be COLUMN=SQL, e.g. body=\"replace(body, 'a', 'b')\"")

    @property
    def needs_spark(self) -> bool:
        given = (self.where, self.archive, self.rate)
        return any(one is not None for one in given) or bool(self.to or self.changes or self.again)

    @property
    def target(self) -> str:
        """The topic for all dead letters; empty if each goes to its original topic."""
        return self.to or ("" if self.to_topic else RETRY_PREFIX + self.group)


# On Spark


def _show_with_sql(
    session: Session, group: str, cluster: "Cluster", *, where: str, count: int
) -> None:
    from pyspark.sql import functions as F

    from tianzhou.admin.commands import sql_view
    from tianzhou.spark.pipelines import dlq as spark_dlq

    with _spark() as spark:
        letters = spark_dlq.letters(spark, group, cluster)
        found = spark_dlq.chosen(letters, spark_dlq.ReplayRequest(group, where))
        record = spark_dlq.replay_record(group, cluster)
        left = spark_dlq.without_replayed(spark, letters, record).select("origin")
        newest = (
            found.join(left.withColumn("isLeft", F.lit(True)), "origin", "left")
            .withColumn("replayed", F.col("isLeft").isNull())
            .orderBy("storeTimestamp", ascending=False)
        )
        shown = newest.select(
            "origin", "originTopic", "tags", "keys", "storeTimestamp", "replayed", "body"
        )
        if session.as_json:
            output.echo_json([sql_view.plain(row) for row in shown.limit(count).collect()])
        else:
            sql_view.table(shown, count)


def _replay_with_sql(session: Session, request: _Request, *, yes: bool) -> None:
    group = request.group
    which = "the selected dead letters" if request.where else "all dead letters"
    session.confirm(f"Replay {which} of group {group}?", yes=yes)
    with progress_bar(None, "sent") as report:
        done = _run_on_spark(request, _cluster(session, request.archive), report)
    left = session.admin.dlq.show(group).not_replayed
    target = request.target or "the original topics"
    facts = {
        "group": group,
        "topic": target,
        "sent": done.sent,
        "left": left,
        "replay": done.id,
    }
    session.done(facts, f"{done.sent:,} sent to {target}, {left:,} left; replay {done.id}")


def _run_on_spark(
    request: _Request, cluster: "Cluster", on_sent: Callable[[int], None]
) -> "ReplayRun":
    from tianzhou.spark.pipelines import dlq as spark_dlq

    pairs = [change.partition("=") for change in request.changes]
    wanted = spark_dlq.ReplayRequest(
        request.group,
        request.where or "true",
        {name.strip(): text.strip() for name, _, text in pairs},
        topic=request.target,
        rate=request.rate,
        again=request.again,
        count=request.count,
    )
    with _spark() as spark:
        return spark_dlq.replay(spark, wanted, cluster, on_sent=on_sent)


def _require_spark() -> None:
    """Raise ModuleNotFoundError if the Spark extra is missing, before a broker is asked."""
    import pyspark  # noqa: F401  # pyright: ignore[reportUnusedImport]


def _spark() -> "AbstractContextManager[SparkSession]":
    from tianzhou.admin.commands import spark_session

    log = Path(tempfile.gettempdir()) / "tianzhou-dlq.log"
    return spark_session.session(
        "tianzhou-dlq", master="local[2]", config=spark_session.SHORT, log=log
    )


def _cluster(session: Session, archive: str | None) -> "Cluster":
    from tianzhou.spark.tables.history_table import Cluster

    return Cluster({"nameserver": session.nameserver}, archive)
