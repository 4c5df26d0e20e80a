"""The simulated disk behaves like a disk, and loses exactly what a crash may lose."""

import errno
from random import Random

import pytest

from tianzhou.store.errors import StoreLocked
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.sim.disk_images import Fate, Image, build, fingerprint, plans


def images(disk: SimDisk, count: int) -> list[Image]:
    point = disk.crash_point()
    return [build(point, plan) for plan, _ in zip(plans(point, "1"), range(count), strict=False)]


def image_with(disk: SimDisk, fate: Fate, dice: int = 0) -> Image:
    point = disk.crash_point()
    return build(point, [(fate, dice)] * len(point.numbers))


def synced_file(disk: SimDisk, path: str, content: bytes) -> None:
    file = disk.create(path, 0)
    file.pwrite(0, content)
    file.sync()
    disk.sync_dir(".")


def test_sim_disk_view_shows_later_writes() -> None:
    file = SimDisk().create("a", 16)
    view = file.view()
    file.pwrite(4, b"xyz")
    assert view[4:7] == b"xyz"
    with pytest.raises(TypeError):
        view[0] = 1


def test_sim_disk_truncated_and_extended_file_reads_as_zeros() -> None:
    file = SimDisk().create("a", 8)
    view = file.view()
    file.pwrite(0, b"abcdefgh")
    file.truncate(3)
    assert file.size() == 3
    assert file.pread(0, 8) == b"abc"
    file.truncate(8)
    assert bytes(view) == file.pread(0, 8) == b"abc\0\0\0\0\0"


def test_sim_disk_handles_of_a_file_share_its_content() -> None:
    disk = SimDisk()
    first, second = disk.create("a", 4), disk.open("a")
    first.pwrite(0, b"ab")
    first.close()
    assert second.pread(0, 4) == b"ab\0\0"
    with pytest.raises(OSError, match="Bad file descriptor"):
        first.pwrite(0, b"c")


def test_crash_keeps_synced_writes_and_may_lose_others() -> None:
    disk = SimDisk()
    synced_file(disk, "a", b"old!")
    disk.open("a").pwrite(0, b"new")
    assert image_with(disk, Fate.KEPT)["a"] == b"new!"
    assert image_with(disk, Fate.LOST)["a"] == b"old!"
    disk.open("a").sync()
    assert image_with(disk, Fate.LOST)["a"] == b"new!"


def test_crash_loses_a_synced_file_whose_name_was_not_synced() -> None:
    disk = SimDisk()
    file = disk.create("a", 0)
    file.pwrite(0, b"x")
    file.sync()
    assert image_with(disk, Fate.LOST) == {}
    disk.sync_dir("/")
    assert image_with(disk, Fate.LOST) == {"a": b"x"}


def test_crash_may_restore_a_removed_name() -> None:
    disk = SimDisk()
    synced_file(disk, "a", b"x")
    disk.remove("a")
    assert not disk.exists("a")
    assert image_with(disk, Fate.LOST) == {"a": b"x"}
    disk.sync_dir(".")
    assert image_with(disk, Fate.LOST) == {}


def test_crash_leaves_a_rename_whole_or_undone() -> None:
    disk = SimDisk()
    synced_file(disk, "a", b"old")
    synced_file(disk, "b", b"new")
    disk.rename("b", "a")
    assert disk.open("a").pread(0, 3) == b"new"
    assert image_with(disk, Fate.LOST) == {"a": b"old", "b": b"new"}
    assert image_with(disk, Fate.KEPT) == {"a": b"new"}


def test_sim_disk_renamed_directory_keeps_its_files() -> None:
    disk = SimDisk()
    disk.make_dirs("d/e")
    disk.create("d/e/f", 1).sync()
    disk.sync_dir("d/e")
    disk.sync_dir("d")
    assert image_with(disk, Fate.LOST) == {}
    disk.sync_dir("")
    assert image_with(disk, Fate.LOST) == {"d": None, "d/e": None, "d/e/f": b"\0"}


