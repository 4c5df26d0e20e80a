"""Damaged logs: a torn end is cut, damage in the middle is reported and left, nothing is made up.

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
    abandon,
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
    """Killed when 20 of 21 messages were flushed."""
    return make(tmp_path_factory.mktemp("killed") / "store", 21, clean=False, flushed=20)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Known:
    """Stopped in order, with three log files."""
    return make(tmp_path_factory.mktemp("stopped") / "store", 100, clean=True)


def go_on(known: Known, keep: int) -> None:
    """Append behind what was kept, and find both after one more start, derived anew."""
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


def test_a_tail_torn_at_every_byte_is_cut(killed: Known, place: Path) -> None:
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
        abandon(store)
        assert not any(known.read_log(last.offset, last.size))
    go_on(known, 20)


def test_a_file_that_ends_at_every_byte_is_healed(killed: Known, place: Path) -> None:
    """A cut that was interrupted leaves the last file short."""
    last = killed.placed[-1]
    known = killed.copy(place / "copy")
    for kept in range(0, last.size, 5):
        killed.copy(known.root)
        with known.log_path(last.offset).open("r+b") as file:
            file.truncate(last.offset % FILE_BYTES + kept)
        store = open_store(known.root)
        assert readable(store) == set(killed.placed[:-1])
        abandon(store)
        assert known.log_path(last.offset).stat().st_size == FILE_BYTES
    go_on(known, 20)


def test_a_flushed_record_that_is_torn_is_damage_and_stays(killed: Known, place: Path) -> None:
    """The last of the 20 that were flushed, and 21 as well: they were promised."""
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


# Garbage behind the end


def _random_bytes(_known: Known, size: int) -> bytes:
    return random.Random(7).randbytes(size)


def _huge_size(_known: Known, _size: int) -> bytes:
    return struct.pack(">ii", 0x7FFFFFFF, MAGIC_V1) + b"x" * 200


def _size_beyond_the_file(_known: Known, size: int) -> bytes:
    return struct.pack(">ii", size + 1, MAGIC_V1) + b"x" * 200


def _negative_size(_known: Known, _size: int) -> bytes:
    return struct.pack(">ii", -5, MAGIC_V1) + b"x" * 200


def _stale_records(known: Known, _size: int) -> bytes:
    """Sound in themselves, but they stood elsewhere."""
    return known.read_log(known.placed[0].offset, known.placed[3].end)


def _blank_marker(_known: Known, size: int) -> bytes:
    """The file would end here, but there is no next one."""
    return struct.pack(">iI", size, 0xCBD43194)


GARBAGE = (_random_bytes, _huge_size, _size_beyond_the_file, _negative_size, _stale_records)


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda f: f.__name__.strip("_"))
def test_garbage_behind_the_end_is_never_served(
    killed: Known, place: Path, garbage: Callable[[Known, int], bytes]
) -> None:
    known = killed.copy(place / "copy")
    end = known.placed[-1].end
    room = FILE_BYTES - end % FILE_BYTES
    known.write_log(end, garbage(known, room)[:room])
    store = open_store(known.root)
    assert store.log.end == store.recovered.cut_at == end
    check_whole(store, killed.placed)
    abandon(store)
    assert not any(known.read_log(end, room))
    go_on(known, 21)


def test_a_blank_marker_at_the_end_begins_the_next_file(killed: Known, place: Path) -> None:
    """Killed between closing a file and writing the first record of the next."""
    known = killed.copy(place / "copy")
    end = known.placed[-1].end
    room = FILE_BYTES - end % FILE_BYTES
    known.write_log(end, _blank_marker(known, room))
    store = open_store(known.root)
    assert store.log.end == end + room
    check_whole(store, killed.placed)
    abandon(store)
    go_on(known, 21)


def _sound_record_at(offset: int) -> bytes:
    chunk = chunk_of(range(8000, 8001))
    stamp(chunk, 0, 1, queue_offsets=[5], physical_offset=offset, store_timestamp=1)
    return bytes(chunk.data)


def test_a_sound_record_behind_a_torn_one_is_set_aside_and_never_comes_back(
    killed: Known, place: Path
) -> None:
    """Pages were written out of order, or rot: the rest goes to quarantine, whole, and is cut."""
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
    abandon(store)
    assert not any(known.read_log(last.offset, FILE_BYTES - last.offset % FILE_BYTES))
    # The same message again ends exactly where the ghost stood.
    known.placed = known.placed[:-1]
    store = open_store(known.root)
    known.append(store, 1)
    assert known.placed[-1].end == last.end
    abandon(store)
    go_on(known, 21)


# Damage in the middle


def _flips(victim: Placed) -> list[int]:
    """Every bit of the first and last bytes, and every seventh of the rest."""
    bits = victim.size * 8
    return sorted({*range(64), *range(64, bits, 7), *range(bits - 24, bits)})


def test_a_flipped_bit_in_the_middle_is_reported_and_the_rest_is_served(
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


def test_a_damaged_length_of_a_served_record_yields_no_wrong_message(
    stopped: Known, place: Path
) -> None:
    """Without a rebuild nobody reads the whole log, but a reader looks before it gives."""
    victim = stopped.placed[10]
    known = stopped.copy(place / "copy")
    known.write_log(victim.offset + 2, b"\xff")
    store = open_store(known.root)
    assert readable(store) == set(stopped.placed) - {victim}
    store.close()


def test_flipped_bit_of_a_served_record_is_detected_by_readers(stopped: Known, place: Path) -> None:
    """The log was left in order; since then its disk forgot a bit."""
    victim = stopped.placed[10]
    known = stopped.copy(place / "copy")
    original = known.read_log(victim.offset, victim.size)
    wanted, told = set(stopped.placed) - {victim}, list[int]()
    for bit in _flips(victim):
        damaged = bytearray(original)
        damaged[bit // 8] ^= 1 << bit % 8
        known.write_log(victim.offset, bytes(damaged))
        store = open_store(known.root)
        told.clear()
        store.on_damage = told.append
        assert readable(store) == wanted, bit
        assert readable(store) == wanted, bit
        with store.record_at(victim.offset) as found:
            assert found.count == 0, bit
        assert told == [victim.offset], bit
        store.abandon()


def test_recently_written_records_are_verified_too(stopped: Known, place: Path) -> None:
    """Its page may have been dropped and read again, from a disk that forgot a bit."""
    known = stopped.copy(place / "copy")
    store = open_store(known.root)
    known.append(store, 5)
    check_whole(store, known.placed)
    victim, told = known.placed[-3], list[int]()
    known.write_log(victim.end - 40, bytes([known.read_log(victim.end - 40, 1)[0] ^ 1]))
    store.on_damage = told.append
    assert readable(store) == set(known.placed) - {victim}
    assert told == [victim.offset]
    store.close()


def test_several_damaged_places_are_each_reported(stopped: Known, place: Path) -> None:
    victims = [stopped.placed[rank] for rank in (3, 4, 30, 55)]
    known = stopped.copy(place / "copy")
    for victim in victims:
        known.write_log(victim.offset + 100, b"\0\0\0\0")
    store = open_store(known.root, rebuild=True)
    spans = [(d.start, d.end) for d in store.recovered.damage]
    assert spans == [
        (victims[0].offset, victims[1].end),  # neighbours are one gap
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
def test_a_log_with_a_wrong_file_is_refused_by_name_and_left_alone(
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
    if surgery is _far_ahead:  # what is missing is named, and what comes after it
        assert f"{FILE_BYTES * 40:020d}" in str(caught.value)
    else:
        assert str(named.relative_to(known.root)) in in_question
    assert {part: known.tree(part) for part in before} == before


def test_a_last_file_that_is_too_long_is_refused(stopped: Known, place: Path) -> None:
    known = stopped.copy(place / "copy")
    last = known.log_path(known.placed[-1].offset)
    _lengthen(last)
    with pytest.raises(StoreDamaged, match=last.name):
        open_store(known.root)
    assert last.stat().st_size == FILE_BYTES + 1


def test_an_empty_file_behind_the_last_is_no_obstacle(stopped: Known, place: Path) -> None:
    """Killed between making a file and giving it a length."""
    known = stopped.copy(place / "copy")
    known.log_path(known.placed[-1].offset + FILE_BYTES).write_bytes(b"")
    store = open_store(known.root)
    check_whole(store, known.placed)
    store.close()
    go_on(known, 100)


def test_a_last_file_that_lost_its_bytes_is_reported(stopped: Known, place: Path) -> None:
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


def test_a_log_without_its_oldest_file_begins_later(stopped: Known, place: Path) -> None:
    known = stopped.copy(place / "copy")
    _remove(known.log_path(0))
    store = open_store(known.root)
    assert LOG_BEGINS_LATE in {one.kind for one in store.incidents.open}
    assert readable(store) == {p for p in known.placed if p.offset >= FILE_BYTES}
    store.close()
