"""Queues, index, checkpoint and abort marker lost or wrong: only the log decides."""

import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from damaged_store import (
    Known,
    check_whole,
    fast_directory,
    make,
    open_in_spite_of_loss,
    open_store,
    readable,
)

from tianzhou.store.errors import StoreLocked

Surgery = Callable[[Known], None]


@pytest.fixture
def place() -> Iterator[Path]:
    with fast_directory() as path:
        yield path


@pytest.fixture(scope="module", params=["stopped", "killed"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Known:
    """A store that was stopped cleanly, or killed when 70 of 100 messages were checkpointed."""
    root = tmp_path_factory.mktemp(request.param) / "store"
    if request.param == "stopped":
        return make(root, 100, clean=True)
    return make(root, 100, clean=False, flushed=70)


def queue_files(known: Known, queue: str = "orders/1") -> list[Path]:
    return sorted((known.root / "consumequeue" / queue).iterdir())


def index_files(known: Known) -> list[Path]:
    return sorted((known.root / "index").iterdir())


def write_at(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def last_unit_at(path: Path) -> int:
    """The position of the last used unit of a queue file."""
    data = path.read_bytes()
    used = [at for at in range(0, len(data), 20) if any(data[at : at + 20])]
    return used[-1]


# Queues


def lose_all_queues(known: Known) -> None:
    shutil.rmtree(known.root / "consumequeue")


def lose_a_topic(known: Known) -> None:
    shutil.rmtree(known.root / "consumequeue" / "orders")


def lose_a_queue(known: Known) -> None:
    shutil.rmtree(known.root / "consumequeue" / "orders" / "1")


def lose_the_first_file_of_a_queue(known: Known) -> None:
    queue_files(known)[0].unlink()


def lose_the_last_file_of_a_queue(known: Known) -> None:
    queue_files(known)[-1].unlink()


def shorten_a_queue_file(known: Known) -> None:
    os.truncate(queue_files(known)[0], 60)


def shorten_the_last_queue_file(known: Known) -> None:
    os.truncate(queue_files(known)[-1], 20)


def lengthen_a_queue_file(known: Known) -> None:
    os.truncate(queue_files(known)[0], 1000)


def zero_the_last_queue_file(known: Known) -> None:
    path = queue_files(known)[-1]
    path.write_bytes(bytes(path.stat().st_size))


def fill_the_last_queue_file_with_noise(known: Known) -> None:
    path = queue_files(known)[-1]
    path.write_bytes(random.Random(3).randbytes(path.stat().st_size))


def point_the_last_unit_into_the_void(known: Known) -> None:
    path = queue_files(known)[-1]
    write_at(path, last_unit_at(path), struct.pack(">qiq", 1 << 40, 221, 0))


def point_the_last_unit_between_records(known: Known) -> None:
    path = queue_files(known)[-1]
    write_at(path, last_unit_at(path), struct.pack(">qiq", known.placed[5].offset + 3, 221, 0))


def point_the_last_unit_at_another_queue(known: Known) -> None:
    path = queue_files(known)[-1]
    other = known.placed[4]
    write_at(path, last_unit_at(path), struct.pack(">qiq", other.offset, other.size, 0))


def write_a_unit_ahead_of_the_log(known: Known) -> None:
    path = queue_files(known)[-1]
    end = known.placed[-1].end
    write_at(path, last_unit_at(path) + 20, struct.pack(">qiq", end, 221, 0))


def swap_two_queues(known: Known) -> None:
    """Both have the same number of messages of the same sizes."""
    topic = known.root / "consumequeue" / "orders"
    (topic / "0").rename(topic / "9")
    (topic / "1").rename(topic / "0")
    (topic / "9").rename(topic / "1")


def swap_two_topics(known: Known) -> None:
    queues = known.root / "consumequeue"
    (queues / "orders").rename(queues / "other")
    (queues / "payments").rename(queues / "orders")
    (queues / "other").rename(queues / "payments")


def add_an_empty_queue(known: Known) -> None:
    (known.root / "consumequeue" / "orders" / "7").mkdir()


def add_a_foreign_file_to_a_queue(known: Known) -> None:
    (queue_files(known)[0].parent / "notes.txt").write_text("?")


# Index


def lose_the_index(known: Known) -> None:
    shutil.rmtree(known.root / "index")


def lose_the_newest_index_file(known: Known) -> None:
    index_files(known)[-1].unlink()


def lose_the_oldest_index_file(known: Known) -> None:
    index_files(known)[0].unlink()


def zero_the_newest_index_file(known: Known) -> None:
    path = index_files(known)[-1]
    path.write_bytes(bytes(path.stat().st_size))


def shorten_an_index_file(known: Known) -> None:
    os.truncate(index_files(known)[0], 100)


def let_the_index_count_too_much(known: Known) -> None:
    write_at(index_files(known)[-1], 36, struct.pack(">i", 59))


def let_the_index_count_nonsense(known: Known) -> None:
    write_at(index_files(known)[-1], 36, struct.pack(">i", -7))


def tie_a_chain_of_the_index_into_a_loop(known: Known) -> None:
    path = index_files(known)[-1]
    write_at(path, 40 + 16 * 4 + 20 * 3 + 16, struct.pack(">i", 3))


def wipe_the_slots_of_the_newest_index_file(known: Known) -> None:
    write_at(index_files(known)[-1], 40, bytes(16 * 4))


# Checkpoint


def lose_the_checkpoint(known: Known) -> None:
    (known.root / "checkpoint").unlink()


def zero_the_checkpoint(known: Known) -> None:
    (known.root / "checkpoint").write_bytes(bytes(4096))


def empty_the_checkpoint(known: Known) -> None:
    (known.root / "checkpoint").write_bytes(b"")


def fill_the_checkpoint_with_noise(known: Known) -> None:
    (known.root / "checkpoint").write_bytes(random.Random(5).randbytes(4096))


def touch_a_time_of_the_checkpoint(known: Known) -> None:
    """As a Java broker does that was run in between."""
    write_at(known.root / "checkpoint", 0, struct.pack(">q", 1 << 45))


def lose_everything_but_the_log(known: Known) -> None:
    for name in ("consumequeue", "index", "config"):
        shutil.rmtree(known.root / name, ignore_errors=True)
    for name in ("checkpoint", "abort", "lock"):
        (known.root / name).unlink(missing_ok=True)


CASES: list[Surgery] = [
    lose_all_queues, lose_a_topic, lose_a_queue, lose_the_first_file_of_a_queue,
    lose_the_last_file_of_a_queue, shorten_a_queue_file, shorten_the_last_queue_file,
    lengthen_a_queue_file, zero_the_last_queue_file, fill_the_last_queue_file_with_noise,
    point_the_last_unit_into_the_void, point_the_last_unit_between_records,
    point_the_last_unit_at_another_queue, write_a_unit_ahead_of_the_log,
    swap_two_queues, swap_two_topics, add_an_empty_queue, add_a_foreign_file_to_a_queue,
    lose_the_index, lose_the_newest_index_file, lose_the_oldest_index_file,
    zero_the_newest_index_file, shorten_an_index_file, let_the_index_count_too_much,
    let_the_index_count_nonsense,
    lose_the_checkpoint, zero_the_checkpoint, empty_the_checkpoint,
    fill_the_checkpoint_with_noise, touch_a_time_of_the_checkpoint, lose_everything_but_the_log,
]  # fmt: skip


@pytest.mark.parametrize("damage", CASES, ids=lambda f: f.__name__)
def test_damaged_derived_file_is_rebuilt(original: Known, place: Path, damage: Surgery) -> None:
    known = original.copy(place / "store")
    log = known.tree("commitlog")
    damage(known)
    store = open_store(known.root)
    assert store.recovered.damage == []
    check_whole(store, known.placed)
    store.close()
    after = known.tree("commitlog")
    assert {path: data for path, data in after.items() if path in log} == after
    store = open_store(known.root)
    assert store.recovered.rebuilt == ""
    known.append(store, 5)
    check_whole(store, known.placed)
    store.close()


QUIET: list[Surgery] = [
    tie_a_chain_of_the_index_into_a_loop,
    wipe_the_slots_of_the_newest_index_file,
]


@pytest.mark.parametrize("damage", QUIET, ids=lambda f: f.__name__)
def test_undetected_damage_yields_no_wrong_message_and_a_rebuild_fixes_it(
    original: Known, place: Path, damage: Surgery
) -> None:
    """A start does not read all derived files; damage that it cannot see must do no harm."""
    known = original.copy(place / "store")
    damage(known)
    store = open_store(known.root)
    assert readable(store) == set(known.placed)
    store.abandon()
    store = open_store(known.root, rebuild=True)
    check_whole(store, known.placed)
    store.close()


@pytest.mark.parametrize("rank", [0, 3, 11])
@pytest.mark.parametrize("target", ["void", "middle", "neighbour", "other queue", "nothing"])
def test_wrong_unit_in_a_queue_yields_no_wrong_message(
    original: Known, place: Path, rank: int, target: str
) -> None:
    known = original.copy(place / "store")
    mine = [placed for placed in known.placed if placed.queue == ("orders", 1)]
    unit = {
        "void": (1 << 40, 221, 0),
        "middle": (mine[rank].offset + 7, mine[rank].size, 0),
        "neighbour": (mine[rank + 1].offset, mine[rank + 1].size, 0),
        "other queue": (mine[rank].offset - mine[rank].size, mine[rank].size, 0),
        "nothing": (0, 0, 0),
    }[target]
    write_at(queue_files(known)[rank // 10], rank % 10 * 20, struct.pack(">qiq", *unit))
    store = open_store(known.root)
    assert set(known.placed) - {mine[rank]} <= readable(store) <= set(known.placed)
    store.abandon()
    store = open_store(known.root, rebuild=True)
    check_whole(store, known.placed)
    store.close()


# Checkpoints of other times and other stores


def test_older_checkpoint_only_causes_more_scanning(place: Path) -> None:
    known = make(place / "store", 40, clean=False)
    older = (known.root / "checkpoint").read_bytes()
    store = open_store(known.root)
    known.append(store, 60)
    store.checkpoint()
    store.abandon()
    (known.root / "checkpoint").write_bytes(older)
    store = open_store(known.root)
    check_whole(store, known.placed)
    store.close()


def test_checkpoint_beyond_the_log_is_not_trusted(place: Path) -> None:
    """From a store that is further ahead; or ours, with a log from a backup."""
    ahead = make(place / "ahead", 100, clean=True)
    known = make(place / "store", 40, clean=True)
    shutil.copy(ahead.root / "checkpoint", known.root / "checkpoint")
    store = open_in_spite_of_loss(known.root)
    # It claims that more was flushed than exists: that is reported, and nothing is truncated.
    assert readable(store) == set(known.placed)
    assert store.recovered.damage
    store.close()


def test_checkpoint_of_another_store_is_not_trusted(place: Path) -> None:
    known = make(place / "store", 100, clean=True)
    other = make(place / "other", 50, clean=True)
    shutil.copy(other.root / "checkpoint", known.root / "checkpoint")
    store = open_store(known.root)
    check_whole(store, known.placed)
    store.close()


# Markers


@pytest.mark.parametrize("present", [True, False])
def test_abort_marker_alone_changes_nothing(original: Known, place: Path, present: bool) -> None:
    known = original.copy(place / "store")
    abort = known.root / "abort"
    if present:
        abort.write_text("4711")
    else:
        abort.unlink(missing_ok=True)
    store = open_store(known.root)
    assert store.was_clean == (not present)
    check_whole(store, known.placed)
    store.close()
    assert not abort.exists()


OPENER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from damaged_store import open_store
from tianzhou.store.errors import StoreLocked
try:
    open_store(Path(sys.argv[2]))
except StoreLocked as error:
    print(error)
"""


def test_second_process_on_a_store_is_rejected(place: Path) -> None:
    known = make(place / "store", 10, clean=True)
    store = open_store(known.root)
    before = known.tree("commitlog") | known.tree("consumequeue")
    command = [sys.executable, "-c", OPENER, str(Path(__file__).parent), str(known.root)]
    holder = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert str(known.root / "lock") in holder.stdout
    assert StoreLocked.__doc__
    assert known.tree("commitlog") | known.tree("consumequeue") == before
    check_whole(store, known.placed)
    store.close()
    holder = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert holder.stdout == ""