def test_torn_write_keeps_earlier_bytes() -> None:
    disk = SimDisk()
    synced_file(disk, "a", b"a" * 1500)
    disk.open("a").pwrite(100, b"b" * 1200)
    at_byte = image_with(disk, Fate.TORN_AT_BYTE, dice=7)["a"]
    assert at_byte == b"a" * 100 + b"b" * 7 + b"a" * 1393
    at_sector = image_with(disk, Fate.TORN_AT_SECTOR, dice=1)["a"]
    assert at_sector == b"a" * 100 + b"b" * 924 + b"a" * 476
    scattered = image_with(disk, Fate.SCATTERED, dice=0b010)["a"]
    assert scattered == b"a" * 512 + b"b" * 512 + b"a" * 476
    zeroed = image_with(disk, Fate.ZEROED)["a"]
    assert zeroed == b"a" * 100 + bytes(1200) + b"a" * 200
    garbage = image_with(disk, Fate.GARBAGE, dice=600)["a"]
    assert garbage is not None
    assert garbage[:700] == b"a" * 100 + b"b" * 600
    assert garbage[700:1024] != b"a" * 324
    assert garbage[1024:] == b"a" * 476


def test_noise_leaves_unchanged_bytes_alone() -> None:
    disk = SimDisk()
    synced_file(disk, "a", b"same")
    disk.open("a").pwrite(0, b"same")
    for fate in Fate:
        assert image_with(disk, fate, dice=2) == {"a": b"same"}


def test_crash_may_keep_the_length_without_the_bytes() -> None:
    disk = SimDisk()
    synced_file(disk, "a", b"")
    disk.open("a").pwrite(0, b"xyz")
    assert image_with(disk, Fate.ZEROED) == {"a": b"\0\0\0"}


def test_mapped_write_is_one_write_per_sector() -> None:
    disk = SimDisk()
    synced_file(disk, "a", bytes(2048))
    view = disk.open("a").writable()
    view[5], view[1030] = 1, 2
    point = disk.crash_point()
    assert len(point.writes) == 2
    assert {fingerprint(image) for image in images(disk, 40)} >= {
        fingerprint({"a": bytes(2048)}),
        fingerprint({"a": bytes(5) + b"\1" + bytes(2042)}),
        fingerprint({"a": bytes(1030) + b"\2" + bytes(1017)}),
        fingerprint({"a": bytes(5) + b"\1" + bytes(1024) + b"\2" + bytes(1017)}),
    }
    disk.open("a").sync()
    view[6] = 3
    assert image_with(disk, Fate.LOST)["a"] == bytes(5) + b"\1" + bytes(1024) + b"\2" + bytes(1017)


def test_mapped_write_outside_reserved_blocks_is_an_error() -> None:
    disk = SimDisk()
    file = disk.create("a", 4096)
    file.reserve(0, 512)
    file.writable()[600] = 1
    with pytest.raises(AssertionError, match="SIGBUS"):
        disk.crash_point()


def test_image_that_keeps_everything_equals_what_readers_see() -> None:
    disk, dice = SimDisk(), Random(7)
    for step in range(400):
        path = f"f{dice.randrange(4)}"
        if not disk.exists(path):
            disk.create(path, dice.randrange(600))
            continue
        file = disk.open(path)
        match dice.randrange(6):
            case 0:
                file.truncate(dice.randrange(2000))
            case 1:
                file.sync()
            case 2:
                disk.sync_dir(".")
            case 3:
                disk.rename(path, f"f{dice.randrange(4)}") if step % 3 else disk.remove(path)
            case _:
                file.pwrite(dice.randrange(900), dice.randbytes(dice.randrange(1, 900)))
    seen = {path: disk.open(path).pread(0, 4096) for path in disk.list(".")}
    assert image_with(disk, Fate.KEPT) == seen
    again = SimDisk(image_with(disk, Fate.KEPT))
    assert image_with(again, Fate.LOST) == seen


