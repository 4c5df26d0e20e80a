"""Writing DataFrames to topics. A message is stored at least once; with `idempotent` a retried task
or micro-batch reads what earlier attempts wrote and adds only the missing rows.

The first half maps rows to messages: allowed columns, and how each becomes part of a message.
"""

import secrets
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tianzhou.base.errors import TianzhouError, UsageError
from tianzhou.base.limits import BODY_BYTES_MAX
from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.bulk.sender import BatchSender, Entry
from tianzhou.client.errors import NoNameServer, TopicNotFound
from tianzhou.record import names, properties
from tianzhou.spark.arrow import Array, Batch, pa, pc
from tianzhou.spark.errors import SourceError
from tianzhou.spark.idempotence import (
    MARK_PROPERTY,
    EarlierWrites,
    SinkProgress,
    SinkProgressFile,
    Task,
    digest_of,
    missing_entries,
    property_values,
)
from tianzhou.spark.options import WriteOptions
from tianzhou.spark.plan import Offsets, from_json, to_json
from tianzhou.wire.queues import MessageQueue

T = TypeVar("T")

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"

_WHOLE: Final = (ShortType(), IntegerType(), LongType())

COLUMNS: Final[dict[str, tuple[DataType, ...]]] = {
    "body": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "topic": (StringType(),),
    "tags": (StringType(),),
    "keys": (ArrayType(StringType()), StringType()),
    "properties": (MapType(StringType(), StringType()),),
    "shardingKey": (StringType(),),
    "delayLevel": _WHOLE,
    "deliverAt": (TimestampType(), TimestampNTZType(), *_WHOLE),
}
"""Columns that can be written, and their allowed types."""


class Row(NamedTuple):
    """One message to write."""

    topic: str
    body: bytes
    properties: bytes
    sharding_key: str | None
    is_delayed: bool


def check_schema(schema: StructType, *, topic: str | None, idempotent: bool = False) -> None:
    """Check that a DataFrame can be written. Raises SourceError."""
    by_name = {name.lower(): name for name in COLUMNS}
    seen: set[str] = set()
    for field in schema.fields:
        name = by_name.get(field.name.lower())
        if name is None:
            raise SourceError(
                "SCHEMA_MISMATCH",
                f"column {field.name!r} cannot be written; a message has {', '.join(COLUMNS)}: "
                "select only these",
            )
        allowed = [kind.simpleString() for kind in COLUMNS[name]]
        if field.dataType.simpleString() not in allowed:
            raise SourceError(
                "SCHEMA_MISMATCH",
                f"column {field.name} is {field.dataType.simpleString()}; it must be "
                f"{' or '.join(allowed)}",
            )
        seen.add(name)
    if len(seen & {"body", "value"}) != 1:
        raise SourceError("SCHEMA_MISMATCH", "exactly one of the columns body and value is needed")
    if "topic" not in seen and topic is None:
        raise SourceError(
            "MISSING_OPTION", "no topic to write to; set option topic or add a column topic"
        )
    if "topic" in seen and idempotent:
        raise SourceError(
            "WRONG_OPTION",
            "idempotent=true works with one topic only; drop the column topic and set the option",
        )


def rows_of(batch: Batch, topic: str | None) -> Iterator[Row]:
    """Yield the messages of a batch. Raises SourceError for an invalid row."""
    by_name = {name.lower(): batch.column(n) for n, name in enumerate(batch.schema.names)}
    count = batch.num_rows
    column = by_name["body"] if "body" in by_name else by_name["value"]
    bodies = column.cast(pa.binary()).to_pylist()
    topics = _texts(by_name.get("topic"), count)
    texts = _property_strings(by_name, count)
    keys = _texts(by_name.get("shardingkey"), count)
    delays = _delays(by_name, count)
    for rank in range(count):
        body, where = bodies[rank], topics[rank] or topic
        if not body or len(body) > BODY_BYTES_MAX or where is None:
            raise _invalid_row(body, where)
        extra, delay, key = texts[rank], delays[rank], keys[rank]
        if key is not None:
            extra += b"__SHARDINGKEY\x01%s\x02" % key.encode()
        yield Row(where, body, extra + delay, key, bool(delay))


