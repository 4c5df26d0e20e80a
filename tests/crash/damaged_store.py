"""A small store with known messages, for tests that damage a copy of it."""

import contextlib
import shutil
import tempfile
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from calm_files import CalmFiles

from tianzhou.base.kinds import QueueKey, QueueOffset, queue_key
from tianzhou.record.chunk import Entry, RecordChunk, build
from tianzhou.record.message import MessageView, decode_all
from tianzhou.store.config import StoreConfig
from tianzhou.store.errors import StoreRefused
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock

FILE_BYTES: Final = 8192
CONFIG: Final = StoreConfig(
    commit_log_file_bytes=FILE_BYTES,
    consume_queue_file_bytes=10 * 20,
    commit_log_preallocate_bytes=4096,
    index_slots=16,
    index_entries=60,
    retention_at_hours=(),
)
QUEUES: Final = tuple(queue_key(topic, n) for topic in ("orders", "payments") for n in range(2))


class Placed(NamedTuple):
    serial: int
    queue: QueueKey
    queue_offset: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


def entry_of(serial: int) -> Entry:
    properties = f"TAGS\x01t{serial % 3}\x02KEYS\x01K{serial}\x02UNIQ_KEY\x01U{serial:04d}\x02"
    return Entry(QUEUES[serial % len(QUEUES)], b"body %04d" % serial * 8, properties.encode())


def chunk_of(serials: range) -> RecordChunk:
    return build(map(entry_of, serials), store_host=bytes(8), record_crc=True)


def open_store(root: Path, *, rebuild: bool = False, accept_loss_at: int = -1) -> MessageStore:
    config = replace(CONFIG, accept_loss_at=accept_loss_at)
    return MessageStore(CalmFiles(), str(root), config, ManualClock(), rebuild=rebuild)


def open_in_spite_of_loss(root: Path) -> MessageStore:
    """Open as an operator does: the error names the offset that lets the store open."""
    with pytest.raises(StoreRefused) as caught:
        open_store(root)
    assert f"accept_loss_at={caught.value.loss_at}" in str(caught.value)
    return open_store(root, accept_loss_at=caught.value.loss_at)


@contextlib.contextmanager
def fast_directory() -> Generator[Path]:
    """A directory in memory if possible: these tests damage files themselves, and syncs of a shared
    disk would take nearly all of their time."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@dataclass
class Known:
    """A store directory, and the messages that were appended to it."""

    root: Path
    placed: list[Placed] = field(default_factory=list[Placed])

    def append(self, store: MessageStore, count: int) -> None:
        serials = range(len(self.placed), len(self.placed) + count)
        chunk = chunk_of(serials)
        done = store.append(chunk)
        store.dispatch_all()
        for rank, offset in enumerate(done.physical_offsets()):
            size = chunk.ends[rank] - chunk.starts[rank]
            queue = entry_of(serials[rank]).queue
            self.placed.append(Placed(serials[rank], queue, done.queue_offsets[rank], offset, size))

    def copy(self, to: Path) -> "Known":
        shutil.copytree(self.root, to, dirs_exist_ok=True)
        return Known(to, list(self.placed))

    def log_path(self, offset: int) -> Path:
        return self.root / "commitlog" / f"{offset // FILE_BYTES * FILE_BYTES:020d}"

    def read_log(self, offset: int, size: int) -> bytes:
        at = offset % FILE_BYTES
        return self.log_path(offset).read_bytes()[at : at + size]

    def write_log(self, offset: int, data: bytes) -> None:
        with self.log_path(offset).open("r+b") as file:
            file.seek(offset % FILE_BYTES)
            file.write(data)

    def tree(self, part: str) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted((self.root / part).rglob("*"))
            if path.is_file()
        }


def make(root: Path, count: int, *, clean: bool, flushed: int | None = None) -> Known:
    """Create a store of `count` messages: closed, or killed when `flushed` of them were synced."""
    known = Known(root)
    store = open_store(root)
    first = count if flushed is None else flushed
    known.append(store, first)
    store.checkpoint()
    if count > first:
        known.append(store, count - first)
    if clean:
        store.close()
    else:
        store.abandon()
    return known


def readable(store: MessageStore) -> set[Placed]:
    """Read every message. Fails on a message that was never sent."""
    found: set[Placed] = set()
    for key in QUEUES:
        at = store.min_offset(key)
        while at < store.max_offset(key):
            with store.read(key, QueueOffset(at), ReadLimit(7)) as result:
                for view in (view for span in result.spans for view in decode_all(span)):
                    found.add(recognise(view, key))
                at = result.next_offset
    return found


def recognise(view: MessageView, key: QueueKey) -> Placed:
    serial = int(view.body[5:9])
    entry = entry_of(serial)
    assert view.body == entry.body
    assert (view.topic, view.queue_id) == entry.queue == key
    return Placed(serial, key, view.queue_offset, view.physical_offset, view.total_size)


def unfound(store: MessageStore, placed: list[Placed]) -> list[int]:
    """Serials that the index does not find, by key or unique id."""
    assert store.index is not None
    missing: list[int] = []
    for message in placed:
        for name in (f"K{message.serial}", f"U{message.serial:04d}"):
            found = store.index.find(
                message.queue.topic, name, begin_ms=0, end_ms=1 << 61, count_max=1 << 20
            )
            if message.offset not in found:
                missing.append(message.serial)
    return missing


def check_whole(store: MessageStore, placed: list[Placed]) -> None:
    """Check that exactly these messages are found, by queue and by key."""
    assert readable(store) == set(placed)
    assert unfound(store, placed) == []
