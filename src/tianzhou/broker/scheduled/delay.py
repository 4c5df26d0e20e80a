"""Delay levels: messages wait in the queue of their level and are then stored in their topic.

All messages of a queue wait equally long, so each queue is in the order of delivery, and the
progress of a level is one number: the offset of the first waiting message. It is saved after the
delivered messages are on the disk. A crash in between delivers some messages twice, and loses none.
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
from tianzhou.store.read import ReadLimit, ReadStatus
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
    """Of the first waiting message."""


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
        """Resume at the saved offsets."""
        stored = self._store.tables.delay_offsets.load()
        self._version = stored.data_version
        self._levels = _levels(self._store, stored.offset_table)
        self._turn = len(self._levels) - 1
        """Rank of the level that was checked last."""
        self._saving = FlushedCheckpoint(
            self._store,
            self._offsets,
            self._save,
            every_ms=self._save_every_ms,
            now_s=self._clock.monotonic_s(),
        )

    def tick(self) -> bool:
        """Deliver due messages, a chunk of each level in turn, so that no level waits for
        another."""
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
        """Save the progress; the log is flushed."""
        self._saving.finish()

    def table(self) -> DelayOffsetTable:
        return DelayOffsetTable(data_version=self._version, offset_table=self._offsets())

    def _deliver(self, level: _Level, now_ms: int) -> int:
        """Deliver one chunk; returns by how much the offset advanced."""
        queue = self._store.queues.get(level.queue)
        if queue is None or level.offset >= queue.end:
            return 0
        start = max(level.offset, queue.min_offset)
        due = _due(queue.read(start, CHUNK_COUNT_MAX), now_ms, level.delay_ms)
        if not due:
            return 0
        limit = ReadLimit(due, CHUNK_BYTES_MAX)
        with self._store.read(level.queue, QueueOffset(start), limit) as found:
            if found.status is ReadStatus.NOT_READY:
                return 0  # the next tick reads again
            messages = [stored.destination() for stored in records(found)]
            entries = [message.to_entry() for message in messages if message is not None]
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
    """The configured levels, and those that still have messages from earlier settings."""
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
    """How many units from the first on are due. Their tag hash is the time of delivery.

    A time further ahead than the delay means that the clock was set back or the level changed: such
    a message is due now, as in RocketMQ, rather than in a year.
    """
    count = 0
    for _, size, due_ms in UNIT.iter_unpack(units):
        if now_ms < due_ms <= now_ms + delay_ms and size != MISSING_SIZE:
            break
        count += 1
    return count