def _invalid_row(body: bytes | None, topic: str | None) -> SourceError:
    if topic is None:
        return SourceError("WRONG_ROW", "a row has no topic, and option topic is not set")
    if not body:
        return SourceError("WRONG_ROW", f"a row for topic {topic} has an empty body")
    return SourceError(
        "WRONG_ROW",
        f"a row for topic {topic} has a body of {len(body)} bytes; at most {BODY_BYTES_MAX}",
    )


def _texts(column: Array | None, count: int) -> list[str | None]:
    return [None] * count if column is None else column.to_pylist()


def _property_strings(columns: dict[str, Array], count: int) -> list[bytes]:
    """Return the encoded properties of each row."""
    tags = _texts(columns.get("tags"), count)
    keys = columns.get("keys")
    lists: list[Any] = [None] * count if keys is None else keys.to_pylist()
    maps = columns.get("properties")
    given: list[Any] = [None] * count if maps is None else maps.to_pylist()
    if tags.count(None) == count and keys is None and maps is None:
        return [b""] * count
    try:
        return [
            _property_string(tag, keys_here, own)
            for tag, keys_here, own in zip(tags, lists, given, strict=True)
        ]
    except UsageError as error:
        raise SourceError("WRONG_ROW", f"a row is not a valid message: {error}") from None


def _property_string(
    tag: str | None, keys: list[str] | str | None, own: list[tuple[str, str]] | None
) -> bytes:
    found = {name: value for name, value in own or () if value}
    for name in found:
        if names.is_reserved(name):
            raise UsageError(f"property {name!r} is reserved by the protocol; remove it")
    if tag:
        found["TAGS"] = names.checked_tag(tag)
    if keys:
        words = [keys] if isinstance(keys, str) else keys
        found["KEYS"] = " ".join(map(names.checked_key, words))
    return properties.encode(found)


def _delays(columns: dict[str, Array], count: int) -> list[bytes]:
    levels, times = columns.get("delaylevel"), columns.get("deliverat")
    found = [b""] * count
    if levels is not None:
        found = [b"DELAY\x01%d\x02" % level if level else b"" for level in levels.to_pylist()]
    if times is not None:
        if pa.types.is_timestamp(times.type):
            times = pc.divide(times.cast(pa.int64()), 1_000)
        found = [
            b"TIMER_DELIVER_MS\x01%d\x02" % time if time else delay
            for time, delay in zip(times.to_pylist(), found, strict=True)
        ]
    return found


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """What a task reports to the driver."""

    rows: int
    """Messages stored by this attempt."""
    query: str


class TopicWriter(DataSourceArrowWriter):
    """Writes one batch. Created on the driver, sent to the tasks."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, topic=options.topic, idempotent=options.idempotent)
        self._options = options
        self._job = uuid.uuid4().hex
        with _translated_errors(options), options.cluster.connect() as brokers:
            self._began = to_json(_check_topic(brokers, options))

    def write(self, iterator: Iterator[Batch]) -> WriterCommitMessage:
        context = _task_context()
        task = Task(self._job, 0, context.partitionId())
        repeated = self._options.idempotent and context.attemptNumber() > 0
        search_from = from_json(self._began) if repeated else None
        return _write(self._options, task, iterator, search_from)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch of a query. Spark creates it on the driver."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, topic=options.topic, idempotent=options.idempotent)
        self._options = options
        self._progress = SinkProgress()
        # Retrying lets a running query survive the restart of a broker.
        with _translated_errors(options), options.cluster.connect() as brokers:
            ends = _retrying(brokers, lambda: _check_topic(brokers, options))
            if options.checkpoint is not None:
                file = SinkProgressFile(options.checkpoint)
                earliest = _retrying(brokers, lambda: brokers.min_offsets(ends))
                self._progress = file.open(file.load(), ends, earliest)

    def write(self, iterator: Iterator[Batch]) -> WriterCommitMessage:
        context = _task_context()
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        assert query is not None, "not a task of a streaming query"
        assert batch is not None
        if self._progress.has_stored(query, int(batch)):
            return TaskResult(0, query)
        task = Task(query, int(batch), context.partitionId())
        return _write(self._options, task, iterator, self._progress.began)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Record that the micro-batch is stored: if Spark repeats it, nothing is written."""
        queries = {done.query for done in messages if isinstance(done, TaskResult)}
        if self._options.checkpoint is not None and queries:
            file = SinkProgressFile(self._options.checkpoint)
            file.commit(self._progress, queries.pop(), batchId)


