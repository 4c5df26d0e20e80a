"""Inspect dead letters, select them with SQL, repair them and replay them to their topics.

The brokers record which dead letters were replayed; the command line and the dashboard use the same
record: see `tianzhou.client.core.replays`. Before its first message a replay records what it will
do: its id, the selection, and where the target topics end. Every message it sends carries the id of
the replay and of its dead letter. An interrupted replay therefore finds in the topics what it has
already sent and sends only the rest: no dead letter is sent twice, however often the replay or a
broker is killed.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.bulk.sender import BatchSender, Entry
from tianzhou.client.core.replays import (
    REPLAY_ID,
    REPLAYED_FROM,
    ReplayedLetters,
    ReplayRecord,
    ReplayRun,
)
from tianzhou.client.core.subscription import dead_letter_topic
from tianzhou.client.options import ClientOptions
from tianzhou.client.sync.admin import Admin
from tianzhou.record import names, properties
from tianzhou.spark import plan
from tianzhou.spark.idempotence import missing_entries
from tianzhou.spark.options import ClusterOptions, read_options_of
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.tables.history_table import Cluster, history
from tianzhou.spark.topics import translated_errors
from tianzhou.wire.names import DEFAULT_TOPIC, RETRY_PREFIX
from tianzhou.wire.queues import MessageQueue

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
    count: int | None = None
    """Replay at most this many, the oldest first; None means all."""


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
        origin.alias("origin"),
        came_from.alias("originTopic"),
        "tags",
        "keys",
        F.when(F.is_valid_utf8(text), text).alias("body"),
        "reconsumeTimes",
        "bornTimestamp",
        "storeTimestamp",
        "msgId",
        "properties",
        F.col("body").alias("rawBody"),
        "queueId",
        "queueOffset",
        "brokerName",
    )


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
    *,
    on_sent: Callable[[int], None] = lambda _: None,
) -> ReplayRun:
    """Replay dead letters, or resume an interrupted replay of the same request.

    `on_sent` is called with the number of messages sent so far. Returns the record of the replay.
    Raises PipelineError for an invalid request, before anything is sent.
    """
    if request.rate is not None and request.rate <= 0:
        raise PipelineError(f"rate must be above 0, got {request.rate}")
    rows = chosen(letters(spark, request.group, cluster), request)
    record = replay_record(request.group, cluster)
    if not request.again:
        rows = without_replayed(spark, rows, record)
    _check(rows, request)
    options = read_options_of({**cluster.options, "topic": DEFAULT_TOPIC}, is_stream=False)
    with (
        translated_errors(options),
        _admin(options.cluster) as admin,
        options.cluster.connect() as brokers,
    ):
        run = record.unfinished(
            where=request.where, changes=dict(request.changes), topic=request.topic
        )
        if run is None:
            run = _new_run(rows, request, brokers)
            admin.dlq.add_to_record(request.group, [run])
        there = _already_there(spark, cluster, run)
        admin.dlq.add_to_record(request.group, _entries(run, there))
        count = _send(rows, request, _Progress(run, there, on_sent), admin=admin, brokers=brokers)
        done = msgspec.structs.replace(run, is_done=True, sent=len(there) + count)
        admin.dlq.add_to_record(request.group, [done])
    return done


def replay_record(group: str, cluster: Cluster) -> ReplayRecord:
    """Return which dead letters of a group were replayed, by any client."""
    options = read_options_of({**cluster.options, "topic": DEFAULT_TOPIC}, is_stream=False)
    with translated_errors(options), _admin(options.cluster) as admin:
        return admin.dlq.record(group)


def without_replayed(spark: SparkSession, rows: DataFrame, record: ReplayRecord) -> DataFrame:
    """Return the dead letters that were not replayed. Those of a broker that is gone, and of which
    only the archive is left, count as replayed: their record is gone too."""
    is_left = F.lit(False)
    for (broker, queue_id), floor in record.floors.items():
        is_here = (F.col("brokerName") == broker) & (F.col("queueId") == queue_id)
        is_left = is_left | (is_here & (F.col("queueOffset") >= floor))
    rows = rows.where(is_left)
    replayed = [
        (f"{broker}:{queue_id}:{offset}", recorded_ms)
        for (broker, queue_id), offsets in record.letters.items()
        for offset, recorded_ms in offsets.items()
    ]
    if not replayed:
        return rows
    known = spark.createDataFrame(  # pyright: ignore[reportUnknownMemberType]
        replayed, "replayedOrigin string, recordedMs long"
    )
    # A younger dead letter has the offset of one whose topic was deleted with its group.
    is_known = (F.col("origin") == F.col("replayedOrigin")) & (
        F.unix_millis("storeTimestamp") <= F.col("recordedMs")
    )
    return rows.join(known, is_known, "left_anti").orderBy("brokerName", "queueId", "queueOffset")


def _admin(cluster: ClusterOptions) -> Admin:
    options = ClientOptions(credentials=cluster.credentials)
    return Admin(nameserver=cluster.nameserver, client=options)


def _check(rows: DataFrame, request: ReplayRequest) -> None:
    lost = rows.where(F.col("originTopic").isNull()).select("origin").first()
    is_needed = not request.topic or request.topic.startswith(RETRY_PREFIX)
    if lost is not None and is_needed:
        raise PipelineError(
            f"dead letter {lost[0]} has no original topic; set a topic for all with --to"
        )
    empty = rows.where(F.coalesce(F.length("newBody"), F.lit(0)) == 0).select("origin").first()
    if empty is not None:
        raise PipelineError(
            f"dead letter {empty[0]} has an empty body after the change; nothing was sent"
        )


def _new_run(rows: DataFrame, request: ReplayRequest, brokers: Brokers) -> ReplayRun:
    found: list[Any] = rows.select("originTopic").distinct().collect()
    topics = [request.topic] if request.topic else sorted(row[0] for row in found)
    ends: dict[MessageQueue, int] = {}
    for topic in topics:
        ends |= brokers.max_offsets(brokers.route(topic).read_queues)
    return ReplayRun(
        id=secrets.token_hex(6),
        group=request.group,
        where=request.where,
        changes=dict(request.changes),
        topic=request.topic,
        ends=plan.to_json(ends),
        started_ms=time.time_ns() // 1_000_000,
    )


def _already_there(spark: SparkSession, cluster: Cluster, run: ReplayRun) -> set[str]:
    """Return the dead letters of this replay that the target topics have."""
    if not run.ends:
        return set()
    reader = spark.read.format("rocketmq").options(**cluster.options)
    reader = reader.option("topic", ",".join(run.ends))
    starts = msgspec.json.encode(run.ends).decode()
    found = reader.option("startingOffsets", starts).load()
    sent = found.where(F.col("properties")[REPLAY_ID] == run.id)
    return {row[0] for row in sent.select(F.col("properties")[REPLAYED_FROM]).collect()}


def _entries(run: ReplayRun, origins: Iterable[str]) -> list[ReplayedLetters]:
    """Return the record of these dead letters, by queue."""
    places: dict[tuple[str, str], list[int]] = {}
    for origin in origins:
        broker, queue_id, offset = origin.rsplit(":", 2)
        places.setdefault((broker, queue_id), []).append(int(offset))
    return [
        ReplayedLetters(run.group, broker, int(queue_id), tuple(sorted(offsets)), run.id)
        for (broker, queue_id), offsets in places.items()
    ]


@dataclass(frozen=True, slots=True)
class _Progress:
    """A replay, and what it has sent before an interruption."""

    run: ReplayRun
    there: set[str]
    on_sent: Callable[[int], None]


def _send(
    rows: DataFrame,
    request: ReplayRequest,
    progress: _Progress,
    *,
    admin: Admin,
    brokers: Brokers,
) -> int:
    """Send the rows whose messages are not in the topics yet; return how many were sent."""
    run, there = progress.run, progress.there
    in_doubt = missing_entries(brokers, plan.from_json(run.ends))
    sender = BatchSender(brokers, PRODUCER, unsure=in_doubt)
    # Brokers reject batches for retry topics.
    add = sender.add_alone if request.topic.startswith(RETRY_PREFIX) else sender.add
    left: Iterator[Any] = (row for row in rows.toLocalIterator() if row.origin not in there)
    if request.count is not None:
        left = islice(left, max(0, request.count - len(there)))
    rate = request.rate
    size = CHUNK_MAX if rate is None else max(1, min(CHUNK_MAX, int(rate / CHUNKS_PER_S)))
    count = 0
    began_s = time.monotonic()
    while chunk := list(islice(left, size)):
        if rate is not None:
            time.sleep(max(0.0, began_s + count / rate - time.monotonic()))
        for row in chunk:
            key = row.properties.get(names.SHARDING_KEY.decode())
            add(request.topic or row.originTopic, _entry(row, request, run.id), key)
        sender.flush()
        admin.dlq.add_to_record(run.group, _entries(run, (row.origin for row in chunk)))
        count += len(chunk)
        progress.on_sent(len(there) + count)
    return count


def _entry(row: Any, request: ReplayRequest, replay_id: str) -> Entry:
    """Build the message to send, without properties that brokers and consumers added."""
    found = {name: value for name, value in row.properties.items() if not names.is_reserved(name)}
    found |= {REPLAY_ID: replay_id, REPLAYED_FROM: row.origin}
    found[names.UNIQ_KEY.decode()] = secrets.token_hex(16).upper()
    if row.tags:
        found[names.TAGS.decode()] = row.tags
    if row.keys:
        found[names.KEYS.decode()] = " ".join(row.keys)
    sharding_key = row.properties.get(names.SHARDING_KEY.decode())
    if sharding_key:
        found[names.SHARDING_KEY.decode()] = sharding_key
    if request.topic.startswith(RETRY_PREFIX):
        # Consumers learn from this property which topic the message is from.
        found[names.RETRY_TOPIC.decode()] = row.originTopic
    return Entry(bytes(row.newBody), properties.encode(found))
