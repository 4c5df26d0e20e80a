from dataclasses import replace
from pathlib import Path

from tianzhou.store import checkpoint as module
from tianzhou.store.checkpoint import Checkpoint, CheckpointFile, decode, encode
from tianzhou.store.files import RealFiles

FULL = Checkpoint(
    log_timestamp=11,
    queues_timestamp=12,
    index_timestamp=13,
    flushed=1 << 40,
    derived=1 << 39,
    anchor=(1 << 39) - 200,
    queues=7,
    units=99,
    index_files=2,
    index_name="20261115184332523",
    index_count=41,
    clean=True,
    checked=True,
    log_begin=1 << 38,
    exact=True,
)


def test_checkpoint_written_is_read_back() -> None:
    assert decode(encode(FULL)) == FULL
    assert len(encode(FULL)) == module.SECTOR


def test_checkpoint_with_a_flipped_bit_keeps_only_the_times() -> None:
    page = encode(FULL)
    ours = range(module.OURS_AT, module.OURS_AT + module.PREFIX.size + module.OURS.size)
    for at in ours:
        for bit in range(8):
            damaged = bytearray(page)
            damaged[at] ^= 1 << bit
            assert decode(bytes(damaged)) == Checkpoint(11, 12, 13)


def test_checkpoint_with_foreign_times_ignores_our_part() -> None:
    for at in range(24):
        page = bytearray(encode(FULL))
        page[at] ^= 1
        found = decode(bytes(page))
        assert not found.exact
        assert found.flushed == 0


def test_checkpoint_short_empty_or_negative_has_no_positions() -> None:
    assert decode(b"") == Checkpoint()
    assert decode(encode(FULL)[:100]) == Checkpoint(11, 12, 13)
    assert decode(b"\xff" * 512) == Checkpoint()


def test_checkpoint_new_file_has_the_size_java_expects(tmp_path: Path) -> None:
    file = CheckpointFile(RealFiles(), str(tmp_path / "checkpoint"))
    assert file.current == Checkpoint()
    file.write(FULL, sync=True)
    file.close()
    assert (tmp_path / "checkpoint").stat().st_size == 4096
    file = CheckpointFile(RealFiles(), str(tmp_path / "checkpoint"))
    assert file.current == FULL
    file.distrust()
    assert file.current.queues == module.NO_QUEUES
    file.close()


def test_checkpoint_without_a_valid_begin_part_keeps_the_rest() -> None:
    page = encode(FULL)
    unknown = replace(FULL, log_begin=module.UNKNOWN)
    assert decode(page[: module.BEGIN_AT]) == unknown, "as versions without the part wrote it"
    for at in range(module.BEGIN_AT, module.BEGIN_AT + module.PREFIX.size + module.BEGIN.size):
        for bit in range(8):
            damaged = bytearray(page)
            damaged[at] ^= 1 << bit
            assert decode(bytes(damaged)) == unknown


def test_checkpoint_with_a_negative_begin_has_an_unknown_begin() -> None:
    assert decode(encode(replace(FULL, log_begin=-5))).log_begin == module.UNKNOWN
