from pathlib import Path

import pytest

from tianzhou.base.kinds import PhysicalOffset, QueueOffset, queue_key
from tianzhou.store.consume_queue import MISSING_SIZE, UNIT, ConsumeQueue
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.file_cache import FileCache
from tianzhou.store.files import RealFiles
from tianzhou.testing.sim.disk import SimDisk

KEY = queue_key("orders", 0)
ALL = PhysicalOffset(1 << 60)


def make(root: Path) -> ConsumeQueue:
    """Ten units a file."""
    return ConsumeQueue(FileCache(RealFiles(), 4), str(root / "orders" / "0"), KEY, 10)


def units(first: int, count: int) -> bytes:
    """Unit n leads to offset 100 n."""
    return b"".join(UNIT.pack(100 * rank, 100, rank) for rank in range(first, first + count))


def ranks(queue: ConsumeQueue) -> list[int]:
    """The ranks units speak of; -1 for a missing message."""
    raw = queue.read(queue.first, queue.end - queue.first)
    return [
        -1 if size == MISSING_SIZE else offset // 100 for offset, size, _ in UNIT.iter_unpack(raw)
    ]


def reload(queue: ConsumeQueue, root: Path, *, below: int = ALL) -> ConsumeQueue:
    queue.write_out()
    again = make(root)
    again.load(below=PhysicalOffset(below), clean=False)
    return again


def test_consume_queue_stores_units_at_their_offset(tmp_path: Path) -> None:
    queue = make(tmp_path)
    queue.append(QueueOffset(0), units(0, 25))
    queue.write_out()
    queue.append(QueueOffset(25), units(25, 3))
    assert ranks(queue) == list(range(28))
    assert [path.name for path in sorted((tmp_path / "orders" / "0").iterdir())] == [
        "00000000000000000000",
        "00000000000000000200",
        "00000000000000000400",
    ]
    assert queue.unit(27).tags_code == 27
    assert ranks(reload(queue, tmp_path)) == list(range(28))


def test_consume_queue_gap_is_marked(tmp_path: Path) -> None:
    queue = make(tmp_path)
    queue.append(QueueOffset(0), units(0, 2))
    queue.append(QueueOffset(5), units(5, 2))
    assert ranks(queue) == [0, 1, -1, -1, -1, 5, 6]
    assert ranks(reload(queue, tmp_path)) == [0, 1, -1, -1, -1, 5, 6]


def test_consume_queue_with_expired_messages_starts_later(tmp_path: Path) -> None:
    queue = make(tmp_path)
    queue.append(QueueOffset(34), units(34, 3))
    assert (queue.first, queue.min_offset, queue.end) == (30, 34, 37)
    assert ranks(queue) == [-1, -1, -1, -1, 34, 35, 36]
    again = reload(queue, tmp_path)
    again.raise_minimum(PhysicalOffset(3400))
    assert (again.first, again.min_offset, again.end) == (30, 34, 37)


@pytest.mark.parametrize("below", range(0, 2600, 100))
def test_consume_queue_load_cuts_units_beyond_the_limit_durably(tmp_path: Path, below: int) -> None:
    queue = make(tmp_path)
    queue.append(QueueOffset(0), units(0, 25))
    wanted = list(range(min(below // 100, 25)))
    once = reload(queue, tmp_path, below=below)
    assert ranks(once) == wanted
    assert ranks(reload(once, tmp_path)) == wanted
    once.append(once.end, units(once.end, 12))
    assert ranks(reload(once, tmp_path)) == list(range(once.end))


def test_consume_queue_truncate_cuts_memory_and_files(tmp_path: Path) -> None:
    queue = make(tmp_path)
    queue.append(QueueOffset(0), units(0, 15))
    queue.write_out()
    queue.append(QueueOffset(15), units(15, 10))
    for end in (30, 25, 20, 15, 12, 10, 3, 0):
        queue.truncate(QueueOffset(end))
        assert ranks(queue) == list(range(min(end, 25)))


def test_consume_queue_expiry_raises_the_minimum_and_removes_whole_files(tmp_path: Path) -> None:
    queue = make(tmp_path)
    queue.append(QueueOffset(0), units(0, 35))
    queue.write_out()
    queue.raise_minimum(PhysicalOffset(2450))
    assert queue.min_offset == 25
    assert queue.remove_expired() == 2
    assert queue.first == 20
    assert ranks(queue) == list(range(20, 35))
    queue.raise_minimum(PhysicalOffset(1 << 50))
    assert queue.min_offset == queue.end == 35
    queue.remove_expired()
    assert queue.first == 30, "the newest file stays: it knows where the queue ends"
    assert reload(queue, tmp_path).end == 35


@pytest.mark.parametrize("name", ["notes", "00000000000000000007", "0"])
def test_consume_queue_foreign_file_is_named(tmp_path: Path, name: str) -> None:
    queue = make(tmp_path)
    queue.append(QueueOffset(0), units(0, 15))
    queue.write_out()
    (tmp_path / "orders" / "0" / name).write_bytes(bytes(200))
    with pytest.raises(StoreDamaged, match=name):
        make(tmp_path).load(below=ALL, clean=True)


def test_consume_queue_missing_or_short_file_is_named(tmp_path: Path) -> None:
    queue = make(tmp_path)
    queue.append(QueueOffset(0), units(0, 25))
    queue.write_out()
    middle = tmp_path / "orders" / "0" / "00000000000000000200"
    data = middle.read_bytes()
    middle.unlink()
    with pytest.raises(StoreDamaged, match=r"00000000000000000200.*is missing"):
        make(tmp_path).load(below=ALL, clean=True)
    middle.write_bytes(data[:60])
    with pytest.raises(StoreDamaged, match="has 60 bytes"):
        make(tmp_path).load(below=ALL, clean=False)


def test_consume_queue_read_spans_thousands_of_files() -> None:
    """The smallest files that the settings allow hold one unit."""
    queue = ConsumeQueue(FileCache(SimDisk(), 4), "orders/0", KEY, 1)
    queue.append(QueueOffset(0), units(0, 2000))
    queue.write_out()
    queue.append(QueueOffset(2000), units(2000, 5))
    assert queue.read(3, 5000) == units(3, 2002)
    assert queue.read(1990, 12) == units(1990, 12)


@pytest.mark.parametrize("count", [1, 203, 204, 205, 409, 5000])
def test_consume_queue_search_over_many_pages_matches_counting(tmp_path: Path, count: int) -> None:
    queue = ConsumeQueue(FileCache(RealFiles(), 4), str(tmp_path / "orders" / "0"), KEY, 3000)
    queue.append(QueueOffset(0), units(0, count))
    queue.write_out()
    for wanted in {0, 1, 100, count // 3, count // 2, count - 1, count}:
        again = ConsumeQueue(FileCache(RealFiles(), 4), queue.directory, KEY, 3000)
        again.load(below=PhysicalOffset(100 * wanted), clean=True)
        assert again.end == min(wanted, count)
        again.load(below=ALL, clean=True)
        assert again.end == count
        again.raise_minimum(PhysicalOffset(100 * wanted))
        assert again.min_offset == min(wanted, count)
        last = again.last_unit()
        assert last is not None
        assert last.tags_code == count - 1