def test_crash_plans_are_equal_for_equal_seeds() -> None:
    disk = SimDisk()
    synced_file(disk, "a", b"a" * 600)
    disk.open("a").pwrite(0, b"b" * 600)
    disk.create("b", 7)
    assert images(disk, 30) == images(disk, 30)
    assert len({fingerprint(image) for image in images(disk, 100)}) > 20


def test_nth_call_fails_once_or_always() -> None:
    disk = SimDisk()
    file = disk.create("a", 8)
    disk.fail_at(2, errno.EIO)
    file.pwrite(0, b"ab")
    with pytest.raises(OSError, match="Input/output error"):
        file.pwrite(2, b"cdef")
    file.pwrite(6, b"gh")
    assert file.pread(0, 8) == b"abcd\0\0gh", "half of a failed write may arrive"
    disk.fail_at(1, errno.EIO, onward=True)
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
    assert disk.failures == 3
    disk.heal()
    file.sync()


def test_failed_sync_may_leave_lost_pages_marked_clean() -> None:
    disk = SimDisk()
    synced_file(disk, "a", b"old")
    disk.failed_sync_drops = True
    file = disk.open("a")
    file.pwrite(0, b"new")
    disk.fail_at(1, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    file.sync()
    assert file.pread(0, 3) == b"new"
    assert image_with(disk, Fate.KEPT) == {"a": b"old"}
    file.pwrite(1, b"e")
    file.sync()
    assert image_with(disk, Fate.LOST) == {"a": b"oed"}


def test_full_disk_rejects_growth_until_space_is_freed() -> None:
    disk = SimDisk(capacity=1000)
    file = disk.create("a", 4000)
    file.reserve(0, 900)
    with pytest.raises(OSError, match="No space left"):
        file.reserve(900, 1001)
    with pytest.raises(OSError, match="No space left"):
        file.pwrite(990, b"x" * 20)
    file.pwrite(0, b"y" * 900)
    assert disk.usage("a").free == 100
    file.reserve(900, 1000)
    with pytest.raises(OSError, match="No space left"):
        disk.create("b", 0)
    disk.remove("a")
    disk.create("b", 0)


def test_lock_is_held_until_closed_or_process_ends() -> None:
    disk = SimDisk()
    held = disk.lock("lock")
    with pytest.raises(StoreLocked):
        disk.lock("lock")
    held.close()
    held = disk.lock("lock")
    disk.kill()
    disk.lock("lock")
    held.close()
    with pytest.raises(StoreLocked):
        disk.lock("lock")


def test_changing_calls_are_logged_in_order() -> None:
    disk = SimDisk()
    told: list[int] = []
    disk.on_call = lambda: told.append(len(disk.calls))
    disk.make_dirs("d")
    file = disk.create("d/a", 4)
    file.pwrite(1, b"xy")
    file.pread(0, 4)
    file.sync()
    assert [(call.kind, call.path, call.at, call.size) for call in disk.calls] == [
        ("make_dirs", "d", 0, 0),
        ("create", "d/a", 0, 4),
        ("pwrite", "d/a", 1, 2),
        ("sync", "d/a", 0, 0),
    ]
    assert told == [1, 2, 3, 4]


def test_missing_paths_raise_file_not_found() -> None:
    disk = SimDisk()
    assert disk.list("nowhere") == []
    for call in (disk.open, disk.remove, disk.sync_dir, disk.remove_dir):
        with pytest.raises(FileNotFoundError):
            call("nowhere/at/all")
    disk.make_dirs("d")
    disk.create("d/a", 0)
    with pytest.raises(OSError, match="not empty"):
        disk.remove_dir("d")
    with pytest.raises(IsADirectoryError):
        disk.open("d")
