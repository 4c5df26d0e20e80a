"""Marks along the log, on disk: so that a start need not walk over all of it.

    mark   index 8 | place 8 | term 8 | kind 4 | crc 4

All integers are big-endian; index, place and term are signed. A mark stands for one entry: for the
first of every term, for every change of members, and for one in so many bytes. The CRC-32 covers
the CRC of the mark before and the 28 bytes of this one: marks are a chain, and what is left of it
after a crash, or behind a place where the log was cut, does not fit together.

Marks are a hint and are never synced. Why they may be believed: when a mark was written, all before
it were those of the log that ended there. If the entry that it names stands in the log today, with
its index and term, then everything before that entry is as it was then (that is what Raft's log
matching says), and so all marks before it are right.
"""

import logging
import struct
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.raft.messages import Kind, LogIndex, Term
from tianzhou.record.crc import crc32
from tianzhou.store.files import File

log: Final = logging.getLogger("tianzhou.raft")

_FIELDS: Final = struct.Struct(">qqqI")
_CRC: Final = struct.Struct(">I")
MARK_BYTES: Final = _FIELDS.size + _CRC.size
_BEGIN: Final = bytes(_CRC.size)
"""What the first mark is chained to."""
EXPIRED_MAX: Final = 4096
"""So many marks of entries that have expired are carried along, or as many as there are others."""


class Spacing(NamedTuple):
    """How many marks there are, and how much of a log is walked over in spite of them."""

    step_bytes: int = 256 * 1024
    walk_bytes: int = 16 << 20
    """A start looks at the headers of so much anyhow: damage is likeliest where a disk was busy
    last, and this much takes less than a second."""


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
        self._chain = _BEGIN
        self._is_given_up = False

    def load(self) -> list[Mark]:
        """The marks that fit together. What of them is right, only the log can tell: say `keep`."""
        data, chain, found = self._file.pread(0, self._file.size()), _BEGIN, list[Mark]()
        for at in range(0, len(data) - MARK_BYTES + 1, MARK_BYTES):
            fields = data[at : at + _FIELDS.size]
            crc = data[at + _FIELDS.size : at + MARK_BYTES]
            if crc != _crc(chain, fields):
                break
            mark, chain = _decode(fields), crc
            if mark is None or (found and mark.index <= found[-1].index):
                break
            found.append(mark)
        return found

    def keep(self, marks: Sequence[Mark], *, expired: int) -> None:
        """Go on behind these, which are right. Before them stand `expired` others in the file."""
        if expired > max(EXPIRED_MAX, len(marks)) or not marks:
            self._write_anew(marks)
            return
        self._indices = array("q", [-1] * expired + [mark.index for mark in marks])
        self._stand_at_end()

    def _write_anew(self, marks: Sequence[Mark]) -> None:
        self._indices, self._last, self._chain = array("q"), None, _BEGIN
        for mark in marks:
            self._write(mark)

    def note(self, mark: Mark) -> None:
        """An entry was added to the log."""
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
        fields = _FIELDS.pack(*mark)
        chain = _crc(self._chain, fields)
        try:
            self._file.pwrite(len(self._indices) * MARK_BYTES, fields + chain)
        except OSError as error:
            # A disk that is full takes more later; one that fails does so for the log as well.
            # A mark that is missing must stay the last one: the next start begins anew there.
            self._is_given_up = True
            log.warning("raft.marks_given_up", extra={"reason": str(error)})
            return
        self._indices.append(mark.index)
        self._last, self._chain = mark, chain

    def cut(self, first: LogIndex) -> None:
        """Entries from `first` on are gone."""
        rank = bisect_left(self._indices, first)
        if rank < len(self._indices):
            del self._indices[rank:]
            self._stand_at_end()

    def _stand_at_end(self) -> None:
        self._last, self._chain = None, _BEGIN
        if self._indices:
            data = self._file.pread((len(self._indices) - 1) * MARK_BYTES, MARK_BYTES)
            self._last, self._chain = _decode(data[: _FIELDS.size]), data[_FIELDS.size :]


def _crc(chain: bytes, fields: bytes) -> bytes:
    return _CRC.pack(crc32(chain + fields))


def _decode(fields: bytes) -> Mark | None:
    index, place, term, kind = _FIELDS.unpack(fields)
    if kind not in _KINDS:
        return None
    return Mark(LogIndex(index), PhysicalOffset(place), Term(term), Kind(kind))


_KINDS: Final = frozenset(Kind)
