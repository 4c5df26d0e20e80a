"""Delay levels: messages wait in the queue of their level, and go where they are meant to.

All messages of a queue wait equally long, so each queue is in order of delivery, and a level is one
number: the offset of the first message that still waits. Messages are put where they belong, and
the number moves on; it is saved after these messages are on the medium. A crash in between delivers
some of them twice, never none.
"""

from dataclasses import dataclass
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import QueueKey, QueueOffset, queue_key
from tianzhou.broker.writing.delivery import deliver
from tianzhou.broker.writing.flushed_checkpoint import FlushedCheckpoint
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.broker.writing.stored import records
from tianzhou.store.consume_queue import MISSING_SIZE, UNIT
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.wire.names import SCHEDULE_TOPIC
from tianzhou.wire.tables import DataVersion, DelayOffsetTable

CHUNK_COUNT_MAX: Final = 256
CHUNK_BYTES_MAX: Final = 1024 * 1024
"""One append. Large enough that the append costs little per message."""
TICK_COUNT_MAX: Final = 1024
"""Messages per tick: about 15 ms of work, after which the loop serves clients."""


@dataclass(slots=True)
class _Level:
    number: int
    queue: QueueKey
    delay_ms: int
    offset: int
    """The first message that waits."""


class Delays:
    """Owner: the broker loop."""

    def __init__(
        self, store: MessageStore, writer: Writer, clock: Clock, *, save_every_ms: int
    ) -> None:
        self._store = store
        self._writer = writer
        self._clock = clock
        self._save_every_ms = save_every_ms
        self.begin()

    def begin(self) -> None:
        """Go on where the saved offsets say."""
        stored = self._store.tables.delay_offsets.load()
        self._version = stored.data_version
        self._levels = _levels(self._store, stored.offset_table)
        self._turn = len(self._levels) - 1
        """Rank of the level that was checked last."""
        self._saving = FlushedCheckpoint(
            self._store, self._offsets, self._save,
            every_ms=self._save_every_ms, now_s=self._clock.monotonic_s(),
        )  # fmt: skip

    def tick(self) -> bool:
        """Deliver what is due, a chunk of each level in turn, so that none waits for another."""
        now_ms, count, idle = self._clock.now_ms(), 0, 0
        while idle < len(self._levels) and count < TICK_COUNT_MAX:
            # The next tick continues with the next level, so that the last levels are not starved.
            self._turn = (self._turn + 1) % len(self._levels)
            moved = self._deliver(self._levels[self._turn], now_ms)
            idle = 0 if moved else idle + 1
            count += moved
        self._saving.tick(self._clock.monotonic_s())
        return count >= TICK_COUNT_MAX

    def finish(self) -> None:
        """Save how far we came; the log is flushed."""
        self._saving.finish()

    def table(self) -> DelayOffsetTable:
        return DelayOffsetTable(data_version=self._version, offset_table=self._offsets())

    def _deliver(self, level: _Level, now_ms: int) -> int:
        """One chunk; how many messages it moved past."""
        queue = self._store.queues.get(level.queue)
        if queue is None or level.offset >= queue.end:
            return 0
        start = max(level.offset, queue.min_offset)
        due = _due(queue.read(start, CHUNK_COUNT_MAX), now_ms, level.delay_ms)
        if not due:
            return 0
        limit = ReadLimit(due, CHUNK_BYTES_MAX)
        with self._store.read(level.queue, QueueOffset(start), limit) as found:
            meant = [stored.meant() for stored in records(found)]
            entries = [message.to_entry() for message in meant if message is not None]
            if not deliver(self._writer, entries):
                return 0
            level.offset = found.next_offset
        return level.offset - start

    def _offsets(self) -> dict[int, int]:
        return {level.number: level.offset for level in self._levels if level.offset}

    def _save(self, offsets: dict[int, int]) -> None:
        self._version = DataVersion(
            counter=self._version.counter + 1, timestamp=self._clock.now_ms()
        )
        table = DelayOffsetTable(data_version=self._version, offset_table=offsets)
        self._store.tables.delay_offsets.save(table)


def _levels(store: MessageStore, offsets: dict[int, int]) -> list[_Level]:
    """The levels of the settings, and those of which messages are left from other settings."""
    delays = store.config.delay_levels_ms or (0,)
    left = [queue.key.queue_id + 1 for queue in store.queues.of_topic(SCHEDULE_TOPIC)]
    return [
        _Level(
            number,
            queue_key(SCHEDULE_TOPIC, number - 1),
            delays[min(number, len(delays)) - 1],
            offsets.get(number, 0),
        )
        for number in range(1, max([len(delays), *left]) + 1)
    ]


def _due(units: bytes, now_ms: int, delay_ms: int) -> int:
    """How many units from the first on are due. Their tag hash is the moment of delivery.

    A moment further ahead than the delay means that the clock was set back or the level changed:
    such a message is due now, as in RocketMQ, rather than in a year.
    """
    count = 0
    for _, size, moment in UNIT.iter_unpack(units):
        if now_ms < moment <= now_ms + delay_ms and size != MISSING_SIZE:
            break
        count += 1
    return count
