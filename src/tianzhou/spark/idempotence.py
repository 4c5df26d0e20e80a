"""Detecting messages that an earlier attempt of the same task has already written.

Every message that the sink writes carries the property `SPARK_MARK`:

    query id : batch id : partition : rank [: digest]

The rank counts the rows of a task. The digest is present only with `idempotent`. It covers the
message's body and properties: a retried task may receive its rows in another order, but never
other rows.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.bulk.reader import QueueRange, QueueReader
from tianzhou.client.bulk.sender import Entry, Unsure
from tianzhou.record import names
from tianzhou.record.message import MessageView
from tianzhou.record.properties import find
from tianzhou.spark.options import GROUP_DEFAULT
from tianzhou.wire.queues import MessageQueue

MARK_PROPERTY: Final = b"SPARK_MARK"
_DIGEST_BYTES: Final = 8


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
