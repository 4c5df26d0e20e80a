"""The record of replays: which were started, and which dead letters they sent.

<directory>/<id>.json     a replay, written before its first message and after its last
<directory>/replayed      a table with a row for each replayed dead letter
"""

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tianzhou.spark.plan import OffsetJson
from tianzhou.spark.tables.files import Files
from tianzhou.spark.tables.table import Table


class Replay(msgspec.Struct, frozen=True):
    """A started or finished replay."""

    id: str
    group: str
    where: str
    changes: dict[str, str]
    topic: str
    ends: OffsetJson
    """Where the topics ended before the first message."""
    started_ms: int
    is_done: bool = False
    sent: int = 0


class Replays:
    """The record in a directory. Owner: the process that replays."""

    def __init__(self, path: str) -> None:
        self._files = Files(path)
        self.table = Table(f"{path.rstrip('/')}/replayed")

    def all(self) -> list[Replay]:
        names = [one.name for one in self._files.files_in("") if one.name.endswith(".json")]
        found = [msgspec.json.decode(self._files.read(name), type=Replay) for name in names]
        return sorted(found, key=lambda one: one.started_ms)

    def unfinished(
        self, group: str, where: str, changes: dict[str, str], topic: str
    ) -> Replay | None:
        """Return an interrupted replay of the same request, if any."""
        for one in reversed(self.all()):
            same = (one.group, one.where, one.changes, one.topic) == (group, where, changes, topic)
            if same and not one.is_done:
                return one
        return None

    def keep(self, replay: Replay) -> None:
        self._files.write(f"{replay.id}.json", msgspec.json.encode(replay))

    def write_rows(self, spark: SparkSession, replay: Replay, sent: DataFrame) -> None:
        """Record the replayed dead letters; further calls for the same replay do nothing."""
        rows = sent.select(
            F.lit(replay.id).alias("replayId"), F.lit(replay.group).alias("groupName"), "origin",
            F.col("topic").alias("sentTo"), "brokerName", "queueId", "queueOffset", "msgId",
            F.col("storeTimestamp").alias("sentAt"), F.lit(replay.where).alias("where"),
            F.lit(msgspec.json.encode(replay.changes).decode()).alias("changes"),
        )  # fmt: skip
        self.table.repair()
        self.table.write(rows, query=replay.id, batch=0, partition_by=())

    def without_replayed(self, spark: SparkSession, rows: DataFrame, group: str) -> DataFrame:
        """Return the dead letters that no finished replay has sent."""
        if not self.table.state().files:
            return rows
        done = self.table.read(spark).where(F.col("groupName") == group).select("origin")
        return rows.join(done.distinct(), "origin", "left_anti").orderBy(
            "brokerName", "queueId", "queueOffset"
        )
