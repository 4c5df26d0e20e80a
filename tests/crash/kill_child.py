"""The process that is killed: writes to a store and prints what it acknowledges.

    kill_child.py ROOT SEED MODE THREAD ROUNDS POINT HIT

A line is printed only when its message is as durable as the flush mode guarantees. With a fail
point the process kills itself when it reaches that point for the HIT-th time.
"""

import os
import random
import signal
import sys
from typing import Final, NamedTuple

from calm_files import CalmFiles

from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.record.chunk import Entry, RecordChunk, build
from tianzhou.store import failpoint
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.wire.tables import ConsumerOffsetTable

QUEUES: Final = tuple(queue_key(topic, n) for topic in ("orders", "payments") for n in range(3))
ROUND_MS: Final = 120_000
"""A round takes two minutes of the store's clock, so files expire after thirty rounds."""


class Ack(NamedTuple):
    queue: QueueKey
    queue_offset: int
    physical_offset: int
    serial: int
    stored_ms: int


def config(mode: FlushMode) -> StoreConfig:
    return StoreConfig(
        commit_log_file_bytes=32 * 1024,
        consume_queue_file_bytes=50 * 20,
        commit_log_preallocate_bytes=8192,
        index_slots=50,
        index_entries=400,
        flush_mode=mode,
        flush_interval_ms=2,
        flush_pages_min=1,
        retention_hours=1,
        retention_at_hours=(),
    )


def entry_of(serial: int) -> Entry:
    """A message that is fully determined by its number."""
    queue = QUEUES[serial * 7 % len(QUEUES)]
    properties = f"TAGS\x01t{serial % 3}\x02KEYS\x01K{serial}\x02UNIQ_KEY\x01U{serial}\x02"
    body = b"%d|" % serial * (1 + serial * 31 % 40)
    return Entry(queue, body, properties.encode())


def chunk_of(serials: range) -> RecordChunk:
    return build(map(entry_of, serials), store_host=bytes(8), record_crc=True)


def format_acks(serials: range, physical: list[int], ranks: list[int], now_ms: int) -> bytes:
    rows = zip(serials, physical, ranks, strict=True)
    return b"".join(b"%d %d %d %d\n" % (serial, at, rank, now_ms) for serial, at, rank in rows)


def parse_ack(line: bytes) -> Ack:
    serial, physical_offset, queue_offset, stored_ms = map(int, line.split())
    return Ack(entry_of(serial).queue, queue_offset, physical_offset, serial, stored_ms)


class Workload:
    def __init__(self, store: MessageStore, clock: ManualClock, dice: random.Random) -> None:
        self._store = store
        self._clock = clock
        self._dice = dice
        # Numbers are never reused: the end of the log is beyond all used ones.
        self._serial = store.log.end

    def round(self) -> None:
        """A few appends, each acknowledged as soon as possible; then some housekeeping."""
        store, dice = self._store, self._dice
        for _ in range(dice.randrange(1, 4)):
            self._append(dice.choice((1, 3, 60)))
        self._clock.advance(ms=ROUND_MS)
        chore = dice.randrange(6)
        if chore == 0:
            store.checkpoint()
        elif chore == 1:
            store.clean(by_hand=True)
        elif chore == 2:
            store.tables.consumer_offsets.save(self._offsets())
        elif chore == 3:
            store.flush()

    def _append(self, count: int) -> None:
        store = self._store
        serials = range(self._serial, self._serial + count)
        self._serial += count
        now_ms = self._clock.now_ms()
        placed = store.append(chunk_of(serials))
        if store.config.flush_mode is FlushMode.SYNC:
            assert store.wait_flushed(placed.end, 60)
        ranks = list(placed.queue_offsets)
        os.write(1, format_acks(serials, placed.physical_offsets(), ranks, now_ms))
        if self._dice.randrange(4):
            store.dispatch_all()

    def _offsets(self) -> ConsumerOffsetTable:
        """Commit offsets as if a group had read everything that is visible."""
        rows: dict[str, dict[int, int]] = {}
        for queue in self._store.queues:
            rows.setdefault(f"{queue.key.topic}@group", {})[queue.key.queue_id] = queue.end
        return ConsumerOffsetTable(offset_table=rows)


def kill_at(point: str, hit: int) -> None:
    left = hit

    def count_down() -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    failpoint.arm(point, count_down)


def main(arguments: list[str]) -> None:
    root, seed, mode, thread, rounds, point, hit = arguments
    dice = random.Random(int(seed))
    if point != "-":
        kill_at(point, int(hit))
    os.write(1, b"opening\n")
    clock = ManualClock(1_700_000_000_000 + int(seed) * 50 * ROUND_MS)
    # Half of the processes that die while starting have to derive everything.
    rebuild = point == "recovery.before_rebuild" or dice.randrange(10) == 0
    store = MessageStore(CalmFiles(), root, config(FlushMode[mode]), clock, rebuild=rebuild)
    if thread == "thread":
        store.start()
    work = Workload(store, clock, dice)
    for _ in range(int(rounds)):
        work.round()
    store.close()
    os.write(1, b"closed\n")


if __name__ == "__main__":
    main(sys.argv[1:])
