"""The durable state of a Raft member besides the log: the files in `raft/`.

    state    term, vote and doubt: two slots of 512 bytes, at 0 and 4096, written in turn
    commit   how much of the log was recently known to be committed; a hint, never synced
    marks    positions of entries in the log, so that a start need not read all of it; a hint
    plain    entries from before the log belonged to a group; see `raft_prefix.py`
    group    JSON: the name of the group, of this member, and its memberships by index

While a log is converted, `group` has the name `group.draft`: the directory belongs to a group from
the moment the file is renamed.

A slot or hint:

    0 magic 4 | 4 crc 4 | 8 sequence 8 | 16 term 8 | 24 doubt 8 | 32 vote_size 8 | 40 vote ..

with the index and the physical end in the places of term and doubt, where it is a hint. The CRC-32
covers everything from `sequence` on. A disk writes a sector whole or not at all, and the slot that
is written is never the one that counts, so a crash leaves the state before or the state after.

    mark   index 8 | place 8 | term 8 | kind 4 | crc 4

All integers are big-endian; index, place and term are signed. A mark describes one entry: the first
of every term, every membership change, and one per fixed number of bytes. The CRC-32 covers the CRC
of the previous mark and the 28 bytes of this one: marks form a chain, which is broken after a crash
or after a truncation of the log.

Marks are never synced. They can be trusted because, when a mark was written, all marks before it
described the log that ended there. If the log still has the entry that the mark names, with its
index and term, then everything before that entry is unchanged (Raft's log matching property), and
so all earlier marks are right.
"""

import json
import logging
import struct
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from random import SystemRandom
from typing import Any, Final, NamedTuple, cast

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.raft import membership
from tianzhou.raft.membership import Members
from tianzhou.raft.messages import STORED, Kind, LogIndex, NodeId, Start, Term
from tianzhou.raft.ready import HardState
from tianzhou.record.crc import crc32
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.files import File, Files, creating, make_lasting_dirs

log: Final = logging.getLogger("tianzhou.raft")

DIRECTORY: Final = "raft"
SLOT_BYTES: Final = 512
SLOTS: Final = (0, 4096)
_SIZES: Final = {"state": 8192, "commit": 8192, "marks": 0, "plain": 0}
"""Of new files."""
_HEAD: Final = struct.Struct(">II")
_FIELDS: Final = struct.Struct(">qqqq")
_MAGIC: Final = 0x545A5253  # "TZRS"
VOTE_BYTES_MAX: Final = SLOT_BYTES - _HEAD.size - _FIELDS.size
_MARK_FIELDS: Final = struct.Struct(">qqqI")
_MARK_CRC: Final = struct.Struct(">I")
MARK_BYTES: Final = _MARK_FIELDS.size + _MARK_CRC.size
_CHAIN_START: Final = bytes(_MARK_CRC.size)
"""The start of the chain of checksums."""
EXPIRED_MAX: Final = 4096
"""Marks of expired entries that are kept, or as many as there are others."""


class Slot(NamedTuple):
    sequence: int
    term: int
    doubt: int
    vote: str


def encode_slot(slot: Slot) -> bytes:
    vote = slot.vote.encode()
    if len(vote) > VOTE_BYTES_MAX:
        raise UsageError(f"the name {slot.vote!r} has more than {VOTE_BYTES_MAX} bytes")
    fields = _FIELDS.pack(slot.sequence, slot.term, slot.doubt, len(vote)) + vote
    fields = fields.ljust(SLOT_BYTES - _HEAD.size, b"\0")
    return _HEAD.pack(_MAGIC, crc32(fields)) + fields


def decode_slot(data: bytes) -> Slot | None:
    """Parse a slot; None if it was never written, or is torn or damaged."""
    if len(data) < SLOT_BYTES:
        return None
    magic, crc = _HEAD.unpack_from(data)
    fields = data[_HEAD.size : SLOT_BYTES]
    if magic != _MAGIC or crc != crc32(fields):
        return None
    sequence, term, doubt, size = _FIELDS.unpack_from(fields)
    vote = fields[_FIELDS.size : _FIELDS.size + size]
    return Slot(sequence, term, doubt, vote.decode())


class GroupState(NamedTuple):
    """The group of a directory, its memberships, and where its log starts."""

    name: str
    member: NodeId
    members: tuple[tuple[LogIndex, Members], ...]
    start: Start = Start(LogIndex(0), Term(0))
    place: PhysicalOffset = PhysicalOffset(0)
    ranks: tuple[tuple[str, int, int], ...] = ()
    """Topic, queue and the offset of its next message where the log starts. For a queue whose
    messages have all expired there is no other record of it."""
    damaged: int = -1
    """Where damage was found in the log, if it is not repaired yet."""


def first_group(name: str, member: str, members: Members) -> GroupState:
    """A group before its first entry."""
    return GroupState(name, member, ((LogIndex(0), members),))


