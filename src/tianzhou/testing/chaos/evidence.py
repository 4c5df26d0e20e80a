"""The final state of a cluster: the messages and logs of each replica.

The logs are those of stopped brokers, verified record by record, with a digest per file.
"""

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tianzhou.store.detect import detect
from tianzhou.store.files import RealFiles
from tianzhou.store.segments import Segment
from tianzhou.store.verify import Directory
from tianzhou.testing.chaos.history import Place, Queue


@dataclass(frozen=True, slots=True)
class Replica:
    """One broker of a group, as pulls show it at the end."""

    name: str
    stored: Mapping[Place, str]
    """Value by offset, from a full scan of every queue."""


@dataclass(frozen=True, slots=True)
class LogSum:
    """The log of one replica: its bounds and digests."""

    name: str
    start: int
    end: int
    digests: Mapping[int, str]
    """Digest of each file, by its first offset."""
    queues: Mapping[int, tuple[int, int]]
    """First offset and end of each queue of the topic."""
    problems: tuple[str, ...] = ()
    """Problems that `tianzhou store verify` reports."""


@dataclass(frozen=True, slots=True)
class Evidence:
    replicas: tuple[Replica, ...]
    """The masters of the groups, then the others."""
    masters: int
    """How many of the replicas are masters: together they have every message."""
    logs: tuple[tuple[LogSum, ...], ...] = ()
    """For each group, the log of each replica."""
    committed: Mapping[tuple[str, Queue], int] = field(default_factory=dict[tuple[str, Queue], int])
    """The final committed offset of each group."""

    def stored(self) -> dict[Place, str]:
        """Return the messages of the masters. Of messages that retention removed from a master,
        whose disk was full, those that another replica of its group still has."""
        found: dict[Place, str] = {}
        for replica in self.replicas[self.masters :]:
            left = self.first_offsets(self._master_of(replica))
            found |= {
                place: value
                for place, value in replica.stored.items()
                if place.offset < left.get(place.queue.queue_id, 0)
            }
        for replica in self.replicas[: self.masters]:
            found.update(replica.stored)
        return found

    def first_offsets(self, name: str) -> dict[int, int]:
        """Return the first offset of each queue of a replica; empty if retention removed nothing
        from it."""
        for log in itertools.chain.from_iterable(self.logs):
            if log.name == name and log.start > 0:
                return {queue_id: first for queue_id, (first, _) in log.queues.items()}
        return {}

    def _master_of(self, replica: Replica) -> str:
        groups = ([log.name for log in group] for group in self.logs)
        return next((names[0] for names in groups if replica.name in names), replica.name)


def are_level(one: Mapping[Place, str], other: Mapping[Place, str]) -> bool:
    """Whether two replicas show the same messages, from the first offset on that both have: on a
    full disk, retention removes old files from one replica only."""
    firsts = [_firsts(one), _firsts(other)]

    def is_common(place: Place) -> bool:
        return place.offset >= max(of_one.get(place.queue, 0) for of_one in firsts)

    shown = set(filter(is_common, one))
    return bool(shown) and shown == set(filter(is_common, other))


def _firsts(stored: Mapping[Place, str]) -> dict[Queue, int]:
    firsts: dict[Queue, int] = {}
    for queue, offset in stored:
        firsts[queue] = min(offset, firsts.get(queue, offset))
    return firsts


_PIECE_BYTES: Final = 4 * 1024 * 1024


def sum_up(name: str, root: Path, topic: str, end: int | None = None) -> LogSum:
    """Verify a log without changing it. Queues are those of the topic. Records after `end` are
    ignored: members that stop one after the other still write."""
    files = RealFiles()
    directory = Directory(files, str(root), detect(files, str(root)))
    try:
        found = directory.verify(lambda _done, _total: None)
        end = found.log_end if end is None else min(end, found.log_end)
        digests = {
            int(segment.start): _digest(segment, end)
            for segment in directory.segments
            if segment.start < end
        }
    finally:
        directory.close()
    problems = [*found.problems, *(f"damaged: {damage}" for damage in found.damage)]
    queues = {
        row.queue_id: (row.min_offset, row.max_offset) for row in found.queues if row.topic == topic
    }
    return LogSum(name, found.log_start, end, digests, queues, tuple(problems))


def _digest(segment: Segment, end: int) -> str:
    """Digest of the bytes before this physical offset."""
    found, at = hashlib.sha256(), 0
    stop = min(end - segment.start, segment.file.size())
    while at < stop:
        found.update(segment.read(at, min(at + _PIECE_BYTES, stop)))
        at += _PIECE_BYTES
    return found.hexdigest()
