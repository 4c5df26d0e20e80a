"""The durable state of a Raft member besides the log: the files in `raft/`.

    state    term, vote and doubt: two slots of 512 bytes, at 0 and 4096, written in turn
    commit   how much of the log was recently known to be committed; a hint, never synced
    marks    positions of entries in the log, see `raft_marks.py`; a hint, never synced
    group    JSON: the name of the group, of this member, and its memberships by index

A slot or hint:

    0 magic 4 | 4 crc 4 | 8 sequence 8 | 16 term 8 | 24 doubt 8 | 32 vote_size 8 | 40 vote ..

with the index and the physical end in the places of term and doubt, where it is a hint. The CRC-32
covers everything from `sequence` on. A disk writes a sector whole or not at all, and the slot that
is written is never the one that counts, so a crash leaves the state before or the state after.
"""

import json
import struct
from collections.abc import Sequence
from random import SystemRandom
from typing import Any, Final, NamedTuple, cast

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.raft import membership
from tianzhou.raft.membership import Members
from tianzhou.raft.messages import LogIndex, NodeId, Start, Term
from tianzhou.raft.ready import HardState
from tianzhou.record.crc import crc32
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.files import File, Files, creating, make_lasting_dirs

DIRECTORY: Final = "raft"
SLOT_BYTES: Final = 512
SLOTS: Final = (0, 4096)
_SIZES: Final = {"state": 8192, "commit": 8192, "marks": 0}
"""Of new files."""
_HEAD: Final = struct.Struct(">II")
_FIELDS: Final = struct.Struct(">qqqq")
_MAGIC: Final = 0x545A5253  # "TZRS"
VOTE_BYTES_MAX: Final = SLOT_BYTES - _HEAD.size - _FIELDS.size


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


class RaftFiles:
    """Owner: the broker loop; `save` alone may be called by a thread, one call at a time."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self.directory = f"{root}/{DIRECTORY}"
        self._state: File | None = None
        self._commit: File | None = None
        self._marks: File | None = None
        self._sequence = 0

    @property
    def is_new(self) -> bool:
        """Whether this directory never belonged to a group."""
        return not self._files.exists(self._path("group"))

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
        self._state = self._files.open(self._path("state"))
        self._commit = self._files.open(self._path("commit"))
        self._marks = self._files.open(self._path("marks"))

    def load(self) -> HardState | None:
        """Return the latest state; None if it, and with it a granted vote, may be lost."""
        for name, size in _SIZES.items():
            if not self._files.exists(self._path(name)):
                self._files.create(self._path(name), size).close()
        self._open()
        assert self._state is not None
        written = [data for at in SLOTS if any(data := self._state.pread(at, SLOT_BYTES))]
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
        assert self._state is not None
        self._sequence += 1
        slot = Slot(self._sequence, state.term, state.doubt, state.vote)
        self._state.pwrite(SLOTS[self._sequence % 2], encode_slot(slot))
        self._state.sync()

    # How much is committed

    def note_commit(self, index: LogIndex, end: PhysicalOffset) -> None:
        """Record the committed index and its physical end. Survives the process."""
        assert self._commit is not None
        self._commit.pwrite(0, encode_slot(Slot(0, index, end, "")))

    def committed(self) -> tuple[LogIndex, PhysicalOffset]:
        assert self._commit is not None
        slot = decode_slot(self._commit.pread(0, SLOT_BYTES)) or Slot(0, 0, 0, "")
        return LogIndex(slot.term), PhysicalOffset(slot.doubt)

    @property
    def marks_file(self) -> File:
        assert self._marks is not None
        return self._marks

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
        path = self._path("group")
        with creating(self._files, f"{path}.tmp", 0) as file:
            file.pwrite(0, json.dumps(value, indent=2).encode())
            file.sync()
            file.close()
        self._files.rename(f"{path}.tmp", path)
        self._files.sync_dir(self.directory)

    def load_group(self) -> GroupState:
        path = self._path("group")
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

    def close(self) -> None:
        for file in (self._state, self._commit, self._marks):
            if file is not None:
                file.close()

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"


def new_doubt() -> int:
    """Return a new, unique number for a doubt."""
    return SystemRandom().randrange(1, 1 << 60)


def _rows(value: Any) -> tuple[tuple[LogIndex, Members], ...]:
    rows = cast("Sequence[tuple[int, str]]", value)
    return tuple((LogIndex(index), membership.decode(text.encode())) for index, text in rows)
