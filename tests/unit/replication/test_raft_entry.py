"""Entries as bytes, and the page about them."""

import re
import struct
from pathlib import Path

import pytest
from raft_logs import chunk

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.raft.membership import members_of
from tianzhou.raft.messages import STORED, Entry, Kind, LogIndex, Term
from tianzhou.raft.ready import HardState
from tianzhou.record.chunk import stamp
from tianzhou.record.walk import walk
from tianzhou.replication import raft_entry, raft_prefix, raft_state
from tianzhou.replication.raft_entry import BODY, HEADER_BYTES
from tianzhou.replication.raft_state import RaftFiles, Slot, decode_slot, encode_slot
from tianzhou.testing.sim.disk import SimDisk

PAGE = (Path(__file__).parents[3] / "docs/formats/raft_entry.md").read_text(encoding="utf-8")
PLACE = PhysicalOffset(8192)


def rows(number: int) -> list[tuple[int, int, str]]:
    """Offset, size and name, of the first or the second table."""
    table = re.split(r"^## ", PAGE, flags=re.MULTILINE)[number]
    found = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", table, re.MULTILINE)
    return [(int(offset), int(size), name) for offset, size, name in found]


def test_raft_page_shows_the_body_of_an_entry_header() -> None:
    sizes = [struct.calcsize(">" + letter) for letter in BODY.format.lstrip(">")]
    assert [size for _, size, _ in rows(1)] == sizes
    assert [offset for offset, _, _ in rows(1)] == [sum(sizes[:n]) for n in range(len(sizes))]
    assert f"{raft_entry.MAGIC:#010x}".upper().replace("0X", "0x") in PAGE
    assert f"`{raft_entry.TOPIC}`" in PAGE


def test_raft_page_shows_a_state_slot() -> None:
    at = 0
    for offset, size, _ in rows(2):
        assert offset == at
        at += size
    assert at == raft_state.SLOT_BYTES
    data = encode_slot(Slot(3, 9, 5, "n1"))
    fields = {name: data[offset : offset + size] for offset, size, name in rows(2)}
    assert int.from_bytes(fields["term"], "big") == 9
    assert fields["vote"].rstrip(b"\0") == b"n1"


def test_raft_page_shows_a_mark() -> None:
    at = 0
    for offset, size, _ in rows(3):
        assert offset == at
        at += size
    assert at == raft_state.MARK_BYTES
    assert [name for *_, name in rows(3)] == [*raft_state.Mark._fields, "crc"]


def test_raft_page_shows_a_row_of_plain_entries() -> None:
    at = 0
    for offset, size, _ in rows(4):
        assert offset == at
        at += size
    assert at == raft_prefix.ROW_BYTES
    assert [name for *_, name in rows(4)] == [*raft_prefix.PlainRow._fields, "crc"]
    row = raft_prefix.row_of(LogIndex(7), Term(2), PLACE, b"records")
    assert raft_prefix.decode_row(raft_prefix.encode_row(row)) == row
    damaged = bytearray(raft_prefix.encode_row(row))
    damaged[3] ^= 1
    assert raft_prefix.decode_row(damaged) is None


def made(kind: Kind) -> Entry:
    data = b""
    if kind is Kind.MEMBERS:
        data = members_of(["n0", "n1"], ["n2"]).encode()
    elif kind is Kind.CHUNK:
        records = chunk(b"one", b"two")
        at = PLACE + HEADER_BYTES
        stamp(records, 0, 2, queue_offsets=[0, 1], physical_offset=at, store_timestamp=77)
        data = bytes(records.data)
    return Entry(LogIndex(4), Term(3), kind, data)


@pytest.mark.parametrize("kind", sorted(STORED - {Kind.PLAIN}))
def test_entry_header_round_trips(kind: Kind) -> None:
    entry = made(kind)
    data, time_ms = raft_entry.encode(entry, prev_term=Term(2), place=PLACE, time_ms=5)
    assert len(data) == raft_entry.size_of(entry)
    assert time_ms == (77 if kind is Kind.CHUNK else 5)
    header = raft_entry.header_at(data, 0, base=PLACE)
    assert header is not None
    assert (header.index, header.term, header.prev_term) == (4, 3, 2)
    assert raft_entry.decode(header, data, 0) == entry
    assert len(walk(data, 0, len(data)).starts) == 1 + header.payload_count


@pytest.mark.parametrize("at", range(0, HEADER_BYTES, 7))
def test_entry_header_with_a_flipped_bit_is_rejected(at: int) -> None:
    data, _ = raft_entry.encode(made(Kind.BARRIER), prev_term=Term(2), place=PLACE, time_ms=5)
    wrong = bytearray(data)
    wrong[at] ^= 4
    assert raft_entry.header_at(bytes(wrong), 0, base=PLACE) is None


def test_entry_header_at_another_offset_is_rejected() -> None:
    data, _ = raft_entry.encode(made(Kind.BARRIER), prev_term=Term(2), place=PLACE, time_ms=5)
    assert raft_entry.header_at(data, 0, base=PLACE + 1) is None


def test_entry_header_is_not_confused_with_a_user_message() -> None:
    entry = made(Kind.CHUNK)
    assert raft_entry.header_at(entry.data, 0, base=PLACE + HEADER_BYTES) is None


@pytest.mark.parametrize("bit", range(0, 8 * 42, 5))
def test_state_slot_with_a_flipped_bit_is_ignored(bit: int) -> None:
    data = bytearray(encode_slot(Slot(3, 9, 5, "n1")))
    data[bit // 8] ^= 1 << bit % 8
    assert decode_slot(bytes(data)) is None


def test_state_survives_each_restart_of_a_member() -> None:
    """The state saved last is restored, although there are two slots and each start writes one."""
    disk = SimDisk()
    group = raft_state.GroupState("g", "n0", ((LogIndex(0), members_of(["n0"])),))
    files = RaftFiles(disk, "root")
    files.create(group, HardState())
    for life, saves in enumerate((4, 1, 3, 2, 1)):
        state = HardState()
        for save in range(saves):
            state = HardState(Term(10 * life + save), f"n{save}", 0)
            files.save(state)
        files = RaftFiles(disk, "root")
        assert files.load() == state


def test_state_that_is_damaged_is_not_replaced_by_an_older_one() -> None:
    disk = SimDisk()
    files = RaftFiles(disk, "root")
    group = raft_state.GroupState("g", "n0", ((LogIndex(0), members_of(["n0"])),))
    files.create(group, HardState())
    files.save(HardState(Term(5), "n1", 0))
    again = RaftFiles(disk, "root")
    assert again.load() == HardState(Term(5), "n1", 0)
    for at in raft_state.SLOTS:
        disk.open("root/raft/state").pwrite(at + 20, b"\xff")
        assert RaftFiles(disk, "root").load() is None
