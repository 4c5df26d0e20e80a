"""Rows of the store for `bench.compare`, as a process: one row for each line of its input.

    python -m bench.compare_store DIRECTORY

It imports `tianzhou` of the interpreter that runs it. Each line names a row; the answer is a line
with the microseconds of CPU that one message took, or the names of all rows for `?`.
"""

import gc
import shutil
import sys
from collections.abc import Callable
from itertools import count
from time import process_time

from bench.store import KEY, chunk_of, open_store
from tianzhou.base.java import string_hash
from tianzhou.base.kinds import PhysicalOffset, QueueOffset
from tianzhou.cmd.clock import SystemClock
from tianzhou.record.chunk import RecordChunk
from tianzhou.store.files import RealFiles
from tianzhou.store.read import ReadLimit, ReadStatus
from tianzhou.store.scan import LogScan
from tianzhou.store.store import MessageStore

Prepared = tuple[int, Callable[[], None]]
"""How many messages a run handles, and the run."""
RECORDS = 32_768
ONE_TAG = {string_hash("tag-3")}
_fresh = count()


class Rows:
    """Stores are opened once and kept; what a row appends to is new for every run."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._stores: dict[tuple[int, bool], MessageStore] = {}
        self._chunks: dict[tuple[int, int], list[RecordChunk]] = {}
        self._appended: MessageStore | None = None
        self.prepare: dict[str, Callable[[], Prepared]] = {
            "append and dispatch, 128 B, chunks of 1": lambda: self._append(1, 4_096),
            "append and dispatch, 128 B, chunks of 32": lambda: self._append(32, RECORDS),
            "append and dispatch, 128 B, chunks of 256": lambda: self._append(256, RECORDS),
            "append raw and dispatch, 64 KiB": self._append_raw,
            "read 32 x 128 B": lambda: self._read(128, tags=None),
            "read 32 x 1 KiB": lambda: self._read(1024, tags=None),
            "read 32 x 128 B, one tag of ten": lambda: self._read(128, tags=ONE_TAG),
            "read 32 x 1 KiB, one tag of ten": lambda: self._read(1024, tags=ONE_TAG),
            "read 32 x 1 KiB after a restart": lambda: self._read(1024, tags=None, old=True),
            "read 32 x 1 KiB, one tag of ten, after a restart": lambda: self._read(
                1024, tags=ONE_TAG, old=True
            ),
            "scan, every checksum": self._scan,
            "open and rebuild": self._rebuild,
        }

    def measure(self, name: str) -> float:
        messages, run = self.prepare[name]()
        gc.collect()
        begun = process_time()
        run()
        return (process_time() - begun) / messages * 1e6

    def _chunks_of(self, records: int, total: int) -> list[RecordChunk]:
        key = (records, total)
        if key not in self._chunks:
            self._chunks[key] = [chunk_of(records, 128) for _ in range(total // records)]
        return self._chunks[key]

    def _empty(self) -> MessageStore:
        if self._appended is not None:
            self._appended.abandon()
            shutil.rmtree(f"{self._directory}/appended")
        self._appended = open_store(f"{self._directory}/appended")
        return self._appended

    def _append(self, records: int, total: int) -> Prepared:
        chunks, store = self._chunks_of(records, total), self._empty()

        def run() -> None:
            for chunk in chunks:
                store.append(chunk)
                store.dispatch_all()

        return total, run

    def _append_raw(self) -> Prepared:
        """What a slave and a follower do with the bytes of another log."""
        other = self._kept(128)
        segment = other.log.segment_at(PhysicalOffset(0))
        assert segment is not None
        with open(f"{self._directory}/read-128/commitlog/{0:020d}", "rb") as file:
            data = file.read(other.log.end)
        store = self._empty()
        store.stop_writing()

        def run() -> None:
            at = 0
            while at < len(data):
                end = store.append_raw(PhysicalOffset(at), data[at : at + 65_536])
                assert end > at
                at = end
                store.dispatch_all()

        return RECORDS, run

    def _kept(self, body_bytes: int, *, old: bool = False) -> MessageStore:
        if (body_bytes, old) not in self._stores:
            path = f"{self._directory}/{'old' if old else 'read'}-{body_bytes}"
            store = open_store(path)
            for _ in range(RECORDS // 256):
                store.append(chunk_of(256, body_bytes))
                store.dispatch_all()
            if old:
                store.close()
                store = open_store(path)
            self._stores[body_bytes, old] = store
        return self._stores[body_bytes, old]

    def _read(self, body_bytes: int, *, tags: set[int] | None, old: bool = False) -> Prepared:
        store, limit = self._kept(body_bytes, old=old), ReadLimit(32)

        def run() -> None:
            offset, found = QueueOffset(0), 0
            while True:
                with store.read(KEY, offset, limit, tags_codes=tags) as result:
                    if result.status is not ReadStatus.FOUND:
                        break
                    found += result.count
                    offset = result.next_offset
            assert abs(found - expected) <= 32, f"found {found} of {expected}"

        expected = RECORDS if tags is None else RECORDS // 10
        return expected, run

    def _scan(self) -> Prepared:
        log = self._kept(1024).log

        def run() -> None:
            pieces = LogScan(log.segments, log.file_bytes, log.min_offset)
            assert sum(len(piece.starts) for piece in pieces) == RECORDS

        return RECORDS, run

    def _rebuild(self) -> Prepared:
        path = f"{self._directory}/rebuild"
        if not next(_fresh):
            store = open_store(path)
            for chunk in self._chunks_of(256, RECORDS):
                store.append(chunk)
            store.close()
        config = self._kept(1024).config

        def run() -> None:
            opened = MessageStore(RealFiles(), path, config, SystemClock(), rebuild=True)
            assert opened.recovered.records == RECORDS
            opened.close()

        return RECORDS, run


def main(directory: str) -> None:
    rows = Rows(directory)
    for line in sys.stdin:
        name = line.rstrip("\n")
        print("\t".join(rows.prepare) if name == "?" else rows.measure(name), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
