"""Reading the log of a DLedger member: all intact records, and where it is damaged."""

from pathlib import Path

import pytest
from ledgers import FILE_BYTES, KEY, LedgerWriter

from tianzhou.base.errors import UsageError
from tianzhou.record.message import MessageView
from tianzhou.store.dledger import HEADER_BYTES, Ledger, committed_index, find_ledger
from tianzhou.store.files import ReadOnlyFiles


@pytest.fixture
def writer(tmp_path: Path) -> LedgerWriter:
    made = LedgerWriter(tmp_path)
    for number in range(60):
        made.append(b"%d-" % number + b"x" * (number * 37 % 300), offset=number)
    return made


def read(writer: LedgerWriter) -> tuple[Ledger, list[int]]:
    """The log, and the queue offset of every record in it."""
    files = ReadOnlyFiles()
    found = find_ledger(files, str(writer.root))
    assert found is not None
    ledger = Ledger(files, found)
    return ledger, [int(MessageView(record.data).queue_offset) for record in ledger]


def test_ledger_returns_all_records_over_several_files(writer: LedgerWriter) -> None:
    ledger, offsets = read(writer)
    assert ledger.file_bytes == FILE_BYTES
    assert ledger.total_bytes > 3 * FILE_BYTES
    assert offsets == list(range(60))
    assert not ledger.damage
    assert ledger.last_index == 59


def test_ledger_skips_entries_of_dledger_itself(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path)
    writer.append(b"a", offset=0)
    writer.append(b"own", offset=0, magic=2)
    writer.append(b"b", offset=1)
    ledger, offsets = read(writer)
    assert offsets == [0, 1]
    assert not ledger.damage


@pytest.mark.parametrize(
    ("shift", "reason"),
    [
        (0, "no entry starts here"),
        (4, "the header of an entry is damaged"),
        (24, "the header of an entry is damaged"),
        (HEADER_BYTES + 90, "the record of entry 20 is damaged"),
    ],
)
def test_ledger_continues_after_damage_and_reports_it(
    writer: LedgerWriter, shift: int, reason: str
) -> None:
    writer.damage(writer.places[20] + shift)
    ledger, offsets = read(writer)
    assert offsets == [number for number in range(60) if number != 20]
    first = ledger.damage[0]
    assert (first.start, first.reason) == (writer.places[20], reason)
    assert first.end == writer.places[21]
    assert [one.reason for one in ledger.damage[1:]] == ["entries 20 to 20 are missing"]


def test_ledger_reports_a_hole_and_reads_what_follows(writer: LedgerWriter) -> None:
    writer.damage(writer.places[30], bytes(writer.places[33] - writer.places[30]))
    ledger, offsets = read(writer)
    assert offsets == [number for number in range(60) if not 30 <= number < 33]
    assert ledger.damage[0].start == writer.places[30]


def test_ledger_reads_a_log_whose_start_has_expired(writer: LedgerWriter) -> None:
    (writer.root / "dledger-n0/data" / f"{0:020d}").unlink()
    ledger, offsets = read(writer)
    assert offsets[-1] == 59
    assert offsets[0] > 0
    assert not ledger.damage


def test_ledger_end_that_is_torn_is_reported(writer: LedgerWriter) -> None:
    writer.damage(writer.places[59] + HEADER_BYTES + 20, bytes(200))
    ledger, offsets = read(writer)
    assert offsets == list(range(59))
    assert len(ledger.damage) == 1


def test_ledger_committed_index_is_that_of_the_checkpoint(writer: LedgerWriter) -> None:
    files, directory = ReadOnlyFiles(), str(writer.root / "dledger-n0")
    assert committed_index(files, directory) is None
    writer.commit(41)
    assert committed_index(files, directory) == 41


def test_find_ledger_of_several_members_is_ambiguous(writer: LedgerWriter) -> None:
    other = writer.root / "dledger-n1" / "data"
    other.mkdir(parents=True)
    assert find_ledger(ReadOnlyFiles(), str(writer.root)) is not None
    (other / f"{0:020d}").write_bytes(bytes(FILE_BYTES))
    with pytest.raises(UsageError, match="dledger-n0, dledger-n1"):
        find_ledger(ReadOnlyFiles(), str(writer.root))


def test_ledger_key_is_that_of_the_record(writer: LedgerWriter) -> None:
    files = ReadOnlyFiles()
    ledger = Ledger(files, str(writer.root / "dledger-n0"))
    views = [MessageView(record.data) for record in ledger]
    assert {(view.topic, view.queue_id) for view in views} == {(KEY.topic, KEY.queue_id)}
