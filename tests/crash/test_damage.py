"""Damaged logs: a torn end is truncated, damage in the middle is reported and kept.

Each case damages a copy of a small store on a real disk and opens it.
"""

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from damaged_store import (
    FILE_BYTES,
    Known,
    Placed,
    check_whole,
    chunk_of,
    fast_directory,
    make,
    open_in_spite_of_loss,
    open_store,
    readable,
)

from tianzhou.record.chunk import stamp
from tianzhou.record.layout import MAGIC_V1
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.incidents import LOG_BEGINS_LATE


@pytest.fixture
def place() -> Iterator[Path]:
    with fast_directory() as path:
        yield path


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Known:
    """A store that was killed when 20 of 21 messages were flushed."""
    return make(tmp_path_factory.mktemp("killed") / "store", 21, clean=False, flushed=20)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Known:
    """A store that was stopped cleanly, with three log files."""
    return make(tmp_path_factory.mktemp("stopped") / "store", 100, clean=True)


def append_and_restart(known: Known, keep: int) -> None:
    """Append after the kept messages, and find both after a restart that rebuilds everything."""
    known.placed = known.placed[:keep]
    store = open_store(known.root)
    known.append(store, 5)
    check_whole(store, known.placed)
    store.close()
    store = open_store(known.root, rebuild=True)
    assert store.recovered.damage == []
    check_whole(store, known.placed)
    store.close()


# Torn tails


def test_tail_torn_at_any_byte_is_truncated(killed: Known, place: Path) -> None:
    last = killed.placed[-1]
    known = killed.copy(place / "copy")
    for kept in range(last.size):
        killed.copy(known.root)
        known.write_log(last.offset + kept, bytes(last.size - kept))
        store = open_store(known.root)
        assert store.log.end == last.offset
        assert store.recovered.damage == []
        assert store.recovered.quarantine == ""
        assert readable(store) == set(killed.placed[:-1])
        store.abandon()
        assert not any(known.read_log(last.offset, last.size))
    append_and_restart(known, 20)


def test_last_file_that_ends_at_any_byte_is_repaired(killed: Known, place: Path) -> None:
    """An interrupted truncation leaves the last file short."""
    last = killed.placed[-1]
    known = killed.copy(place / "copy")
    for kept in range(0, last.size, 5):
        killed.copy(known.root)
        with known.log_path(last.offset).open("r+b") as file:
            file.truncate(last.offset % FILE_BYTES + kept)
        store = open_store(known.root)
        assert readable(store) == set(killed.placed[:-1])
        store.abandon()
        assert known.log_path(last.offset).stat().st_size == FILE_BYTES
    append_and_restart(known, 20)


def test_torn_record_that_was_flushed_is_damage_and_kept(killed: Known, place: Path) -> None:
    """The last of the 20 flushed records, and the 21st as well: their durability is guaranteed."""
    first, last = killed.placed[-2], killed.placed[-1]
    for kept in (3, 90, first.size - 1):
        known = killed.copy(place / str(kept))
        known.write_log(first.offset + kept, bytes(last.end - first.offset - kept))
        before = known.tree("commitlog")
        store = open_in_spite_of_loss(known.root)
        assert store.recovered.damage
        assert store.recovered.damage[0].start == first.offset
        assert readable(store) == set(killed.placed[:-2])
        store.close()
        assert {path: known.tree("commitlog")[path] for path in before} == before


# Garbage after the end


def _random_bytes(_known: Known, size: int) -> bytes:
    return random.Random(7).randbytes(size)


def _huge_size(_known: Known, _size: int) -> bytes:
    return struct.pack(">ii", 0x7FFFFFFF, MAGIC_V1) + b"x" * 200


def _size_beyond_the_file(_known: Known, size: int) -> bytes:
    return struct.pack(">ii", size + 1, MAGIC_V1) + b"x" * 200


def _negative_size(_known: Known, _size: int) -> bytes:
    return struct.pack(">ii", -5, MAGIC_V1) + b"x" * 200


def _stale_records(known: Known, _size: int) -> bytes:
    """Valid records, but at the wrong place."""
    return known.read_log(known.placed[0].offset, known.placed[3].end)


def _blank_marker(_known: Known, size: int) -> bytes:
    """The marker ends the file, but there is no next file."""
    return struct.pack(">iI", size, 0xCBD43194)


