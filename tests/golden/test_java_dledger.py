"""A directory that a DLedger broker of RocketMQ 4.9.7 wrote: every message at its queue offset."""

import json
import tarfile
import zlib
from pathlib import Path
from typing import Final

import pytest
from java_sample import SAMPLES

from tianzhou.base.kinds import QueueKey, QueueOffset, queue_key
from tianzhou.record.message import MessageView, decode_all
from tianzhou.store.config import StoreConfig
from tianzhou.store.detect import detect
from tianzhou.store.dledger import Ledger, committed_index
from tianzhou.store.errors import StoreRefused
from tianzhou.store.files import ReadOnlyFiles, RealFiles
from tianzhou.store.imports import Imported, Source, finish, import_store
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.wire.names import SCHEDULE_TOPIC

NAME: Final = "java-4.9.7-dledger"
TOPIC: Final = "golden_orders"
DELAYED: Final = 3
DELIVERED: Final = 1
"""A message of one second was delivered before the broker stopped."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    with tarfile.open(SAMPLES / f"{NAME}.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    return tmp_path / "store"


def expected() -> list[tuple[int, int, int]]:
    """Queue, queue offset and checksum of the body, as the producer was told."""
    lines = (SAMPLES / f"{NAME}.expected.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return sorted((row["queue"], row["offset"], row["crc"]) for row in rows)


def run(source: Path, target: Path) -> Imported:
    store, found = import_store(
        Source(ReadOnlyFiles(), str(source)),
        RealFiles(),
        str(target),
        ManualClock(1_800_000_000_000),
        tell=lambda _done, _all: None,
    )
    store.close()
    finish(RealFiles(), str(target))
    return found


def messages(store: MessageStore, key: QueueKey) -> list[MessageView]:
    start = QueueOffset(store.min_offset(key))
    with store.read(key, start, ReadLimit(1000, 1 << 24)) as found:
        return [view for span in found.spans for view in decode_all(span)]


def test_golden_ledger_is_read_completely(source: Path) -> None:
    directory = str(source / "dledger-n0")
    ledger = Ledger(ReadOnlyFiles(), directory)
    assert ledger.file_bytes == 65536
    count = sum(1 for _ in ledger)
    assert count == len(expected()) + DELAYED + DELIVERED
    assert not ledger.damage
    assert ledger.last_index == committed_index(ReadOnlyFiles(), directory) == count - 1


def test_golden_ledger_is_imported_with_its_offsets(source: Path, tmp_path: Path) -> None:
    found = run(source, tmp_path / "new")
    assert (found.damage, found.uncommitted, found.set_back) == ([], 0, 0)
    config = detect(RealFiles(), str(tmp_path / "new"))
    clock = ManualClock(1_800_000_000_000)
    store = MessageStore(RealFiles(), str(tmp_path / "new"), config, clock)
    views = [view for n in range(4) for view in messages(store, queue_key(TOPIC, n))]
    rows = [
        (view.queue_id, int(view.queue_offset), zlib.crc32(view.body))
        for view in views
        if not view.body.startswith(b"later")
    ]
    assert sorted(rows) == expected()
    assert [view.body for view in views if view.body.startswith(b"later")] == [b"later 1"]
    (waiting,) = messages(store, queue_key(SCHEDULE_TOPIC, 17))
    assert waiting.body == b"later 18"
    offsets = store.tables.consumer_offsets.load().offset_table[f"{TOPIC}@golden_group"]
    assert offsets == {queue: 5 + queue for queue in range(4)}
    assert store.tables.delay_offsets.load().offset_table == {1: 1}
    store.close()


def test_golden_ledger_is_not_opened_in_place(source: Path, tmp_path: Path) -> None:
    config = StoreConfig(commit_log_file_bytes=65536)
    with pytest.raises(StoreRefused, match="tianzhou store import"):
        MessageStore(RealFiles(), str(source), config, ManualClock())
    assert run(source, tmp_path / "new").records > 0
