"""Marks along the log, on disk, so that a start need not read all of it.

    mark   index 8 | place 8 | term 8 | kind 4 | crc 4

All integers are big-endian; index, place and term are signed. A mark describes one entry: the first
of every term, every membership change, and one per fixed number of bytes. The CRC-32 covers the CRC
of the previous mark and the 28 bytes of this one: marks form a chain, which is broken after a crash
or after a truncation of the log.

Marks are a hint and are never synced. They can be trusted because, when a mark was written, all
marks before it described the log that ended there. If the log still has the entry that the mark
names, with its index and term, then everything before that entry is unchanged (Raft's log matching
property), and so all earlier marks are right.
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
"""The start of the chain of checksums."""
EXPIRED_MAX: Final = 4096
"""Marks of expired entries that are kept, or as many as there are others."""


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
        self._chain = _BEGIN
        self._is_given_up = False

    def load(self) -> list[Mark]:
        """Read the marks with a valid chain. Compare them with the log, then call `keep`."""
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
        """Continue after these marks, which are right; `expired` others precede them in the
        file."""
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
        fields = _FIELDS.pack(*mark)
        chain = _crc(self._chain, fields)
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