GARBAGE = (_random_bytes, _huge_size, _size_beyond_the_file, _negative_size, _stale_records)


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda f: f.__name__.strip("_"))
def test_garbage_after_the_end_is_never_served(
    killed: Known, place: Path, garbage: Callable[[Known, int], bytes]
) -> None:
    known = killed.copy(place / "copy")
    end = known.placed[-1].end
    room = FILE_BYTES - end % FILE_BYTES
    known.write_log(end, garbage(known, room)[:room])
    store = open_store(known.root)
    assert store.log.end == store.recovered.cut_at == end
    check_whole(store, killed.placed)
    store.abandon()
    assert not any(known.read_log(end, room))
    append_and_restart(known, 21)


def test_blank_marker_at_the_end_starts_the_next_file(killed: Known, place: Path) -> None:
    """The process was killed between closing a file and writing the first record of the next."""
    known = killed.copy(place / "copy")
    end = known.placed[-1].end
    room = FILE_BYTES - end % FILE_BYTES
    known.write_log(end, _blank_marker(known, room))
    store = open_store(known.root)
    assert store.log.end == end + room
    check_whole(store, killed.placed)
    store.abandon()
    append_and_restart(known, 21)


def _sound_record_at(offset: int) -> bytes:
    chunk = chunk_of(range(8000, 8001))
    stamp(chunk, 0, 1, queue_offsets=[5], physical_offset=offset, store_timestamp=1)
    return bytes(chunk.data)


def test_valid_record_after_a_torn_one_is_quarantined_for_good(killed: Known, place: Path) -> None:
    """Out-of-order page writes, or damage: the rest is moved to quarantine and truncated."""
    known = killed.copy(place / "copy")
    last = known.placed[-1]
    known.write_log(last.offset + 40, bytes(last.size - 40))
    ghost = _sound_record_at(last.end)
    known.write_log(last.end, ghost)
    store = open_store(known.root)
    assert store.log.end == store.recovered.cut_at == last.offset
    aside = Path(store.recovered.quarantine).read_bytes()
    assert ghost in aside
    assert readable(store) == set(killed.placed[:-1])
    store.abandon()
    assert not any(known.read_log(last.offset, FILE_BYTES - last.offset % FILE_BYTES))
    # The same message, sent again, ends exactly where the stale record was.
    known.placed = known.placed[:-1]
    store = open_store(known.root)
    known.append(store, 1)
    assert known.placed[-1].end == last.end
    store.abandon()
    append_and_restart(known, 21)


# Damage in the middle


def _flips(victim: Placed) -> list[int]:
    """Every bit of the first and last bytes, and every seventh of the rest."""
    bits = victim.size * 8
    return sorted({*range(64), *range(64, bits, 7), *range(bits - 24, bits)})


