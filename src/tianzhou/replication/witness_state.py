"""The durable state of a witness: the file `raft/witness`, and `raft/group`, as copies have it.

`witness` has two slots of 512 bytes, at 0 and 4096, written in turn. A slot:

    0 magic 4 | 4 crc 4 | 8 sequence 8 | 16 term 8 | 24 doubt 8 | 32 start_index 8 | 40 start_term 8
    48 last 8 | 56 run_count 4 | 60 vote_size 4 | 64 runs 16 each | .. vote | .. zeros

A run is the first index and the term of consecutive entries that have this term, behind the start
and up to `last`: this is all that a witness knows of its log. What is known to be committed is not
listed, so there are few runs. All integers are big-endian and signed; the CRC-32 covers everything
from `sequence` on.

A disk writes a sector whole or not at all, and the slot that is written is never the one that
counts, so a crash leaves the state before or the state after. A slot that is neither empty nor
valid is therefore damaged, and may have been the latest: the witness is then in doubt.
"""

import logging
import struct
from typing import Final, NamedTuple

from tianzhou.base.errors import UsageError
from tianzhou.raft.membership import MemberHistory, Members, decode
from tianzhou.raft.messages import Kind, LogIndex, Start, Term
from tianzhou.raft.ready import HardState, Save, Saved
from tianzhou.raft.terms import Terms
from tianzhou.record.crc import crc32
from tianzhou.replication.raft_settings import RaftSettings, first_members
from tianzhou.replication.raft_state import GroupState, RaftFiles, first_group, new_doubt
from tianzhou.store.files import File, Files, make_lasting_dirs

log: Final = logging.getLogger("tianzhou.raft")

NAME: Final = "witness"
LOCK: Final = "lock"
COPY_NAME: Final = "state"
"""The file that only a copy has."""
SLOT_BYTES: Final = 512
SLOTS: Final = (0, 4096)
FILE_BYTES: Final = 8192
_MAGIC: Final = 0x545A5257  # "TZRW"
_HEAD: Final = struct.Struct(">II")
_FIELDS: Final = struct.Struct(">qqqqqqII")
_RUN: Final = struct.Struct(">qq")
_START: Final = Start(LogIndex(0), Term(0))


class WitnessState(NamedTuple):
    """What a witness knows: its vote, and the terms of its log."""

    hard: HardState = HardState()
    start: Start = _START
    last: LogIndex = LogIndex(0)
    runs: tuple[tuple[LogIndex, Term], ...] = ()

    def after(self, save: Save, settled: Start) -> "WitnessState":
        """The state with a save of the node. What is committed is not listed any more: `settled` is
        the last committed entry that the node knows, whose log may be ahead of this save."""
        hard = self.hard if save.state is None else save.state
        terms = Terms(self.start, self.runs, self.last)
        if save.begin is not None:
            terms = Terms(save.begin.start, (), save.begin.start.index)
        if save.entries and save.entries[0].index <= terms.last:
            terms.cut(save.entries[0].index)
        for entry in save.entries:
            terms.extend(entry.index, entry.term)
        if settled.index > terms.start.index and terms.at(settled.index) == settled.term:
            terms.trim(settled.index)
        return WitnessState(hard, terms.start, terms.last, terms.runs()[1:])


def encode_slot(sequence: int, state: WitnessState) -> bytes:
    vote, runs = state.hard.vote.encode(), b"".join(_RUN.pack(*run) for run in state.runs)
    fields = _FIELDS.pack(
        sequence,
        state.hard.term,
        state.hard.doubt,
        *state.start,
        state.last,
        len(state.runs),
        len(vote),
    )
    fields += runs + vote
    if len(fields) > SLOT_BYTES - _HEAD.size:
        raise ValueError(
            f"{len(state.runs)} terms without a committed entry do not fit into {SLOT_BYTES} bytes"
        )
    fields = fields.ljust(SLOT_BYTES - _HEAD.size, b"\0")
    return _HEAD.pack(_MAGIC, crc32(fields)) + fields


def decode_slot(data: bytes) -> tuple[int, WitnessState] | None:
    """Parse a slot: its sequence and the state; None if it is torn or damaged."""
    if len(data) < SLOT_BYTES:
        return None
    magic, crc = _HEAD.unpack_from(data)
    fields = data[_HEAD.size : SLOT_BYTES]
    if magic != _MAGIC or crc != crc32(fields):
        return None
    sequence, term, doubt, index, start_term, last, count, size = _FIELDS.unpack_from(fields)
    end = _FIELDS.size + count * _RUN.size
    runs = tuple(
        (LogIndex(first), Term(of)) for first, of in _RUN.iter_unpack(fields[_FIELDS.size : end])
    )
    hard = HardState(Term(term), fields[end : end + size].decode(), doubt)
    start = Start(LogIndex(index), Term(start_term))
    return sequence, WitnessState(hard, start, LogIndex(last), runs)


