"""The pages of docs/formats about files say what the code does."""

import struct
from pathlib import Path

import pytest
from doc_tables import only_table, placed, read, section_of, tables_of
from sources import ROOT

from tianzhou.base import limits
from tianzhou.base.java import key_hash
from tianzhou.base.kinds import PhysicalOffset, QueueKey, QueueOffset, queue_key
from tianzhou.record.crc import crc32
from tianzhou.replication import witness_state
from tianzhou.store import (
    checkpoint,
    consume_queue,
    derivation,
    incidents,
    index_file,
    layout,
    segments,
)
from tianzhou.store.checkpoint import Checkpoint
from tianzhou.store.config import StoreConfig
from tianzhou.store.file_cache import FileCache
from tianzhou.store.files import RealFiles
from tianzhou.store.key_index import _name_of
from tianzhou.store.tables import Tables

FORMATS = ROOT / "docs" / "formats"
QUEUE = read(FORMATS / "consume_queue.md")
INDEX = read(FORMATS / "index_file.md")
CHECKPOINT = read(FORMATS / "checkpoint.md")
DIRECTORY = read(FORMATS / "directory.md")
CONFIG = StoreConfig()


def sizes_of(format_: str) -> list[int]:
    """Sizes of the fields of a struct whose letters each stand for one."""
    return [struct.calcsize(">" + letter) for letter in format_.lstrip(">")]


def assert_adjoining(rows: list[tuple[int, int, str]], *, start: int, end: int) -> None:
    at = start
    for offset, size, name in rows:
        assert offset == at, name
        at += size
    assert at == end


@pytest.mark.parametrize("page", sorted(FORMATS.glob("*.md")), ids=lambda page: page.name)
def test_formats_pages_explain_every_row(page: Path) -> None:
    for rows in tables_of(read(page)):
        for row in rows:
            assert row.get("MEANING", row.get("what it describes")), row


def test_formats_index_links_every_page() -> None:
    listed = read(FORMATS / "README.md")
    for page in FORMATS.glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in listed


# Consume queue


def test_consume_queue_page_has_the_layout_of_a_unit() -> None:
    rows = placed(tables_of(section_of(QUEUE, "Unit"))[0])
    assert [name for _, _, name in rows] == list(consume_queue.Unit._fields)
    assert [size for _, size, _ in rows] == sizes_of(consume_queue.UNIT.format)
    assert_adjoining(rows, start=0, end=consume_queue.UNIT_BYTES)
    assert f"A unit has {consume_queue.UNIT_BYTES} bytes" in QUEUE


def test_consume_queue_page_has_the_special_sizes() -> None:
    _, special = tables_of(section_of(QUEUE, "Unit"))
    assert [int(row["VALUE OF SIZE"]) for row in special] == [0, consume_queue.MISSING_SIZE]
    assert consume_queue.UNIT.unpack(consume_queue.MISSING) == (0, consume_queue.MISSING_SIZE, 0)


def test_consume_queue_page_has_the_file_size(tmp_path: Path) -> None:
    assert f"{limits.CONSUME_QUEUE_FILE_UNITS:,}\nunits" in QUEUE
    assert f"{CONFIG.consume_queue_file_bytes:,} bytes" in QUEUE
    assert f"a page of {consume_queue.TAIL_BYTES_MAX} bytes" in QUEUE
    # A queue that begins late: its file, and the marks before its first message.
    files = RealFiles()
    queue = consume_queue.ConsumeQueue(FileCache(files, 4), f"{tmp_path}/t/0", _queue(), 10)
    queue.append(QueueOffset(23), consume_queue.UNIT.pack(7, 100, 5))
    queue.write_out()
    assert files.list(queue.directory) == [segments.file_name(20 * consume_queue.UNIT_BYTES)]
    assert queue.unit(22) == (PhysicalOffset(0), consume_queue.MISSING_SIZE, 0)
    assert queue.unit(23) == (PhysicalOffset(7), 100, 5)


def _queue() -> QueueKey:
    return queue_key("t", 0)


# Index file


