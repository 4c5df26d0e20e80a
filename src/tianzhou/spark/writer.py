"""Writing DataFrames to topics. A message is stored at least once; with `idempotent` a retried task
or micro-batch reads what earlier attempts wrote and adds only the missing rows."""

import secrets
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tianzhou.base.errors import TianzhouError
from tianzhou.client.errors import NoNameServer, TopicNotFound
from tianzhou.client.sync.batch_sender import BatchSender, Entry
from tianzhou.client.sync.brokers import Brokers
from tianzhou.spark.arrow import Batch
from tianzhou.spark.errors import SourceError
from tianzhou.spark.idempotence import (
    MARK_PROPERTY,
    EarlierWrites,
    Task,
    digest_of,
    missing_entries,
    property_values,
)
from tianzhou.spark.options import WriteOptions
from tianzhou.spark.plan import OffsetJson, Offsets, from_json, to_json
from tianzhou.spark.rows import Row, check_schema, rows_of
from tianzhou.wire.queues import MessageQueue

T = TypeVar("T")

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_LOOK_BACK_MS: Final = 10 * 60_000
"""How far back to search for written messages if the broker has no offset for the group. It may
have lost the offset in a crash, a few seconds after the commit."""


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """What a task reports to the driver."""

    rows: int
    """Messages stored by this attempt."""
    began: OffsetJson
    """Where the topic's queues ended when the task started."""


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
        look_from = from_json(self._began) if repeated else None
        return _write(self._options, task, iterator, look_from)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, topic=options.topic, idempotent=options.idempotent)
        self._options = options
        # Spark creates a writer per micro-batch; retrying lets a running query survive the
        # restart of a broker.
        with _translated_errors(options), options.cluster.connect() as brokers:
            ends = _retrying(brokers, lambda: _check_topic(brokers, options))
            if options.idempotent:
                _retrying(brokers, lambda: _commit_start(brokers, options.group, ends))

    def write(self, iterator: Iterator[Batch]) -> WriterCommitMessage:
        context = _task_context()
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        assert query is not None, "not a task of a streaming query"
        assert batch is not None
        task = Task(query, int(batch), context.partitionId())
        look_from: Offsets | None = None
        if self._options.idempotent:
            with _translated_errors(self._options), self._options.cluster.connect() as brokers:
                look_from = _retrying(
                    brokers,
                    lambda: brokers.committed(self._options.group, _queues(brokers, self._options)),
                )
        return _write(self._options, task, iterator, look_from)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit where this batch started: a later retry need not search further back."""
        began = [from_json(done.began) for done in messages if isinstance(done, TaskResult)]
        if not self._options.idempotent or not began:
            return
        earliest = {queue: min(at[queue] for at in began if queue in at) for queue in began[0]}
        with _translated_errors(self._options), self._options.cluster.connect() as brokers:
            _retrying(brokers, lambda: brokers.commit(self._options.group, earliest))


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


def _commit_start(brokers: Brokers, group: str, ends: Offsets) -> None:
    """Commit a start offset before the query's first message is written."""
    missing = ends.keys() - brokers.committed(group, ends).keys()
    now_ms = time.time_ns() // 1_000_000
    if missing:
        brokers.commit(group, brokers.offsets_at(missing, now_ms - _LOOK_BACK_MS))


def _write(
    options: WriteOptions, task: Task, batches: Iterator[Batch], look_from: Offsets | None
) -> TaskResult:
    with _translated_errors(options), options.cluster.connect() as brokers:
        began = _retrying(brokers, lambda: _ends(brokers, options))
        written = EarlierWrites(task)
        if look_from is not None:
            spans = {queue: (look_from.get(queue, 0), end) for queue, end in began.items()}
            for mark in property_values(brokers, spans, MARK_PROPERTY):
                written.record(mark)
        builder = _EntryBuilder(options, task, written)
        sender = BatchSender(
            brokers, options.group, first_turn=task.partition,
            unsure=missing_entries(brokers, began) if options.idempotent else None,
        )  # fmt: skip
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
    return TaskResult(count, to_json(began))


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
            self._id_prefix, rank, mark, row.properties,
        )  # fmt: skip
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