def _task_context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


def _check_topic(brokers: Brokers, options: WriteOptions) -> Offsets:
    """Return the ends of the topic's queues, or {} if the topic does not exist yet.

    Raises TopicNotFound if the brokers would not create it.
    """
    if options.topic is None:
        brokers.topics()  # at least the NameServer must be reachable
        return {}
    route = brokers.publish_route(options.topic)
    return {} if route.is_borrowed else brokers.max_offsets(route.write_queues)


def _queues(brokers: Brokers, options: WriteOptions) -> Sequence[MessageQueue]:
    assert options.topic is not None
    route = brokers.publish_route(options.topic)
    return () if route.is_borrowed else route.write_queues


def _ends(brokers: Brokers, options: WriteOptions) -> Offsets:
    return {} if options.topic is None else brokers.max_offsets(_queues(brokers, options))


def _retrying(brokers: Brokers, act: Callable[[], T]) -> T:
    return brokers.persist(act, on_failure=brokers.forget)


def _write(
    options: WriteOptions, task: Task, batches: Iterator[Batch], search_from: Offsets | None
) -> TaskResult:
    with _translated_errors(options), options.cluster.connect() as brokers:
        began = _retrying(brokers, lambda: _ends(brokers, options))
        written = EarlierWrites(task)
        if search_from is not None:
            spans = {queue: (search_from.get(queue, 0), end) for queue, end in began.items()}
            for mark in property_values(brokers, spans, MARK_PROPERTY):
                written.record(mark)
        builder = _EntryBuilder(options, task, written)
        sender = BatchSender(
            brokers,
            options.group,
            first_turn=task.partition,
            unsure=missing_entries(brokers, began) if options.idempotent else None,
        )
        count = 0
        for batch in batches:
            for row in rows_of(batch, options.topic):
                entry = builder.entry(row)
                if entry is None:
                    continue
                send = sender.add_alone if row.is_delayed else sender.add
                send(row.topic, entry, row.sharding_key)
                count += 1
        sender.flush()
    return TaskResult(count, task.query)


class _EntryBuilder:
    """Builds messages with marks and unique ids from rows."""

    def __init__(self, options: WriteOptions, task: Task, written: EarlierWrites) -> None:
        self._is_marked_fully = options.idempotent
        self._task = task
        self._written = written
        # A new prefix for each attempt of each task: two messages never share a unique id.
        self._id_prefix = secrets.token_hex(12).upper().encode()
        self._rank = 0

    def entry(self, row: Row) -> Entry | None:
        """Return the message for a row, or None if the topic already has it."""
        if not self._is_marked_fully:
            rank = self._rank
            self._rank += 1
            mark = b"%s%d" % (self._task.prefix, rank)
        else:
            digest = digest_of(row.body, row.properties)
            if self._written.claim(digest):
                return None
            rank = self._written.next_rank()
            mark = b"%s%d:%s" % (self._task.prefix, rank, digest)
        text = b"UNIQ_KEY\x01%s%08X\x02SPARK_MARK\x01%s\x02%s" % (
            self._id_prefix,
            rank,
            mark,
            row.properties,
        )
        return Entry(row.body, text)


@contextmanager
def _translated_errors(options: WriteOptions) -> Generator[None]:
    """Translate errors of the client into errors of the data source."""
    try:
        yield
    except TopicNotFound as error:
        raise SourceError(
            "UNKNOWN_TOPIC",
            f"topic {error.topic!r} does not exist at {options.cluster.nameserver}, and the "
            "brokers there do not create topics automatically",
        ) from None
    except NoNameServer as error:
        raise SourceError("NAMESERVER_UNREACHABLE", f"{error}; check option nameserver") from None
    except TianzhouError as error:
        raise SourceError("WRITE_FAILED", str(error)) from error
