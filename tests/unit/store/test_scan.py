from collections.abc import Sequence

import pytest
from small_store import FILE_BYTES, KEY

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.record.chunk import Entry, build
from tianzhou.record.layout import HEAD, INT32, MAGIC_V1
from tianzhou.store import scan
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.scan import (
    NOWHERE,
    LogScan,
    has_checksum,
    next_sound_record,
    segment_of,
    sound_record_at,
    store_time_at,
)
from tianzhou.testing.sim.disk import SimDisk

NOW = 1_700_000_000_000


class Log:
    """Records in files, and where each begins."""

    def __init__(self) -> None:
        self.log = CommitLog(SimDisk(), "log", file_bytes=FILE_BYTES, reserve_bytes=4096)
        self.starts: list[int] = []

    def append(self, *bodies: bytes, crc: bool = True, properties: bytes = b"A\x01b\x02") -> None:
        entries = [Entry(KEY, body, properties) for body in bodies]
        for entry in entries:
            made = build([entry], store_host=bytes(8), record_crc=crc)
            (piece,) = self.log.append(made, queue_offsets=[0], now_ms=NOW + len(self.starts))
            self.starts.append(piece.offset)

    def write(self, offset: int, data: bytes) -> None:
        segment = self.log.segments[offset // FILE_BYTES]
        segment.file.pwrite(offset - segment.start, data)

    def walk(self, start: int = 0, checked: int | None = NOWHERE) -> LogScan:
        return LogScan(self.log.segments, FILE_BYTES, PhysicalOffset(start), checked)

    def next(self, after: int, checked: int | None = NOWHERE) -> int | None:
        return next_sound_record(self.log.segments, FILE_BYTES, PhysicalOffset(after), checked)

    def size(self, offset: int) -> int | None:
        record = sound_record_at(self.log.segments, FILE_BYTES, offset)
        return None if record is None else len(record)


@pytest.fixture
def log() -> Log:
    made = Log()
    made.append(b"a" * 100, b"b" * 100, b"c" * 100)
    return made


@pytest.fixture
def two_files() -> Log:
    made = Log()
    made.append(b"a" * 2000, b"b" * 1000, b"c" * 2000, b"d" * 100)
    assert made.starts[2] == FILE_BYTES
    return made


def found(scanned: LogScan) -> list[int]:
    return [piece.base + start for piece in scanned for start in piece.starts]


def ends(scanned: LogScan) -> list[int]:
    return [piece.end_offset for piece in scanned]


# LogScan


def test_scan_sound_log_ends_at_its_last_record(log: Log) -> None:
    scanned = log.walk()
    assert found(scanned) == log.starts
    assert scanned.halt == (log.log.end, "no record starts here (end)", True)


def test_scan_starts_at_the_given_offset(log: Log) -> None:
    assert found(log.walk(log.starts[1])) == log.starts[1:]


def test_scan_blank_end_of_a_file_continues_in_the_next(two_files: Log) -> None:
    scanned = two_files.walk()
    assert found(scanned) == two_files.starts
    assert scanned.halt.offset == two_files.log.end


def test_scan_log_without_files_ends_at_once() -> None:
    scanned = Log().walk(5)
    assert scanned.halt == (5, "nothing was read", True)
    assert found(scanned) == []
    assert scanned.halt == (5, "the last file ends here", True)


def test_scan_full_last_file_ends_the_log() -> None:
    log = Log()
    log.append(b"")
    log.append(b"x" * (FILE_BYTES - 8 - 2 * log.log.end))
    assert log.log.end == FILE_BYTES - 8
    scanned = log.walk()
    assert found(scanned) == log.starts
    assert scanned.halt.is_bare
    log.append(b"next")
    scanned = log.walk()
    assert found(scanned) == [*log.starts[:2], FILE_BYTES]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_scan_record_with_a_wrong_checksum_ends_the_log(log: Log, rank: int) -> None:
    log.write(log.starts[rank] + 90, b"!")
    scanned = log.walk()
    assert ends(scanned) == [log.starts[rank]] * (rank > 0), "no slice of nothing"
    assert found(scanned) == log.starts[:rank]
    assert scanned.halt == (log.starts[rank], "a record whose checksum fails", False)


@pytest.mark.parametrize(
    ("data", "why"), [(b"\1" * 8, "damaged"), (INT32.pack(4000) + INT32.pack(MAGIC_V1), "torn")]
)
def test_scan_bytes_that_are_not_a_record_end_the_log(log: Log, data: bytes, why: str) -> None:
    log.write(log.starts[2], data)
    scanned = log.walk()
    assert found(scanned) == log.starts[:2]
    assert scanned.halt == (log.starts[2], f"no record starts here ({why})", False)


def test_scan_slices_are_limited_in_count_and_bytes(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "SLICE_RECORDS", 2)
    assert ends(log.walk()) == [log.starts[2], log.log.end]
    monkeypatch.setattr(scan, "SLICE_BYTES", log.starts[1] + 1)
    assert ends(log.walk()) == [*log.starts[1:], log.log.end]


def test_scan_record_larger_than_a_slice_gets_its_own_slice(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "SLICE_BYTES", 50)
    scanned = log.walk()
    assert ends(scanned) == [*log.starts[1:], log.log.end]
    assert scanned.halt.offset == log.log.end


# Records without a checksum of the whole


def test_scan_record_without_the_required_checksum_is_torn(log: Log) -> None:
    log.append(b"d", crc=False)
    log.append(b"e")
    first, last = log.starts[3], log.starts[4]
    assert found(log.walk(checked=last)) == log.starts, "it was written before"
    scanned = log.walk(checked=first)
    assert found(scanned) == log.starts[:3]
    assert scanned.halt == (first, "a record whose checksum fails", False)
    assert found(log.walk(checked=0)) == log.starts[:3]


def test_scan_optional_checksum_accepts_properties_that_are_text_only(log: Log) -> None:
    log.append(b"d", crc=False, properties=b"A\x01\xc3\xa4")
    log.append(b"e", crc=False, properties=b"A\x01\xc3")
    scanned = log.walk(checked=None)
    assert found(scanned) == log.starts[:4]
    assert scanned.halt.offset == log.starts[4]
    assert found(log.walk()) == log.starts, "unless it is known that some have none"


@pytest.mark.parametrize("failing", [1, 4])
def test_scan_first_of_a_wrong_and_a_missing_checksum_is_reported(log: Log, failing: int) -> None:
    log.append(b"d", crc=False)
    log.append(b"e" * 100)
    log.write(log.starts[failing] + 90, b"!")
    scanned = log.walk(checked=0)
    assert found(scanned) == log.starts[: min(failing, 3)]
    assert scanned.halt.offset == log.starts[min(failing, 3)]


def test_has_checksum_reports_whether_a_record_has_one(log: Log) -> None:
    log.append(b"d", crc=False)
    data = log.log.segments[0].read(0, log.log.end)
    assert has_checksum(data, log.starts[3])
    assert not has_checksum(data, log.log.end)
    log.write(log.starts[3] - 5, b"!")
    data = log.log.segments[0].read(0, log.log.end)
    assert has_checksum(data, log.starts[3]), "right or wrong"


# Single records


def test_segment_of_finds_the_file_of_an_offset(two_files: Log) -> None:
    segments = two_files.log.segments

    def of(offset: int, among: int = 0) -> int | None:
        segment = segment_of(segments[among:], FILE_BYTES, offset)
        return segment.start if segment else None

    assert [of(0), of(FILE_BYTES - 1), of(FILE_BYTES)] == [0, 0, FILE_BYTES]
    assert of(2 * FILE_BYTES) is None
    assert of(FILE_BYTES - 1, among=1) is None
    assert segment_of([], FILE_BYTES, 0) is None


def test_record_size_of_a_sound_record_is_returned(two_files: Log) -> None:
    starts = two_files.starts
    assert two_files.size(starts[0]) == starts[1]
    assert two_files.size(starts[2]) == starts[3] - starts[2]
    for wrong in (1, starts[1] - 1, two_files.log.end, FILE_BYTES - 4, 2 * FILE_BYTES, -1):
        assert two_files.size(wrong) is None, wrong


@pytest.mark.parametrize("size", [0, -1, FILE_BYTES + 1, 1 << 30])
def test_record_size_out_of_range_is_rejected(log: Log, size: int) -> None:
    log.write(log.starts[1], INT32.pack(size))
    assert log.size(log.starts[1]) is None


def test_record_size_with_a_body_beyond_the_file_is_rejected(log: Log) -> None:
    log.write(log.starts[1], INT32.pack(1 << 20))
    log.write(log.starts[1] + HEAD.size - 4, INT32.pack((1 << 20) - 200))
    assert log.size(log.starts[1]) is None


def test_store_time_of_a_record_is_read(two_files: Log) -> None:
    times = [store_time_at(two_files.log.segments, FILE_BYTES, start) for start in two_files.starts]
    assert times == [NOW, NOW + 1, NOW + 2, NOW + 3]


# Looking for the next one


def test_next_record_after_an_offset_is_found(two_files: Log) -> None:
    starts: Sequence[int] = two_files.starts
    assert two_files.next(0) == starts[1], "not the one at the offset itself"
    assert two_files.next(starts[1] - 1) == starts[1]
    assert two_files.next(starts[1]) == starts[2], "in the next file"
    assert two_files.next(starts[3]) is None


def test_next_record_skips_bytes_that_resemble_a_record(log: Log) -> None:
    log.append(INT32.pack(120) + INT32.pack(MAGIC_V1) + b"x" * 120, b"e")
    log.write(log.starts[3] + 20, b"!")
    assert log.next(log.starts[2]) == log.starts[4]


def test_next_record_at_the_edge_of_a_window_is_found(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in range(1, 40):
        monkeypatch.setattr(scan, "_SEARCH_BYTES", size)
        assert log.next(0) == log.starts[1], size
        assert log.next(log.starts[1] + 3) == log.starts[2], size


def test_next_record_skips_holes() -> None:
    log = Log()
    log.append(b"a" * 10)
    log.append(b"b" * 2000)
    log.append(b"c")
    log.write(0, bytes(log.starts[2]))
    assert log.next(0) == log.starts[2]


def test_next_record_without_the_required_checksum_is_skipped(log: Log) -> None:
    log.append(b"d", crc=False)
    log.append(b"e")
    assert log.next(log.starts[2]) == log.starts[3]
    assert log.next(log.starts[2], checked=log.starts[3]) == log.starts[4]
    assert log.next(log.starts[2], checked=log.starts[4]) == log.starts[3]


@pytest.mark.parametrize("crc", [True, False])
def test_next_record_copied_to_another_offset_is_skipped(log: Log, crc: bool) -> None:
    log.append(b"z", crc=crc)
    size = log.size(log.starts[3])
    assert size
    segment = log.log.segments[0]
    log.write(log.log.end + 100, segment.file.pread(log.starts[3], size))
    assert log.next(log.starts[3]) is None
    log.write(log.log.end, segment.file.pread(log.starts[3], size))
    assert ends(log.walk())[-1] == log.log.end
