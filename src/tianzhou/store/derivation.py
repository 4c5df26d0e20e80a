"""The inputs of queue derivation besides the log: earlier delay levels and deleted topics.

Stored in `config/derivation.json`. The unit of a delayed message contains its delivery time, which
depends on the `messageDelayLevel` in force when it was stored; records of a deleted topic stay in
the log until it expires. Deriving a log again, or comparing it with its queues, needs both. For a
directory without the file, such as one of RocketMQ, the current levels are assumed for all records.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from tianzhou.base.kinds import QueueOffset
from tianzhou.store.consume_queue import UNIT, UNIT_BYTES
from tianzhou.store.derive import QueueUnits
from tianzhou.store.files import Files
from tianzhou.store.tables import Table

FILE: Final = "derivation.json"


class DelayLevels(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    since: int
    """Physical offset of the first record that was stored with these."""
    delays_ms: tuple[int, ...]


class _Stored(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    delay_levels: tuple[DelayLevels, ...] = ()
    deleted_topics: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """Maps a topic to the offset before which its records are deleted."""


_DECODER: Final = msgspec.json.Decoder(_Stored)
_NEEDS: Final = ("delayLevels", "deletedTopics")


class Part(NamedTuple):
    """Neighbouring records that were stored with the same delay levels."""

    starts: Sequence[int]
    end: int
    delays_ms: Sequence[int]


class Derivation:
    """Owner: the store's writer, or a tool that has the lock of the directory."""

    def __init__(self, files: Files, tables_path: str, delays_ms: Sequence[int]) -> None:
        """`delays_ms` apply if the directory does not record its levels."""
        self._table = Table(
            files, f"{tables_path}/{FILE}", _DECODER.decode, _Stored(), needs=_NEEDS
        )
        self._saving = threading.Lock()
        self._delays_ms = tuple(delays_ms)
        self._saved = self._table.load()
        self._change(self._saved)

    def _change(self, stored: _Stored) -> None:
        self._stored = stored
        levels = stored.delay_levels
        # Dispatch needs these for every slice, so they are computed only when something changes.
        self.delays_ms = levels[-1].delays_ms if levels else self._delays_ms
        """The levels of the newest records."""
        self.is_uniform = len(levels) == 1 and not stored.deleted_topics
        """Whether all records of the log have the same delay levels, and no topic was deleted:
        then `parts` divides nothing and `live` leaves nothing out."""

    @property
    def deleted_topics(self) -> Mapping[str, int]:
        return self._stored.deleted_topics

    def begin(self, log_min: int, log_end: int) -> None:
        """Record the levels with which the store was opened, and the offset from which they
        apply."""
        levels, deleted = self._stored.delay_levels, self._stored.deleted_topics
        if not levels or levels[-1].delays_ms != self._delays_ms:
            since = log_end if levels else 0
            levels = (*levels, DelayLevels(since=since, delays_ms=self._delays_ms))
        # Entries that only concern expired records are no longer needed.
        while len(levels) > 1 and levels[1].since <= log_min:
            levels = levels[1:]
        # A log that lost its end reuses the offsets of deleted records.
        kept = {topic: min(at, log_end) for topic, at in deleted.items() if at > log_min}
        self._save(levels, kept)

    def delete_topic(self, topic: str, at: int) -> None:
        """Mark the topic's records before this offset as deleted; durable after `save`."""
        deleted = self._stored.deleted_topics
        if at > deleted.get(topic, 0):
            levels = self._stored.delay_levels
            self._change(_Stored(delay_levels=levels, deleted_topics=deleted | {topic: at}))

    def cut(self, log_end: int) -> None:
        """Handle truncation of the log here: entries for later offsets no longer apply."""
        levels = tuple(
            msgspec.structs.replace(one, since=min(one.since, log_end))
            for one in self._stored.delay_levels
        )
        deleted = self._stored.deleted_topics
        self._save(levels, {topic: min(at, log_end) for topic, at in deleted.items()})

    def _save(self, levels: tuple[DelayLevels, ...], deleted: dict[str, int]) -> None:
        self._change(_Stored(delay_levels=levels, deleted_topics=deleted))
        self.save()

    def save(self) -> None:
        """Make every change so far durable. May be called from any thread."""
        with self._saving:
            stored = self._stored
            if stored != self._saved:
                self._table.save(stored)
                self._saved = stored

    def parts(self, starts: Sequence[int], end: int, *, base: int) -> Iterator[Part]:
        """Neighbouring records, divided where the delay levels changed."""
        levels = self._stored.delay_levels
        for rank, one in enumerate(levels):
            following = levels[rank + 1].since - base if rank + 1 < len(levels) else end
            count = bisect_left(starts, following)
            if count == len(starts):
                yield Part(starts, end, one.delays_ms)
                return
            if count:
                yield Part(starts[:count], starts[count], one.delays_ms)
                starts = starts[count:]
        yield Part(starts, end, self._delays_ms)

    def live(self, run: QueueUnits) -> QueueUnits | None:
        """The run without records of a topic that was deleted later on."""
        bound = self._stored.deleted_topics.get(run.queue.topic)
        if bound is None:
            return run
        offsets = [offset for offset, _, _ in UNIT.iter_unpack(run.units)]
        count = bisect_left(offsets, bound)
        if not count:
            return run
        units = run.units[count * UNIT_BYTES :]
        return QueueUnits(run.queue, QueueOffset(run.first + count), units) if units else None
