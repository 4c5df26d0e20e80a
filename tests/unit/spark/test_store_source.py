"""Store directories read without opening them: division, damage, torn ends."""

import zlib
from pathlib import Path

import pytest

from tianzhou.base.kinds import queue_key
from tianzhou.record.chunk import Entry, build
from tianzhou.spark.store_source import LogDamaged, LogSpan, StoreNotFound, log_spans, read_span
from tianzhou.store.config import StoreConfig
from tianzhou.store.files import RealFiles
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock

FILE_BYTES = 256 * 1024
COUNT = 4_000


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    config = StoreConfig(
        commit_log_file_bytes=FILE_BYTES,
        consume_queue_file_bytes=20_000,
        index_slots=100,
        index_entries=400,
    )
    store = MessageStore(RealFiles(), str(root), config, ManualClock(1_800_000_000_000))
    for first in range(0, COUNT, 100):
        entries = [
            Entry(queue_key("orders", n % 4), b"%04d" % n) for n in range(first, first + 100)
        ]
        store.append(build(entries, store_host=bytes(8), record_crc=True))
    store.close()
    return root


def bodies(pieces: list[LogSpan], *, verify: bool = True, skip: bool = False) -> list[bytes]:
    found: list[bytes] = []
    for piece in pieces:
        for run in read_span(piece, verify=verify, skip_damage=skip):
            found += [bytes(run.data[at + 88 : at + 92]) for at in run.starts]
    return found


def everything() -> list[bytes]:
    return [b"%04d" % n for n in range(COUNT)]


@pytest.mark.parametrize("bytes_max", [10_000, 50_000, FILE_BYTES])
def test_spans_cover_every_record_once(written: Path, bytes_max: int) -> None:
    pieces = log_spans(str(written), bytes_max)
    assert bodies(pieces) == everything()
    files = len(list((written / "commitlog").iterdir()))
    assert len(pieces) > files if bytes_max < FILE_BYTES else len(pieces) == files
    assert [piece.is_last for piece in pieces].count(True) == 1


def test_spans_without_consume_queues_are_whole_files(written: Path, tmp_path: Path) -> None:
    (tmp_path / "commitlog").symlink_to(written / "commitlog")
    pieces = log_spans(str(tmp_path), 10_000)
    assert len(pieces) == len(list((written / "commitlog").iterdir()))
    assert bodies(pieces) == everything()


def test_unreadable_queue_file_is_not_used_for_dividing(written: Path, tmp_path: Path) -> None:
    (tmp_path / "commitlog").symlink_to(written / "commitlog")
    unreadable, torn = (tmp_path / "consumequeue/orders" / str(n) / ("0" * 20) for n in range(2))
    unreadable.mkdir(parents=True)
    torn.parent.mkdir()
    torn.write_bytes(bytes(7))
    assert bodies(log_spans(str(tmp_path), 10_000)) == everything()


def a_copy(written: Path, tmp_path: Path, at: int, data: bytes) -> Path:
    """Copy the directory with other bytes at one place of its first file."""
    (tmp_path / "commitlog").mkdir()
    for path in (written / "commitlog").iterdir():
        (tmp_path / "commitlog" / path.name).write_bytes(path.read_bytes())
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(at)
        file.write(data)
    return tmp_path


@pytest.mark.parametrize("data", [b"\xff", bytes(64), b"\x00\x00\x00\x10"])
def test_damage_is_an_error_or_skipped(written: Path, tmp_path: Path, data: bytes) -> None:
    pieces = log_spans(str(a_copy(written, tmp_path, 50_000, data)), FILE_BYTES)
    with pytest.raises(LogDamaged, match=r"are not sound records; with failOnDataLoss=false"):
        bodies(pieces)
    found = bodies(pieces, skip=True)
    assert 0 < COUNT - len(found) < 5
    assert set(found) < set(everything())


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("claim", [0x10, 0x20, 0x30])
def test_malformed_record_is_an_error_or_skipped(
    written: Path, tmp_path: Path, verify: bool, claim: int
) -> None:
    """The checksum is correct, but the flag claims longer hosts than the record has."""
    data = (written / "commitlog" / f"{0:020d}").read_bytes()
    record = bytearray(data[: int.from_bytes(data[:4], "big")])
    record[39] |= claim
    digits = b"%010d" % (zlib.crc32(record[:-20]) & 0x7FFFFFFF)
    record[-11:-1] = digits[::-1]
    pieces = log_spans(str(a_copy(written, tmp_path, 0, bytes(record))), FILE_BYTES)
    with pytest.raises(LogDamaged):
        bodies(pieces, verify=verify)
    assert bodies(pieces, verify=verify, skip=True) == everything()[1:]


def test_torn_record_ends_the_log(written: Path, tmp_path: Path) -> None:
    last = max((written / "commitlog").iterdir())
    (tmp_path / "commitlog").mkdir()
    data = last.read_bytes()
    end = len(data.rstrip(b"\0"))
    torn = tmp_path / "commitlog" / last.name
    torn.write_bytes(data[: end - 30] + bytes(len(data) - end + 30))
    (prepared := tmp_path / "commitlog" / f"{int(last.name) + FILE_BYTES:020d}").write_bytes(
        bytes(FILE_BYTES)
    )
    found = bodies(log_spans(str(tmp_path), FILE_BYTES))
    assert prepared.exists()
    assert found == everything()[-len(found) - 1 : -1]


def test_directory_without_a_commit_log_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match="has no commit log"):
        log_spans(str(tmp_path), 1)