def test_index_page_has_the_layout_of_a_file() -> None:
    header, slots, entries = only_table(INDEX, "File")
    assert (int(header["OFFSET"]), int(header["SIZE"])) == (0, index_file.HEADER.size)
    assert slots["OFFSET"] == str(index_file.HEADER.size)
    assert slots["SIZE"] == f"{index_file.SLOT.size} × slots"
    assert entries["OFFSET"] == f"{slots['OFFSET']} + {slots['SIZE']}"
    assert entries["SIZE"] == f"{index_file.ENTRY.size} × entries"
    size = index_file.file_bytes(CONFIG.index_slots, CONFIG.index_entries)
    assert f"{size:,} bytes by default" in INDEX
    assert f"{CONFIG.index_slots:,} slots and {CONFIG.index_entries:,} places" in INDEX
    assert f"{len(_name_of(0))} digits" in INDEX


def test_index_page_has_the_layout_of_the_header(tmp_path: Path) -> None:
    rows = placed(only_table(INDEX, "Header"))
    assert [size for _, size, _ in rows] == sizes_of(index_file.HEADER.format)
    assert_adjoining(rows, start=0, end=index_file.HEADER.size)
    # The names stand where the code writes what they mean.
    made = RealFiles().create(f"{tmp_path}/index", index_file.file_bytes(10, 20))
    index = index_file.IndexFile.begin(
        made, index_file.empty_slots(10), entries=20, offset=3, timestamp=4
    )
    index.put([7, 8, 17], [100, 200, 300], [50_000, 60_000, 61_999])
    index.write_out()
    data = made.pread(0, made.size())
    found = {name: int.from_bytes(data[at : at + size], "big") for at, size, name in rows}
    assert found == {
        "begin_timestamp": 50_000,
        "end_timestamp": 61_999,
        "begin_offset": 100,
        "end_offset": 300,
        "slot_count": 2,
        "entry_count": 4,
    }
    # Entry 3 has slot 7, as entry 1 has.
    at = index_file.HEADER.size + 10 * index_file.SLOT.size + 3 * index_file.ENTRY.size
    entry = {
        name: int.from_bytes(data[at + start : at + start + size], "big")
        for start, size, name in placed(only_table(INDEX, "Entry"))
    }
    assert entry == {"key_hash": 17, "physical_offset": 300, "seconds": 11, "previous": 1}
    index.close()


def test_index_page_has_the_layout_of_an_entry() -> None:
    rows = placed(only_table(INDEX, "Entry"))
    assert [name for _, _, name in rows] == [name for name, _ in index_file.ENTRY_FIELDS]
    assert [size for _, size, _ in rows] == sizes_of(index_file.ENTRY.format)
    assert_adjoining(rows, start=0, end=index_file.ENTRY.size)
    assert f"at most {index_file._SECONDS_MAX}" in INDEX
    assert key_hash("polygenelubricants") == 0  # Java's hash of it is the one without a positive


# Checkpoint


def test_checkpoint_page_has_the_layout_of_the_times() -> None:
    written = Checkpoint(
        log_timestamp=1,
        queues_timestamp=2,
        index_timestamp=3,
        flushed=4,
        derived=5,
        anchor=6,
        queues=7,
        units=8,
        index_name="20260101000000000",
        index_count=9,
        clean=True,
    )
    page = checkpoint.encode(written)
    theirs = placed(only_table(CHECKPOINT, "RocketMQ's part"))
    ours = placed(only_table(CHECKPOINT, "Our part"))
    found = {name: page[at : at + size] for at, size, name in theirs + ours}
    numbers = {name: int.from_bytes(data, "big") for name, data in found.items()}
    for name in (
        "log_timestamp",
        "queues_timestamp",
        "index_timestamp",
        "flushed",
        "derived",
        "anchor",
        "queues",
        "units",
        "index_count",
        "clean",
    ):
        assert numbers.pop(name) == getattr(written, name), name
    assert numbers["magic"] == checkpoint.MAGIC
    assert numbers["master_flushed"] == numbers["confirmed"] == 0
    assert found["index_name"].rstrip(b"\0").decode() == written.index_name
    assert found["timestamps"] == page[:24]
    (first,) = [at for at, _, name in ours if name == "flushed"]
    assert numbers["crc"] == crc32(page[first : first + checkpoint.OURS.size])


