"""Detecting messages that an earlier attempt of the same task has already written.

Every message that the sink writes carries the property `SPARK_MARK`:

    query id : batch id : partition : rank [: digest]

The rank counts the rows of a task. The digest is present only with `idempotent`. It covers the
message's body and properties: a retried task may receive its rows in another order, but never
other rows.

Where a stream's search begins is in a small file of the query's checkpoint:

    tianzhou-sink.json    {"query": id, "committed": batch, "began": offsets or null}

`began` is where the topic ended when the open micro-batch started: the driver writes it before the
first row is sent, so every message of that micro-batch is at this offset or later, however long the
query stands still in between. `committed` is the last micro-batch whose rows are all stored; if it
is repeated, nothing is written. The file belongs to the checkpoint because both decide together
what a restart does: a broker may lose the offsets of a group, and a clock says nothing about when a
query was stopped.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.bulk.reader import QueueRange, QueueReader
from tianzhou.client.bulk.sender import Entry, Unsure
from tianzhou.record import names
from tianzhou.record.message import MessageView
from tianzhou.record.properties import find
from tianzhou.spark.errors import SourceError
from tianzhou.spark.options import GROUP_DEFAULT
from tianzhou.spark.plan import Offsets, from_json, to_json
from tianzhou.spark.tables.files import Files
from tianzhou.wire.queues import MessageQueue

MARK_PROPERTY: Final = b"SPARK_MARK"
_DIGEST_BYTES: Final = 8
PROGRESS_FILE: Final = "tianzhou-sink.json"
_NOTHING_COMMITTED: Final = -1


@dataclass(frozen=True, slots=True)
class Task:
    """The task that writes: one partition of one batch of one query."""

    query: str
    batch: int
    partition: int

    @property
    def prefix(self) -> bytes:
        return b"%s:%d:%d:" % (self.query.encode(), self.batch, self.partition)


def digest_of(body: bytes, properties: bytes) -> bytes:
    """Return a digest of the body and the properties of a message."""
    # The length marks the boundary between the body and the properties.
    made = hashlib.blake2b(b"%d:" % len(body), digest_size=_DIGEST_BYTES)
    made.update(body)
    made.update(properties)
    return made.hexdigest().encode()


class EarlierWrites:
    """The rows that earlier attempts of a task wrote: used ranks, and digests with their counts."""

    def __init__(self, task: Task) -> None:
        self._prefix = task.prefix
        self._ranks: set[int] = set()
        self._digests: Counter[bytes] = Counter()
        self._next_rank = 0

    def record(self, mark: bytes) -> None:
        """Record a mark found in the topic. Marks of other tasks are ignored."""
        if not mark.startswith(self._prefix):
            return
        rank, _, digest = mark[len(self._prefix) :].partition(b":")
        if int(rank) not in self._ranks:  # a duplicate in the topic counts once
            self._ranks.add(int(rank))
            self._digests[digest] += 1

    def claim(self, digest: bytes) -> bool:
        """Return whether such a row was written. Each written row is claimed at most once."""
        if self._digests[digest] == 0:
            return False
        self._digests[digest] -= 1
        return True

    def next_rank(self) -> int:
        """Return the next rank that no earlier attempt used."""
        while self._next_rank in self._ranks:
            self._next_rank += 1
        rank = self._next_rank
        self._next_rank += 1
        return rank


def property_values(
    brokers: Brokers, spans: Mapping[MessageQueue, tuple[int, int]], name: bytes
) -> Iterator[bytes]:
    """Yield the values of a property in parts of queues, given as (start, end) offsets."""
    reader = QueueReader(brokers, GROUP_DEFAULT, on_gone=lambda _: None)
    for queue, (start, end) in spans.items():
        for run in reader.read(QueueRange(queue, start, end)):
            data = memoryview(run.data)
            for at in run.starts:
                value = find(MessageView(data, at).stored_properties, name)
                if value is not None:
                    yield value


def missing_entries(brokers: Brokers, began: Mapping[MessageQueue, int]) -> Unsure:
    """Return a function that finds which messages in doubt are not stored.

    A sender calls it after a connection broke, with the messages that were in flight. Messages are
    identified by their unique ids. `began` is where the queues ended before the first message.
    """

    def missing(queue: MessageQueue, entries: Sequence[Entry]) -> Sequence[Entry]:
        (end,) = brokers.max_offsets([queue]).values()
        spans = {queue: (began.get(queue, 0), end)}
        stored = set(property_values(brokers, spans, names.UNIQ_KEY))
        return [entry for entry in entries if find(entry.properties, names.UNIQ_KEY) not in stored]

    return missing


# Where a stream's search begins


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """What the file says."""

    query: str = ""
    """The id of the query, known when its first micro-batch is committed."""
    committed: int = _NOTHING_COMMITTED
    began: Offsets | None = None
    """None while no micro-batch is open. A queue that it does not have was empty."""

    def has_stored(self, query: str, batch: int) -> bool:
        """Return whether all rows of a micro-batch are stored. Raises SourceError if the checkpoint
        was changed so that this cannot be known."""
        if self.committed == _NOTHING_COMMITTED:
            return False
        if query != self.query:
            raise SourceError(
                "WRITE_FAILED",
                f"{PROGRESS_FILE} in the checkpoint belongs to query {self.query}, and this is "
                f"query {query}; use a new checkpointLocation",
            )
        if batch < self.committed:
            raise SourceError(
                "WRITE_FAILED",
                f"micro-batch {batch} runs again, but the topic already has all rows up to "
                f"micro-batch {self.committed}; the checkpoint was set back: use a new "
                "checkpointLocation with the option startingOffsets of the source",
            )
        return batch == self.committed


class SinkProgressFile:
    """Reads and writes the progress of a query.

    Owner: the driver; tasks receive the progress with the writer.
    """

    def __init__(self, checkpoint: str) -> None:
        # Hadoop writes local paths as file:/path, which Arrow does not read.
        is_local = checkpoint.startswith("file:")
        self._files = Files("/" + checkpoint[5:].lstrip("/") if is_local else checkpoint)
        self._uri = self._files.uri_of(PROGRESS_FILE)

    def load(self) -> SinkProgress:
        """Return the progress. Raises SourceError if it is lost or damaged."""
        try:
            data = self._files.read(PROGRESS_FILE)
        except FileNotFoundError:
            if self._files.files_in("commits"):
                raise self._unknown("is missing, although micro-batches are committed") from None
            return SinkProgress()
        try:
            return _decoded(json.loads(data))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise self._unknown("is damaged") from None

    def open(
        self, progress: SinkProgress, ends: Offsets, earliest: Mapping[MessageQueue, int]
    ) -> SinkProgress:
        """Record where the next micro-batch begins, unless an earlier attempt of it did.

        Raises SourceError if messages that this attempt may have written are already deleted.
        """
        if progress.began is None:
            return self._saved(replace(progress, began=ends))
        for queue, first in earliest.items():
            begin = progress.began.get(queue, 0)
            if begin < first:
                raise SourceError(
                    "WRITE_FAILED",
                    f"an earlier attempt of this micro-batch started at offset {begin} of queue "
                    f"{queue.queue_id} at {queue.broker_name}, and the broker has deleted messages "
                    f"up to offset {first}, so it cannot be known which rows are stored; to accept "
                    f"that rows of one micro-batch are stored twice, write {{}} to {self._uri}",
                )
        return progress

    def commit(self, progress: SinkProgress, query: str, batch: int) -> None:
        """Record that all rows of a micro-batch are stored."""
        self._saved(replace(progress, query=query, committed=batch, began=None))

    def _saved(self, progress: SinkProgress) -> SinkProgress:
        began = None if progress.began is None else to_json(progress.began)
        fields = {"query": progress.query, "committed": progress.committed, "began": began}
        self._files.write(PROGRESS_FILE, json.dumps(fields).encode())
        return progress

    def _unknown(self, what: str) -> SourceError:
        return SourceError(
            "WRITE_FAILED",
            f"{self._uri} {what}, so it cannot be known which rows are stored; restore it, use a "
            "new checkpointLocation, or write {} to it to accept that rows of one micro-batch are "
            "stored twice",
        )


def _decoded(fields: Any) -> SinkProgress:
    if not isinstance(fields, dict):
        raise TypeError(fields)
    found = cast("dict[str, Any]", fields)
    began = found.get("began")
    return SinkProgress(
        query=str(found.get("query", "")),
        committed=int(found.get("committed", _NOTHING_COMMITTED)),
        began=None if began is None else from_json(began),
    )
