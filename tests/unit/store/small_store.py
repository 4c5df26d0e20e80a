"""A store of small files in a directory of the test, and messages for it."""

from pathlib import Path
from typing import Final

from tianzhou.base.kinds import QueueKey, QueueOffset, queue_key
from tianzhou.record.chunk import Entry, RecordChunk, build
from tianzhou.record.message import decode_all
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.store.files import Files, RealFiles, Usage
from tianzhou.store.read import ReadLimit, ReadResult
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock

KEY: Final = queue_key("orders", 0)
OTHER: Final = queue_key("orders", 1)
FILE_BYTES: Final = 4096


class CalmFiles(RealFiles):
    """How full the disk of this machine is must not decide a test."""

    def usage(self, path: str) -> Usage:
        return Usage(total=100, free=90)


def open_store(
    root: Path | str,
    *,
    files: Files | None = None,
    clock: ManualClock | None = None,
    mode: FlushMode = FlushMode.ASYNC,
) -> MessageStore:
    config = StoreConfig(
        commit_log_file_bytes=FILE_BYTES,
        consume_queue_file_bytes=200,
        commit_log_preallocate_bytes=4096,
        index_slots=8,
        index_entries=40,
        retention_hours=1,
        retention_at_hours=(),
        flush_mode=mode,
        flush_interval_ms=1,
    )
    return MessageStore(files or CalmFiles(), str(root), config, clock or ManualClock())


def chunk(
    *bodies: bytes, key: QueueKey = KEY, tag: str = "", keys: str = "", sys_flag: int = 0
) -> RecordChunk:
    properties = b""
    if tag:
        properties += f"TAGS\x01{tag}\x02".encode()
    if keys:
        properties += f"KEYS\x01{keys}\x02".encode()
    entries = [Entry(key, body, properties, sys_flag=sys_flag) for body in bodies]
    return build(entries, store_host=bytes(8), record_crc=True)


def put(store: MessageStore, *bodies: bytes, key: QueueKey = KEY, tag: str = "") -> None:
    store.append(chunk(*bodies, key=key, tag=tag))
    store.dispatch_all()


def bodies_of(result: ReadResult) -> list[bytes]:
    return [view.body for span in result.spans for view in decode_all(span)]


def read(
    store: MessageStore,
    start: int = 0,
    *,
    count: int = 99,
    size: int = 1 << 20,
    key: QueueKey = KEY,
    tags: set[int] | None = None,
) -> list[bytes]:
    with store.read(key, QueueOffset(start), ReadLimit(count, size), tags_codes=tags) as result:
        return bodies_of(result)
