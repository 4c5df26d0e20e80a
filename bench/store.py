"""The store: append, dispatch, read, sync flush, recovery; compared with plain copies and syncs."""

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import count

from bench.measure import Row, Timing, best_of, row
from tianzhou.base.java import string_hash
from tianzhou.base.kinds import QueueOffset, queue_key
from tianzhou.cmd.clock import SystemClock
from tianzhou.record.chunk import Entry, RecordChunk, build
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.store.files import RealFiles
from tianzhou.store.read import ReadLimit, ReadStatus
from tianzhou.store.scan import LogScan
from tianzhou.store.store import MessageStore

TOPIC = "bench"
KEY = queue_key(TOPIC, 0)
HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
BYTES = 64 * 1024 * 1024
"""Bytes per run: enough to exceed the caches, small enough to repeat."""
COPY = "copy into a mapped file"
_numbers = count()


@contextmanager
def temporary(directory: str) -> Generator[str]:
    made = tempfile.mkdtemp(prefix="tianzhou-bench-", dir=directory)
    try:
        yield made
    finally:
        shutil.rmtree(made)


def chunk_of(records: int, body_bytes: int) -> RecordChunk:
    """Messages as a Java producer sends them: unique id, WAIT, and one of ten tags."""
    body = bytes(range(256)) * (body_bytes // 256) + bytes(body_bytes % 256)
    entries = [
        Entry(
            KEY,
            body,
            b"UNIQ_KEY\x017F000001%024X\x02WAIT\x01true\x02TAGS\x01tag-%d\x02"
            % (number := next(_numbers), number % 10),
            born_timestamp=1_700_000_000_000,
            born_host=HOST,
        )
        for _ in range(records)
    ]
    return build(entries, store_host=HOST, record_crc=True)


def chunks_of(records: int, body_bytes: int, total_bytes: int) -> list[RecordChunk]:
    size = records * (body_bytes + 190)
    return [chunk_of(records, body_bytes) for _ in range(max(1, total_bytes // size))]


def open_store(directory: str, *, flush_mode: FlushMode = FlushMode.ASYNC) -> MessageStore:
    config = StoreConfig(index_slots=500_000, index_entries=2_000_000, flush_mode=flush_mode)
    return MessageStore(RealFiles(), directory, config, SystemClock())


def plain_copy(directory: str, pieces: list[bytearray]) -> Timing:
    """Write the same bytes in the same pieces to a preallocated mapped file: the minimal work."""
    size = sum(map(len, pieces))
    path = f"{directory}/copy"

    def prepare() -> Callable[[], None]:
        if os.path.exists(path):
            os.unlink(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(fd, 0, size)
        target = mmap.mmap(fd, size)
        os.close(fd)

        def run() -> None:
            at = 0
            for piece in pieces:
                end = at + len(piece)
                target[at:end] = piece
                at = end

        return run

    return best_of(prepare)


def appends(directory: str) -> Iterator[Row]:
    for body_bytes in (128, 1024):
        for records in (1, 32, 256):
            total = BYTES // 16 if records == 1 else BYTES
            chunks = chunks_of(records, body_bytes, total)
            size = sum(len(chunk.data) for chunk in chunks)
            copy = plain_copy(directory, [chunk.data for chunk in chunks])
            yield append(directory, chunks, records, body_bytes, size / copy.seconds)


def append(
    directory: str, chunks: list[RecordChunk], records: int, body_bytes: int, copy_speed: float
) -> Row:
    opened: list[MessageStore] = []

    def prepare() -> Callable[[], None]:
        while opened:
            opened.pop().abandon()
        shutil.rmtree(f"{directory}/append", ignore_errors=True)
        store = open_store(f"{directory}/append")
        opened.append(store)

        def run() -> None:
            for chunk in chunks:
                store.append(chunk)
                store.dispatch_all()

        return run

    timing = best_of(prepare)
    opened.pop().abandon()
    return row(
        "append and dispatch",
        f"{body_bytes} B bodies, chunks of {records}",
        timing,
        messages=records * len(chunks),
        size=sum(len(chunk.data) for chunk in chunks),
        yardstick=COPY,
        yardstick_bytes_per_second=copy_speed,
        floor=0.2 if (records, body_bytes) == (256, 1024) else None,
    )


def reads(directory: str) -> Iterator[Row]:
    chunks = chunks_of(256, 1024, BYTES)
    store = open_store(f"{directory}/read")
    for chunk in chunks:
        store.append(chunk)
        store.dispatch_all()
    size = sum(len(chunk.data) for chunk in chunks)
    record = len(chunks[0].data) // 256
    for name, limit, per_request in (
        ("32 records a request", ReadLimit(32), 32),
        ("256 KiB a request", ReadLimit(10_000, 256 * 1024), 256 * 1024 // record),
    ):
        piece = bytearray(per_request * record)
        copy = plain_copy(directory, [piece] * (size // len(piece)))
        speed = size // len(piece) * len(piece) / copy.seconds
        yield read(store, name, limit, None, speed, floor=0.5)
        one_tag = {string_hash("tag-3")}
        yield read(store, f"{name}, one tag of ten", limit, one_tag, speed, floor=None)
    store.abandon()


def read(
    store: MessageStore,
    name: str,
    limit: ReadLimit,
    tags_codes: set[int] | None,
    copy_speed: float,
    floor: float | None,
) -> Row:
    totals = [0, 0]

    def run() -> None:
        messages = size = 0
        offset = QueueOffset(0)
        while True:
            with store.read(KEY, offset, limit, tags_codes=tags_codes) as result:
                if result.status is not ReadStatus.FOUND:
                    break
                messages += result.count
                size += result.size
                offset = result.next_offset
        totals[:] = [messages, size]

    timing = best_of(lambda: run)
    messages, size = totals
    assert messages == store.max_offset(KEY) if tags_codes is None else messages > 0
    return row(
        "read",
        name,
        timing,
        messages=messages,
        size=size,
        yardstick=COPY,
        yardstick_bytes_per_second=copy_speed,
        floor=floor,
    )


def flushes(directory: str) -> Iterator[Row]:
    """Each producer waits for its own message; one sync serves all that wait."""
    rounds = 100
    alone = best_of(lambda: lambda: _sync_alone(directory, rounds), repeats=3)
    yield row(
        "synchronous flush",
        "fdatasync alone, 1 KiB each",
        alone,
        messages=rounds,
        size=rounds * 1024,
    )
    yardstick = rounds * 1024 / alone.seconds
    for producers in (1, 16, 256):
        chunks = [[chunk_of(1, 1024) for _ in range(producers)] for _ in range(rounds)]
        store = open_store(f"{directory}/flush-{producers}", flush_mode=FlushMode.SYNC)
        store.start()

        def run(store: MessageStore = store, chunks: list[list[RecordChunk]] = chunks) -> None:
            for waiting in chunks:
                end = store.log.end
                for chunk in waiting:
                    end = store.append(chunk).end
                assert store.wait_flushed(end, 10)
                store.dispatch_all()

        timing = best_of(lambda run=run: run, repeats=3)
        store.close()
        messages = producers * rounds
        yield row(
            "synchronous flush",
            f"{producers} waiting producers",
            timing,
            messages=messages,
            size=messages * 1024,
            yardstick="fdatasync alone",
            yardstick_bytes_per_second=yardstick,
        )


def _sync_alone(directory: str, rounds: int) -> None:
    fd = os.open(f"{directory}/sync", os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, rounds * 1024)
        for number in range(rounds):
            os.pwrite(fd, bytes(1024), number * 1024)
            os.fdatasync(fd)
    finally:
        os.close(fd)


def recoveries(directory: str) -> Iterator[Row]:
    chunks = chunks_of(256, 1024, BYTES)
    messages, size = 256 * len(chunks), sum(len(chunk.data) for chunk in chunks)
    copy = plain_copy(directory, [chunk.data for chunk in chunks])
    root = f"{directory}/recover"
    store = open_store(root)
    for chunk in chunks:
        store.append(chunk)

    def scan() -> None:
        log = store.log
        pieces = LogScan(log.segments, log.file_bytes, log.min_offset)
        assert sum(len(piece.starts) for piece in pieces) == messages

    timing = best_of(lambda: scan)
    store.close()
    yield row(
        "recovery",
        "scan, every checksum verified",
        timing,
        messages=messages,
        size=size,
        yardstick=COPY,
        yardstick_bytes_per_second=size / copy.seconds,
        floor=0.1,
    )

    def rebuild() -> None:
        opened = MessageStore(RealFiles(), root, store.config, SystemClock(), rebuild=True)
        assert opened.recovered.records == messages
        opened.close()

    timing = best_of(lambda: rebuild, repeats=3)
    yield row(
        "recovery",
        "open, rebuild queues and index, close",
        timing,
        messages=messages,
        size=size,
        yardstick=COPY,
        yardstick_bytes_per_second=size / copy.seconds,
    )


def rows(directory: str) -> Iterator[Row]:
    for part in (appends, reads, flushes, recoveries):
        with temporary(directory) as made:
            yield from part(made)