class RaftFiles:
    """Owner: the broker loop; `save` alone may be called by a thread, one call at a time."""

    def __init__(self, files: Files, root: str, *, is_draft: bool = False) -> None:
        self._files = files
        self.directory = f"{root}/{DIRECTORY}"
        self._group = "group.draft" if is_draft else "group"
        self._opened: dict[str, File] = {}
        self._sequence = 0

    @property
    def is_new(self) -> bool:
        """Whether this directory never belonged to a group."""
        return not self._files.exists(self._path(self._group))

    def create(self, group: GroupState, state: HardState) -> None:
        """Create the files of a member that starts for the first time. The group is written last:
        after an earlier crash the files are created again."""
        make_lasting_dirs(self._files, self.directory)
        for name, size in _SIZES.items():
            self._files.create(self._path(name), size).close()
        self._open()
        self.save(state)
        self._files.sync_dir(self.directory)
        self.save_group(group)

    def _open(self) -> None:
        self._opened = {name: self._files.open(self._path(name)) for name in _SIZES}

    def load(self) -> HardState | None:
        """Return the latest state; None if it, and with it a granted vote, may be lost."""
        for name, size in _SIZES.items():
            if not self._files.exists(self._path(name)):
                self._files.create(self._path(name), size).close()
        self._open()
        file = self._opened["state"]
        written = [data for at in SLOTS if any(data := file.pread(at, SLOT_BYTES))]
        slots = [slot for data in written if (slot := decode_slot(data)) is not None]
        if slots:
            self._sequence = max(slots).sequence
        # A sector is written completely or not at all: one that is neither empty nor valid is
        # damaged, and may have been the latest.
        if not slots or len(slots) < len(written):
            return None
        newest = max(slots)
        return HardState(Term(newest.term), newest.vote, newest.doubt)

    def save(self, state: HardState) -> None:
        """Write the state; when this returns it survives a crash."""
        self._sequence += 1
        slot = Slot(self._sequence, state.term, state.doubt, state.vote)
        file = self._opened["state"]
        file.pwrite(SLOTS[self._sequence % 2], encode_slot(slot))
        file.sync()

    # How much is committed

    def note_commit(self, index: LogIndex, end: PhysicalOffset) -> None:
        """Record the committed index and its physical end. Survives the process."""
        self._opened["commit"].pwrite(0, encode_slot(Slot(0, index, end, "")))

    def committed(self) -> tuple[LogIndex, PhysicalOffset]:
        data = self._opened["commit"].pread(0, SLOT_BYTES)
        slot = decode_slot(data) or Slot(0, 0, 0, "")
        return LogIndex(slot.term), PhysicalOffset(slot.doubt)

    @property
    def marks_file(self) -> File:
        return self._opened["marks"]

    @property
    def plain_file(self) -> File:
        return self._opened["plain"]

    # The group

    def save_group(self, group: GroupState) -> None:
        rows = [[index, members.encode().decode()] for index, members in group.members]
        value = {
            "group": group.name,
            "member": group.member,
            "members": rows,
            "start": list(group.start),
            "place": group.place,
            "ranks": group.ranks,
            "damaged": group.damaged,
        }
        path = self._path(self._group)
        with creating(self._files, f"{path}.tmp", 0) as file:
            file.pwrite(0, json.dumps(value, indent=2).encode())
            file.sync()
            file.close()
        self._files.rename(f"{path}.tmp", path)
        self._files.sync_dir(self.directory)

    def load_group(self) -> GroupState:
        path = self._path(self._group)
        file = self._files.open(path)
        try:
            data = file.pread(0, file.size())
        finally:
            file.close()
        try:
            value = json.loads(data)
            index, term = value["start"]
            return GroupState(
                value["group"],
                value["member"],
                _rows(value["members"]),
                Start(LogIndex(index), Term(term)),
                PhysicalOffset(value["place"]),
                tuple((topic, queue, rank) for topic, queue, rank in value["ranks"]),
                value["damaged"],
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreDamaged(
                path,
                f"can't be read: {error}; remove the whole directory: "
                "the member is then repaired by the others of its group",
            ) from error

    # Converting a log

    def begin_draft(self, group: GroupState, state: HardState) -> None:
        """Begin or resume the conversion of a log. The entries that an earlier attempt listed are
        kept; marks are not, because the log may have changed since."""
        make_lasting_dirs(self._files, self.directory)
        for name, size in _SIZES.items():
            if name != "plain" or not self._files.exists(self._path(name)):
                self._files.create(self._path(name), size).close()
        self._open()
        self.save(state)
        self.save_group(group)

    def finish_draft(self) -> None:
        """From now on the directory belongs to the group. Everything in it must be durable."""
        self._files.rename(self._path(self._group), self._path("group"))
        self._files.sync_dir(self.directory)
        self._group = "group"

    def close(self) -> None:
        for file in self._opened.values():
            file.close()

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"


def membership_of(directory: str, files: Files) -> tuple[str, NodeId] | None:
    """The group and the member of a directory; None if it belongs to no group."""
    raft = RaftFiles(files, directory)
    if raft.is_new:
        return None
    group = raft.load_group()
    return group.name, group.member


def refuse_member(directory: str, files: Files) -> None:
    """Raise UsageError before a broker without a group starts on the directory of a member: records
    between the entries of the group would make its log unusable."""
    member = membership_of(directory, files)
    if member is not None:
        group, name = member
        raise UsageError(
            f"{directory} belongs to {name} of the Raft group {group}; nothing was changed. Start "
            f"it with `tianzhou broker --raft-group {group} --raft-id {name} --raft-peers PEERS`, "
            "or pass another --data"
        )


def new_doubt() -> int:
    """Return a new, unique number for a doubt."""
    return SystemRandom().randrange(1, 1 << 60)


def _rows(value: Any) -> tuple[tuple[LogIndex, Members], ...]:
    rows = cast("Sequence[tuple[int, str]]", value)
    return tuple((LogIndex(index), membership.decode(text.encode())) for index, text in rows)


# Marks along the log


class Spacing(NamedTuple):
    """The distance between marks, and how much of the log a start reads in spite of them."""

    step_bytes: int = 256 * 1024
    walk_bytes: int = 16 << 20
    """Bytes at the end of the log whose headers a start always checks: damage is most likely where
    the disk wrote last, and this takes less than a second."""


class Mark(NamedTuple):
    index: LogIndex  # pyright: ignore[reportIncompatibleMethodOverride]
    place: PhysicalOffset
    term: Term
    kind: Kind


class Marks:
    """Owner: the storage.    Invariant: indices are those of the marks in the file."""

    def __init__(self, file: File, step_bytes: int) -> None:
        self._file = file
        self._step_bytes = step_bytes
        self._indices = array("q")
        self._last: Mark | None = None
        self._chain = _CHAIN_START
        self._is_given_up = False

    def load(self) -> list[Mark]:
        """Read the marks with a valid chain. Compare them with the log, then call `keep`."""
        data, chain, found = self._file.pread(0, self._file.size()), _CHAIN_START, list[Mark]()
        for at in range(0, len(data) - MARK_BYTES + 1, MARK_BYTES):
            fields = data[at : at + _MARK_FIELDS.size]
            crc = data[at + _MARK_FIELDS.size : at + MARK_BYTES]
            if crc != _chained(chain, fields):
                break
            mark, chain = _decode_mark(fields), crc
            if mark is None or (found and mark.index <= found[-1].index):
                break
            found.append(mark)
        return found

    def keep(self, marks: Sequence[Mark], *, expired: int) -> None:
        """Continue after these marks, which are right; `expired` others precede them in the
        file."""
        if expired > max(EXPIRED_MAX, len(marks)) or not marks:
            self._rewrite(marks)
            return
        self._indices = array("q", [-1] * expired + [mark.index for mark in marks])
        self._stand_at_end()

    def _rewrite(self, marks: Sequence[Mark]) -> None:
        self._indices, self._last, self._chain = array("q"), None, _CHAIN_START
        for mark in marks:
            self._write(mark)

    def note(self, mark: Mark) -> None:
        """Record a new entry of the log."""
        last = self._last
        if (
            last is None
            or mark.term != last.term
            or mark.kind is Kind.MEMBERS
            or mark.place - last.place >= self._step_bytes
        ):
            self._write(mark)

    def _write(self, mark: Mark) -> None:
        if self._is_given_up:
            return
        fields = _MARK_FIELDS.pack(*mark)
        chain = _chained(self._chain, fields)
        try:
            self._file.pwrite(len(self._indices) * MARK_BYTES, fields + chain)
        except OSError as error:
            # A full disk may have space later; a failing disk also fails for the log.
            # After a missing mark no other may follow: the next start continues from there.
            self._is_given_up = True
            log.warning("raft.marks_given_up", extra={"reason": str(error)})
            return
        self._indices.append(mark.index)
        self._last, self._chain = mark, chain

    def cut(self, first: LogIndex) -> None:
        """Drop the marks of entries from `first` on."""
        rank = bisect_left(self._indices, first)
        if rank < len(self._indices):
            del self._indices[rank:]
            self._stand_at_end()

    def _stand_at_end(self) -> None:
        self._last, self._chain = None, _CHAIN_START
        if self._indices:
            data = self._file.pread((len(self._indices) - 1) * MARK_BYTES, MARK_BYTES)
            self._last, self._chain = (
                _decode_mark(data[: _MARK_FIELDS.size]),
                data[_MARK_FIELDS.size :],
            )


def _chained(chain: bytes, fields: bytes) -> bytes:
    return _MARK_CRC.pack(crc32(chain + fields))


def _decode_mark(fields: bytes) -> Mark | None:
    index, place, term, kind = _MARK_FIELDS.unpack(fields)
    if kind not in STORED:
        return None
    return Mark(LogIndex(index), PhysicalOffset(place), Term(term), Kind(kind))