def test_flipped_bit_in_the_log_is_reported_and_the_rest_served(
    stopped: Known, place: Path
) -> None:
    victim = stopped.placed[10]
    known = stopped.copy(place / "copy")
    original = known.read_log(victim.offset, victim.size)
    wanted = set(stopped.placed) - {victim}
    for bit in _flips(victim):
        damaged = bytearray(original)
        damaged[bit // 8] ^= 1 << bit % 8
        known.write_log(victim.offset, bytes(damaged))
        before = known.tree("commitlog")
        store = open_store(known.root, rebuild=True)
        assert [(d.start, d.end) for d in store.recovered.damage] == [(victim.offset, victim.end)]
        assert readable(store) == wanted, bit
        store.close()
        assert known.tree("commitlog") == before


def test_damaged_record_length_yields_no_wrong_message(stopped: Known, place: Path) -> None:
    """Without a rebuild nothing reads the whole log, but a reader checks before it returns."""
    victim = stopped.placed[10]
    known = stopped.copy(place / "copy")
    known.write_log(victim.offset + 2, b"\xff")
    store = open_store(known.root)
    assert readable(store) == set(stopped.placed) - {victim}
    store.close()


def test_flipped_bit_of_a_served_record_is_detected_by_readers(stopped: Known, place: Path) -> None:
    """The log was closed cleanly; then a bit flipped on the disk."""
    victim = stopped.placed[10]
    known = stopped.copy(place / "copy")
    original = known.read_log(victim.offset, victim.size)
    wanted, reported = set(stopped.placed) - {victim}, list[int]()
    for bit in _flips(victim):
        damaged = bytearray(original)
        damaged[bit // 8] ^= 1 << bit % 8
        known.write_log(victim.offset, bytes(damaged))
        store = open_store(known.root)
        reported.clear()
        store.damage.on_damage = reported.append
        assert readable(store) == wanted, bit
        assert readable(store) == wanted, bit
        with store.record_at(victim.offset) as found:
            assert found.count == 0, bit
        assert reported == [victim.offset], bit
        store.abandon()


def test_flipped_bit_of_a_recent_record_is_detected_by_readers(stopped: Known, place: Path) -> None:
    """Its page may have been dropped and read again from a disk with a flipped bit."""
    known = stopped.copy(place / "copy")
    store = open_store(known.root)
    known.append(store, 5)
    check_whole(store, known.placed)
    victim, reported = known.placed[-3], list[int]()
    known.write_log(victim.end - 40, bytes([known.read_log(victim.end - 40, 1)[0] ^ 1]))
    store.damage.on_damage = reported.append
    assert readable(store) == set(known.placed) - {victim}
    assert reported == [victim.offset]
    store.close()


def test_each_damaged_range_is_reported(stopped: Known, place: Path) -> None:
    victims = [stopped.placed[rank] for rank in (3, 4, 30, 55)]
    known = stopped.copy(place / "copy")
    for victim in victims:
        known.write_log(victim.offset + 100, b"\0\0\0\0")
    store = open_store(known.root, rebuild=True)
    spans = [(d.start, d.end) for d in store.recovered.damage]
    assert spans == [
        (victims[0].offset, victims[1].end),  # adjacent records are one gap
        (victims[2].offset, victims[2].end),
        (victims[3].offset, victims[3].end),
    ]
    assert readable(store) == set(stopped.placed) - set(victims)
    store.close()


# Files of the log


def _remove(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _rename_like_a_copy(path: Path) -> None:
    path.with_name(path.name + ".bak").write_bytes(path.read_bytes())


def _drop_a_digit(path: Path) -> None:
    path.with_name(path.name[1:]).write_bytes(path.read_bytes())


def _between_two_files(path: Path) -> None:
    path.with_name(f"{int(path.name) + 100:020d}").write_bytes(path.read_bytes())


def _far_ahead(path: Path) -> None:
    path.with_name(f"{FILE_BYTES * 40:020d}").write_bytes(path.read_bytes())


MIDDLE = (_remove, _empty, _shorten, _lengthen)
ANYWHERE = (_rename_like_a_copy, _drop_a_digit, _between_two_files, _far_ahead)


@pytest.mark.parametrize("surgery", [*MIDDLE, *ANYWHERE], ids=lambda f: f.__name__.strip("_"))
def test_log_with_a_wrong_file_is_rejected_unchanged(
    stopped: Known, place: Path, surgery: Callable[[Path], None]
) -> None:
    known = stopped.copy(place / "copy")
    middle = known.log_path(FILE_BYTES)
    surgery(middle)
    before = {part: known.tree(part) for part in ("commitlog", "consumequeue", "index")}
    with pytest.raises(StoreDamaged) as caught:
        open_store(known.root)
    named = Path(caught.value.path)
    assert named.parent == known.root / "commitlog"
    in_question = {*before["commitlog"], str(middle.relative_to(known.root))}
    if surgery is _far_ahead:  # the error names the missing file and the next one
        assert f"{FILE_BYTES * 40:020d}" in str(caught.value)
    else:
        assert str(named.relative_to(known.root)) in in_question
    assert {part: known.tree(part) for part in before} == before


def test_last_file_that_is_too_long_is_rejected(stopped: Known, place: Path) -> None:
    known = stopped.copy(place / "copy")
    last = known.log_path(known.placed[-1].offset)
    _lengthen(last)
    with pytest.raises(StoreDamaged, match=last.name):
        open_store(known.root)
    assert last.stat().st_size == FILE_BYTES + 1


def test_empty_file_after_the_last_is_accepted(stopped: Known, place: Path) -> None:
    """The process was killed between creating a file and setting its size."""
    known = stopped.copy(place / "copy")
    known.log_path(known.placed[-1].offset + FILE_BYTES).write_bytes(b"")
    store = open_store(known.root)
    check_whole(store, known.placed)
    store.close()
    append_and_restart(known, 100)


def test_last_file_that_lost_its_bytes_is_reported(stopped: Known, place: Path) -> None:
    known = stopped.copy(place / "copy")
    last = known.log_path(known.placed[-1].offset)
    lost_from = int(last.name)
    _empty(last)
    store = open_in_spite_of_loss(known.root)
    (damage,) = store.recovered.damage
    assert damage.start <= lost_from
    assert damage.end == known.placed[-1].end
    assert readable(store) == {p for p in known.placed if p.end <= lost_from}
    store.close()


def test_log_without_its_oldest_file_starts_later(stopped: Known, place: Path) -> None:
    known = stopped.copy(place / "copy")
    _remove(known.log_path(0))
    store = open_store(known.root)
    assert LOG_BEGINS_LATE in {one.kind for one in store.incidents.open}
    assert readable(store) == {p for p in known.placed if p.offset >= FILE_BYTES}
    store.close()
