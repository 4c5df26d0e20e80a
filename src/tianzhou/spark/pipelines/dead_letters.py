"""Inspect dead letters, select them with SQL, repair them and replay them to their topics.

Before its first message a replay records what it will do: its id, the selection, and where the
target topics end. Every message it sends carries the id of the replay and of its dead letter. An
interrupted replay therefore finds in the topics what it has already sent and sends only the rest:
no dead letter is sent twice, however often the replay or a broker is killed. Finally the replayed
dead letters are recorded in a table.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tianzhou.client.core.subscription import dead_letter_topic
from tianzhou.client.sync.batch_sender import BatchSender, Entry
from tianzhou.client.sync.brokers import Brokers
from tianzhou.record import names, properties
from tianzhou.spark import plan
from tianzhou.spark.idempotence import missing_entries
from tianzhou.spark.options import ReadOptions, read_options_of
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.replays import Replay, Replays
from tianzhou.spark.tables.history_table import Cluster, history
from tianzhou.spark.topics import translated_errors
from tianzhou.wire.names import DEAD_LETTER_PREFIX, DEFAULT_TOPIC
from tianzhou.wire.queues import MessageQueue

REPLAY_ID: Final = "REPLAY_ID"
REPLAYED_FROM: Final = "REPLAYED_FROM"
"""Properties of replayed messages."""
PRODUCER: Final = "TOOLS_REPLAY"
CHUNKS_PER_S: Final = 10
CHUNK_MAX: Final = 500
CHANGEABLE: Final = ("body", "tags", "keys")


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Which dead letters to replay, and how."""

    group: str
    where: str = "true"
    changes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Column (body, tags, keys) to the SQL expression of its new value."""
    topic: str = ""
    """Target topic for all dead letters. If empty, each goes to its original topic."""
    rate: float | None = None
    """Messages per second; None means unlimited."""
    again: bool = False
    """Whether to replay dead letters that were already replayed."""


def letters(spark: SparkSession, group: str, cluster: Cluster) -> DataFrame:
    """Return the dead letters of a group. `origin` is the id, `body` text, `rawBody` the bytes."""
    rows = history(spark, dead_letter_topic(group), cluster)
    origin = F.concat_ws(":", "brokerName", "queueId", "queueOffset")
    came_from = F.coalesce(
        F.nullif(F.col("properties")["DLQ_ORIGIN_TOPIC"], F.lit("")),
        F.col("properties")["RETRY_TOPIC"],
    )
    text = F.col("body").cast("string")
    return rows.select(
        origin.alias("origin"), came_from.alias("originTopic"), "tags", "keys",
        F.when(F.is_valid_utf8(text), text).alias("body"), "reconsumeTimes", "bornTimestamp",
        "storeTimestamp", "msgId", "properties", F.col("body").alias("rawBody"), "queueId",
        "queueOffset", "brokerName",
    )  # fmt: skip


def chosen(rows: DataFrame, request: ReplayRequest) -> DataFrame:
    """Return the selected dead letters as they will be sent. Raises PipelineError."""
    unknown = request.changes.keys() - set(CHANGEABLE)
    if unknown:
        raise PipelineError(
            f"{', '.join(unknown)} cannot be changed; only {', '.join(CHANGEABLE)} can"
        )
    try:
        found = rows.where(F.expr(request.where))
        body = F.expr(request.changes["body"]).cast("binary") if "body" in request.changes else None
        found = found.withColumn("newBody", F.col("rawBody") if body is None else body)
        for name in request.changes.keys() - {"body"}:
            found = found.withColumn(name, F.expr(request.changes[name]))
        return found.orderBy("brokerName", "queueId", "queueOffset")
    except PySparkException as error:
        raise PipelineError(str(error).partition(";\n'")[0].partition("\n\nJVM")[0]) from error


def replay(
    spark: SparkSession,
    request: ReplayRequest,
    cluster: Cluster,
    replays: Replays,
    *,
    on_sent: Callable[[int], None] = lambda _: None,
) -> Replay:
    """Replay dead letters, or resume an interrupted replay of the same request.

    `on_sent` is called with the number of messages sent so far. Returns the record of the replay.
    Raises PipelineError for an invalid request, before anything is sent.
    """
    if request.rate is not None and request.rate <= 0:
        raise PipelineError(f"rate must be above 0, got {request.rate}")
    rows = chosen(letters(spark, request.group, cluster), request)
    if not request.again:
        rows = replays.without_replayed(spark, rows, request.group)
    _check(rows, request)
    options = read_options_of({**cluster.options, "topic": DEFAULT_TOPIC}, is_stream=False)
    with translated_errors(options), options.cluster.connect() as brokers:
        begun = replays.unfinished(
            request.group, request.where, dict(request.changes), request.topic
        )
        if begun is None:
            begun = _begin(rows, request, brokers)
            replays.keep(begun)
        there = _already_there(spark, cluster, begun)
        count = _send(rows, request, begun, there, brokers, on_sent)
    done = msgspec.structs.replace(begun, is_done=True, sent=len(there) + count)
    replays.write_rows(spark, begun, _sent_rows(spark, cluster, begun))
    replays.keep(done)
    return done


def _check(rows: DataFrame, request: ReplayRequest) -> None:
    lost = rows.where(F.col("originTopic").isNull()).select("origin").first()
    if lost is not None and not request.topic:
        raise PipelineError(
            f"dead letter {lost[0]} has no original topic; set a topic for all with --to"
        )
    empty = rows.where(F.coalesce(F.length("newBody"), F.lit(0)) == 0).select("origin").first()
    if empty is not None:
        raise PipelineError(
            f"dead letter {empty[0]} has an empty body after the change; nothing was sent"
        )


def _begin(rows: DataFrame, request: ReplayRequest, brokers: Brokers) -> Replay:
    found: list[Any] = rows.select("originTopic").distinct().collect()
    topics = [request.topic] if request.topic else sorted(row[0] for row in found)
    ends: dict[MessageQueue, int] = {}
    for topic in topics:
        ends |= brokers.max_offsets(brokers.route(topic).read_queues)
    return Replay(
        id=secrets.token_hex(6), group=request.group, where=request.where,
        changes=dict(request.changes), topic=request.topic, ends=plan.to_json(ends),
        started_ms=time.time_ns() // 1_000_000,
    )  # fmt: skip


def _already_there(spark: SparkSession, cluster: Cluster, begun: Replay) -> set[str]:
    rows = _sent_rows(spark, cluster, begun).select("origin").collect()
    return {row[0] for row in rows}


def _sent_rows(spark: SparkSession, cluster: Cluster, begun: Replay) -> DataFrame:
    """Return the messages of this replay that the topics have."""
    reader = spark.read.format("rocketmq").options(**cluster.options)
    reader = reader.option("topic", ",".join(begun.ends))
    starts = msgspec.json.encode(begun.ends).decode()
    rows = reader.option("startingOffsets", starts).load()
    mine = rows.where(F.col("properties")[REPLAY_ID] == begun.id)
    return mine.select(
        F.col("properties")[REPLAYED_FROM].alias("origin"), "topic", "brokerName", "queueId",
        "queueOffset", "msgId", "storeTimestamp",
    )  # fmt: skip


def _send(
    rows: DataFrame,
    request: ReplayRequest,
    begun: Replay,
    there: set[str],
    brokers: Brokers,
    on_sent: Callable[[int], None],
) -> int:
    in_doubt = missing_entries(brokers, plan.from_json(begun.ends))
    sender = BatchSender(brokers, PRODUCER, unsure=in_doubt)
    left: Iterator[Any] = (row for row in rows.toLocalIterator() if row.origin not in there)
    rate = request.rate
    size = CHUNK_MAX if rate is None else max(1, min(CHUNK_MAX, int(rate / CHUNKS_PER_S)))
    count = 0
    began_s = time.monotonic()
    while chunk := list(islice(left, size)):
        if rate is not None:
            time.sleep(max(0.0, began_s + count / rate - time.monotonic()))
        for row in chunk:
            key = row.properties.get(names.SHARDING_KEY.decode())
            sender.add(request.topic or row.originTopic, _entry(row, begun.id, key), key)
        sender.flush()
        count += len(chunk)
        on_sent(len(there) + count)
    return count


def _entry(row: Any, replay_id: str, sharding_key: str | None) -> Entry:
    """Build the message to send, without properties that brokers and consumers added."""
    found = {name: value for name, value in row.properties.items() if not names.is_reserved(name)}
    found |= {REPLAY_ID: replay_id, REPLAYED_FROM: row.origin}
    found[names.UNIQ_KEY.decode()] = secrets.token_hex(16).upper()
    if row.tags:
        found[names.TAGS.decode()] = row.tags
    if row.keys:
        found[names.KEYS.decode()] = " ".join(row.keys)
    if sharding_key:
        found[names.SHARDING_KEY.decode()] = sharding_key
    return Entry(bytes(row.newBody), properties.encode(found))


def dead_letter_counts(options: ReadOptions) -> dict[str, int]:
    """Return the groups that have dead letters, and how many the brokers store."""
    with translated_errors(options), options.cluster.connect() as brokers:
        found: dict[str, int] = {}
        for topic in brokers.topics():
            if topic.startswith(DEAD_LETTER_PREFIX):
                queues = brokers.route(topic).read_queues
                first, last = brokers.min_offsets(queues), brokers.max_offsets(queues)
                group = topic.removeprefix(DEAD_LETTER_PREFIX)
                found[group] = sum(last[q] - first[q] for q in queues)
    return found