def test_checkpoint_page_has_the_layout_of_the_begin_part() -> None:
    rows = placed(only_table(CHECKPOINT, "Where the log begins"))
    end = checkpoint.BEGIN_AT + checkpoint.PREFIX.size + checkpoint.BEGIN.size
    assert_adjoining(rows, start=checkpoint.BEGIN_AT, end=end)
    page = checkpoint.encode(Checkpoint(log_begin=77))
    found = {name: page[at : at + size] for at, size, name in rows}
    assert int.from_bytes(found["begin_magic"], "big") == checkpoint.BEGIN_MAGIC
    assert int.from_bytes(found["begin_crc"], "big") == crc32(found["log_begin"])
    assert int.from_bytes(found["log_begin"], "big") == 77
    assert f"`0x{checkpoint.BEGIN_MAGIC:08X}`, the letters TZLB" in CHECKPOINT
    assert checkpoint.BEGIN_MAGIC.to_bytes(4, "big") == b"TZLB"


def test_checkpoint_page_has_the_sizes_of_its_parts() -> None:
    ours = placed(only_table(CHECKPOINT, "Our part"))
    end = checkpoint.OURS_AT + checkpoint.PREFIX.size + checkpoint.OURS.size
    assert_adjoining(ours, start=checkpoint.OURS_AT, end=end)
    assert_adjoining(placed(only_table(CHECKPOINT, "RocketMQ's part")), start=0, end=40)
    assert f"has {checkpoint.FILE_BYTES} bytes" in CHECKPOINT
    assert f"lies in the first {checkpoint.SECTOR}" in CHECKPOINT
    assert f"`0x{checkpoint.MAGIC:08X}`, the letters TZCP" in CHECKPOINT
    assert checkpoint.MAGIC.to_bytes(4, "big") == b"TZCP"


# Directory


def test_directory_page_lists_the_names_in_order() -> None:
    (rows,) = tables_of(DIRECTORY.split("\n## ")[0])
    assert [row["NAME"].rstrip("/") for row in rows] == [
        layout.COMMIT_LOG,
        layout.CONSUME_QUEUE,
        layout.INDEX,
        layout.CONFIG,
        layout.CHECKPOINT,
        layout.ABORT,
        layout.LOCK,
        layout.QUARANTINE,
        layout.PATHS,
        layout.MARKER,
    ]
    source = read(ROOT / "src/tianzhou/store/recovery.py")
    assert "/commitlog-{start:020d}" in source


def test_directory_page_has_the_sizes_of_the_commit_log() -> None:
    assert f"{CONFIG.commit_log_file_bytes:,} bytes by default" in DIRECTORY
    assert f"steps of {CONFIG.commit_log_preallocate_bytes:,} bytes" in DIRECTORY
    assert f"a blank of {limits.BLANK_BYTES_MIN} bytes" in DIRECTORY
    assert len(segments.file_name(0)) == 20


def test_directory_page_lists_the_tables() -> None:
    tables = Tables(RealFiles(), "config")
    names = {
        table.path.rpartition("/")[2]
        for table in (tables.topics, tables.groups, tables.consumer_offsets, tables.delay_offsets)
    } | {incidents.FILE, derivation.FILE}
    assert {row["NAME"] for row in only_table(DIRECTORY, "Tables")} == names


def test_witness_slot_matches_its_page() -> None:
    page = read(FORMATS / "raft_entry.md")
    rows = placed(only_table(page, "In the file `raft/witness`"))
    *fields, vote = rows
    sizes = sizes_of(witness_state._HEAD.format) + sizes_of(witness_state._FIELDS.format)
    assert [size for _, size, _ in fields[:-1]] == sizes
    assert fields[-1] == (64, witness_state._RUN.size, "runs")
    assert_adjoining(rows, start=0, end=witness_state.SLOT_BYTES)
    assert vote[2] == "vote"
    assert f"{witness_state._MAGIC:X}" in page
