"""What the reading half of a store adds to `read` and `search`: unknown queues, and damage."""

from dataclasses import replace
from pathlib import Path

import pytest
from small_store import KEY, OTHER, CalmFiles, chunk, open_store, put, read

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import QueueOffset
from tianzhou.record.chunk import Entry, build
from tianzhou.record.layout import HEAD
from tianzhou.store import store as store_module
from tianzhou.store.read import ReadLimit, ReadStatus
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock


def test_reader_of_an_unwritten_queue_returns_no_messages(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with store.read(KEY, QueueOffset(5)) as result:
        assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0)
    assert (store.min_offset(KEY), store.max_offset(KEY), store.offset_by_time(KEY, 1)) == (0, 0, 0)
    store.close()


def damaged(root: Path, *bodies: bytes) -> MessageStore:
    """A store that was left in order, and whose disk then forgot a bit of each of these bodies."""
    store = open_store(root)
    put(store, b"one", b"two", b"three")
    put(store, b"four", key=OTHER)
    store.append(chunk(b"five", keys="K"))
    for key in (KEY, OTHER):  # recovery looks at the last one of each queue itself
        put(store, b"last", key=key)
    store.close()
    (file,) = (root / "commitlog").iterdir()
    data = file.read_bytes()
    for body in bodies:
        assert data.count(body) == 1
        data = data.replace(body, bytes([body[0] ^ 1]) + body[1:])
    file.write_bytes(data)
    return open_store(root)


def test_reader_skips_damage_and_reports_it_once(tmp_path: Path) -> None:
    store = damaged(tmp_path, b"two", b"four", b"five")
    told: list[int] = []
    store.damage.on_damage = told.append
    assert read(store) == [b"one", b"three", b"last"]
    with store.read(OTHER, QueueOffset(0), ReadLimit(1)) as result:
        assert (result.status, result.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVING, 1)
    with store.find("orders", "K") as result:
        assert result.count == 0
    assert read(store) == [b"one", b"three", b"last"]
    assert len(told) == len(set(told)) == 3
    assert store.damaged == set(told)
    with store.record_at(told[0]) as result:
        assert (result.status, result.damaged) == (ReadStatus.NO_MATCHED_MESSAGE, told[:1])
    store.close()


@pytest.mark.parametrize("at", [4, 12, 20, 28], ids=["magic", "queue", "rank", "place"])
@pytest.mark.parametrize("tags", [None, {0}], ids=["all", "tags"])
def test_reader_reports_a_unit_without_its_record(
    tmp_path: Path, at: int, tags: set[int] | None
) -> None:
    store = open_store(tmp_path)
    put(store, b"one", b"two", b"three")
    told: list[int] = []
    store.damage.on_damage = told.append
    (file,) = (tmp_path / "commitlog").iterdir()
    place = file.read_bytes().index(b"two") - HEAD.size
    with file.open("r+b") as log:  # under the running store
        log.seek(place + at)
        byte = log.read(1)[0]
        log.seek(place + at)
        log.write(bytes([byte ^ 0x40]))
    assert read(store, tags=tags) == [b"one", b"three"]
    assert told == [place]
    store.close()


def test_reader_accepts_records_without_a_checksum(tmp_path: Path) -> None:
    """As RocketMQ writes them."""
    store = open_store(tmp_path)
    store.config = replace(store.config, record_crc=False)
    entries = [Entry(KEY, body) for body in (b"one", b"two")]
    store.append(build(entries, store_host=bytes(8), record_crc=False))
    store.dispatch_all()
    assert read(store) == read(store, tags={0}) == [b"one", b"two"]
    assert not store.damaged
    store.close()


def test_reader_remembers_a_bounded_number_of_damages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "DAMAGED_MAX", 1)
    store = damaged(tmp_path, b"one", b"two")
    assert read(store) == [b"three", b"five", b"last"]
    assert len(store.damaged) == 1
    store.close()


def test_reader_without_an_index_finds_nothing_by_key(tmp_path: Path) -> None:
    plain = open_store(tmp_path)
    plain.close()
    config = replace(plain.config, index_enabled=False)
    store = MessageStore(CalmFiles(), str(tmp_path), config, ManualClock())
    with pytest.raises(UsageError, match="index_enabled is off"):
        store.find("orders", "K")
    store.close()
