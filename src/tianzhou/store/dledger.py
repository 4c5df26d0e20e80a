"""Read the log of a DLedger group of RocketMQ's Java broker. Nothing here changes a file.

A member has its log in `dledger-<member>/data`: files of equal size, named by the position of their
first byte. An entry is a header and one record of RocketMQ:

    magic 4 | size 4 | index 8 | term 8 | pos 8 | channel 4 | chain_crc 4 | body_crc 4 |
    body_size 4 | body

All integers are big-endian and signed. `size` is 48 and the size of the body; `pos` is the position
of the entry, and the physical offset in the record is that of the body, `pos` + 48. Magic 1 is a
record; 2 and 3, in newer versions, are entries of DLedger itself. A magic of -1 and the rest of the
file in place of the size end a file. Index and term start at 0.

`checkpoint` is a text with `endIndex` and `committedIndex`, a few seconds old.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from tianzhou.base.errors import UsageError
from tianzhou.record.walk import is_sound
from tianzhou.store.files import File, Files, list_visible
from tianzhou.store.scan import Damage
from tianzhou.store.segments import starts_of

HEADER: Final = struct.Struct(">iiqqqiiii")
HEADER_BYTES: Final = HEADER.size
MAGIC_RECORD: Final = 1
MAGIC_END: Final = -1
_OWN_MAGICS: Final = (2, 3)
_WINDOW_BYTES: Final = 4 << 20
_ENTRY_BYTES_MAX: Final = 1 << 28
_MAGIC_BYTES: Final = MAGIC_RECORD.to_bytes(4, "big")
PREFIX: Final = "dledger-"


def find_ledger(files: Files, root: str) -> str | None:
    """The directory of the DLedger member in a store directory, if there is one. Raises UsageError
    if there are several."""
    found = [
        name
        for name in list_visible(files, root)
        if name.startswith(PREFIX) and list_visible(files, f"{root}/{name}/data")
    ]
    if len(found) > 1:
        raise UsageError(
            f"{root} has the logs of several members ({', '.join(found)}); move all but one away"
        )
    return f"{root}/{found[0]}" if found else None


def committed_index(files: Files, ledger: str) -> int | None:
    """The last index that the member knew to be committed; None if that is not recorded."""
    path = f"{ledger}/checkpoint"
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        lines = file.pread(0, file.size()).decode(errors="replace").splitlines()
    finally:
        file.close()
    for line in lines:
        name, _, value = line.partition("=")
        if name.strip() == "committedIndex" and value.strip().lstrip("-").isdecimal():
            return int(value)
    return None


class LedgerRecord(NamedTuple):
    """A record of the log, at the physical offset that it contains."""

    number: int
    """The index of its entry."""
    data: bytes


class Ledger:
    """Iterates over the intact records of a log. What is damaged is skipped and listed."""

    def __init__(self, files: Files, directory: str) -> None:
        self.damage: list[Damage] = []
        self.last_index = -1
        self._files = files
        self._data = f"{directory}/data"
        names = list_visible(files, self._data)
        if not names:
            raise UsageError(f"{self._data} is empty; it should have the log of a DLedger member")
        first = files.open(f"{self._data}/{names[0]}")
        self.file_bytes = first.size()
        first.close()
        self._starts = starts_of(files, self._data, max(self.file_bytes, 1))

    @property
    def total_bytes(self) -> int:
        return len(self._starts) * self.file_bytes

    def __iter__(self) -> Iterator[LedgerRecord]:
        for start in self._starts:
            file = self._files.open(f"{self._data}/{start:020d}")
            try:
                yield from self._read_file(file, start)
            finally:
                file.close()

    def _read_file(self, file: File, start: int) -> Iterator[LedgerRecord]:
        at, size = 0, min(file.size(), self.file_bytes)
        window, base = b"", 0
        while at + 8 <= size:
            if at + HEADER_BYTES > base + len(window):
                window, base = file.pread(at, _WINDOW_BYTES), at
            magic, entry_size = struct.unpack_from(">ii", window, at - base)
            if magic == MAGIC_END or (magic == 0 and entry_size == 0 and _is_rest_empty(file, at)):
                return
            if _is_possible(entry_size, size - at) and at + entry_size > base + len(window):
                window, base = file.pread(at, max(entry_size, _WINDOW_BYTES)), at
            reason = self._problem(window, at - base, start + at, room=size - at)
            if reason:
                following = self._next(file, at + 1, start, size)
                self.damage.append(Damage(start + at, start + following, reason))
                at = following
                continue
            index = struct.unpack_from(">q", window, at - base + 8)[0]
            if index > self.last_index + 1 >= 1:
                missing = f"entries {self.last_index + 1} to {index - 1} are missing"
                self.damage.append(Damage(start + at, start + at, missing))
            self.last_index = index
            if magic == MAGIC_RECORD:
                body = at - base + HEADER_BYTES
                yield LedgerRecord(index, window[body : at - base + entry_size])
            at += entry_size

    def _problem(self, window: bytes, at: int, place: int, *, room: int) -> str:
        """Why no intact entry starts here; empty if one does."""
        if at + HEADER_BYTES > len(window):
            return "an entry is cut off"
        magic, size, index, _, pos, _, _, _, body_size = HEADER.unpack_from(window, at)
        if magic != MAGIC_RECORD and magic not in _OWN_MAGICS:
            return "no entry starts here"
        if not _is_possible(size, room) or size != HEADER_BYTES + body_size or pos != place:
            return "the header of an entry is damaged"
        if index <= self.last_index:
            return f"entry {index} comes after entry {self.last_index}"
        if magic == MAGIC_RECORD:
            body = at + HEADER_BYTES
            if not is_sound(window, body, at + size, base=pos + HEADER_BYTES - body):
                return f"the record of entry {index} is damaged"
        return ""

    def _next(self, file: File, at: int, start: int, size: int) -> int:
        """The position of the next entry whose header names its position; the end of the file if
        there is none."""
        while at + HEADER_BYTES <= size:
            window = file.pread(at, min(_WINDOW_BYTES, size - at))
            found = window.find(_MAGIC_BYTES)
            while found >= 0:
                if found + HEADER_BYTES > len(window):
                    break
                _, entry_size, index, _, pos, *_ = HEADER.unpack_from(window, found)
                is_here = pos == start + at + found and _is_possible(entry_size, size - at - found)
                if is_here and index > self.last_index:
                    return at + found
                found = window.find(_MAGIC_BYTES, found + 1)
            if at + len(window) >= size:
                break
            at += len(window) - HEADER_BYTES
        return size


def _is_possible(size: int, room: int) -> bool:
    return HEADER_BYTES <= size <= min(room, _ENTRY_BYTES_MAX)


def _is_rest_empty(file: File, at: int) -> bool:
    """Whether nothing is written from here on: the end of the log, and not a hole in it."""
    end = file.size()
    while (at := file.next_data(at)) < end:
        data = file.pread(at, _WINDOW_BYTES)
        if any(data):
            return False
        at += len(data)
    return True