class WitnessFiles:
    """Owner: the witness; `save` alone may be called by a thread, one call at a time."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._group_files = RaftFiles(files, root)
        self._path = f"{self._group_files.directory}/{NAME}"
        self._file: File | None = None
        self._sequence = 0
        self._group: GroupState | None = None
        self._is_group_saved = True
        self._lock: File | None = None
        self.state = WitnessState()

    def open(self, settings: RaftSettings) -> Saved:
        """Read the directory, or create it. Raises UsageError: it belongs to another member, and
        StoreLocked: another process uses it."""
        members = first_members(settings)
        directory = self._group_files.directory
        make_lasting_dirs(self._files, directory)
        self._lock = self._files.lock(f"{directory}/{LOCK}")
        if self._files.exists(f"{directory}/{COPY_NAME}"):
            raise UsageError(
                f"{directory} holds the log of a broker; give the witness an empty directory"
            )
        witness = settings.raft_id
        if self._group_files.is_new:
            self._create(settings, members)
        else:
            self._load()
        group = self._group
        assert group is not None
        if (group.name, group.member) != (settings.raft_group, witness):
            raise UsageError(
                f"{directory} belongs to {group.member} of group {group.name}, not to "
                f"{witness} of {settings.raft_group}"
            )
        state = self.state
        # The group is written after the state, so it may be older, or newer than a damaged state.
        known = [row for row in group.members if row[0] <= state.last] or [group.members[0]]
        first = min(known[0][0], state.start.index), known[0][1]
        rows = (LogIndex(first[0]), first[1]), *known[1:]
        return Saved(state.hard, state.start, state.last, state.runs, rows, state.start.index)

    def _create(self, settings: RaftSettings, members: Members) -> None:
        """Create the files; the group last, so that after an earlier crash all is created again."""
        doubt = 0 if settings.raft_new else new_doubt()
        self._files.create(self._path, FILE_BYTES).close()
        self._file = self._files.open(self._path)
        self._file.reserve(0, FILE_BYTES)  # later a full disk does not matter
        self.save(WitnessState(HardState(doubt=doubt)))
        self._files.sync_dir(self._group_files.directory)
        self._group = first_group(settings.raft_group, settings.raft_id, members)
        self._group_files.save_group(self._group)
        if doubt:
            log.warning(
                "raft.empty",
                extra={
                    "remedy": "the others repair this witness, unless the group is new: then start "
                    "all of its members with --raft-new"
                },
            )

    def _load(self) -> None:
        self._group = self._group_files.load_group()
        if not self._files.exists(self._path):
            self._files.create(self._path, FILE_BYTES).close()
        self._file = self._files.open(self._path)
        written = [data for at in SLOTS if any(data := self._file.pread(at, SLOT_BYTES))]
        slots = [slot for data in written if (slot := decode_slot(data)) is not None]
        if slots:
            self._sequence, self.state = max(slots, key=lambda slot: slot[0])
        if not slots or len(slots) < len(written):
            hard = self.state.hard._replace(doubt=self.state.hard.doubt or new_doubt())
            log.error("raft.in_doubt", extra={"remedy": "the others repair it"})
            self.save(self.state._replace(hard=hard))

    def save(self, state: WitnessState) -> None:
        """Write the state; when this returns it survives a crash."""
        assert self._file is not None
        data = encode_slot(self._sequence + 1, state)
        self._sequence += 1
        self._file.pwrite(SLOTS[self._sequence % 2], data)
        self._file.sync()
        self.state = state

    def note_members(self, save: Save) -> None:
        """Record new members. They tell this witness whom to connect to, and nothing else, so a
        full disk may delay this: it is repeated with the next save."""
        assert self._group is not None
        history = MemberHistory(self._group.members)
        if save.begin is not None:
            history.replace(save.begin.start.index, save.begin.members)
        if save.entries and history.current_index >= save.entries[0].index:
            history.cut(save.entries[0].index)
        for entry in save.entries:
            if entry.kind is Kind.MEMBERS:
                history.append(entry.index, decode(entry.data))
        history.trim(self.state.start.index)
        if history.rows() != self._group.members:
            self._group = self._group._replace(members=history.rows())
            self._is_group_saved = False
        if not self._is_group_saved:
            try:
                self._group_files.save_group(self._group)
                self._is_group_saved = True
            except OSError as error:
                log.warning("raft.members_not_saved", extra={"reason": str(error)})

    def close(self) -> None:
        for file in (self._file, self._lock):
            if file is not None:
                file.close()


def refuse_witness(settings: RaftSettings, files: Files, root: str) -> None:
    """Raise UsageError for a broker that is to be the witness, or gets the directory of one: what
    that has acknowledged, a copy with an empty log does not have."""
    if settings.raft_id == settings.raft_witness:
        raise UsageError(
            f"{settings.raft_id} is the witness of {settings.raft_group}; start it with "
            "`tianzhou witness`, or choose another raft_id"
        )
    directory = RaftFiles(files, root).directory
    if files.exists(f"{directory}/{NAME}"):
        raise UsageError(
            f"{directory} belongs to a witness; start it with `tianzhou witness`, or give the "
            "broker an empty directory"
        )
