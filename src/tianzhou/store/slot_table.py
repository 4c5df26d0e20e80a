"""The hash slots of the newest index file, held in memory and written in slices.

Keys hash all over the slots, so writing each changed slot would cost one system call per key, and
writing through a mapping turns a bad sector or a truncated file into a signal that kills the
process. The table is therefore changed in memory, and a checkpoint writes the pages that changed. A
crash between two checkpoints loses nothing: recovery rebuilds the slots from the entries.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianzhou.store.files import File

SLOT_BYTES: Final = 4
_PAGE_SHIFT: Final = 10
PAGE_SLOTS: Final = 1 << _PAGE_SHIFT
"""Slots in 4 KiB."""
SLICE_PAGES: Final = 256
"""Pages that one call of `write_some` writes: 1 MiB, less than a millisecond."""
_DISK: Final = np.dtype(">i4")


def empty_slots(count: int) -> npt.NDArray[np.int32]:
    """The values of a table whose chains are all empty. Raises MemoryError."""
    return np.zeros(count, np.int32)


class SlotTable:
    """Slots are numbered from 0; each holds the number of the newest entry of its chain.

    Owner: the index file.
    """

    def __init__(self, file: File, at: int, values: npt.NDArray[np.int32]) -> None:
        self._file = file
        self._at = at
        self.values = values
        self.heads = values.data.cast("B").cast("i")
        """The same slots: reading and writing one of them is faster here than in numpy."""
        pages = (len(values) + PAGE_SLOTS - 1) >> _PAGE_SHIFT
        self._changed_page = bytearray(pages)
        """1 for each page that changed; as with `heads`, setting one is faster here."""
        self._changed = np.frombuffer(self._changed_page, np.bool_)
        self._due = np.zeros(pages, np.bool_)

    @classmethod
    def empty(cls, file: File, at: int, slots: int) -> "SlotTable":
        return cls(file, at, empty_slots(slots))

    @classmethod
    def decode(cls, file: File, at: int, data: bytes) -> "SlotTable":
        """The table whose bytes were read from position `at` of the file."""
        return cls(file, at, np.frombuffer(data, _DISK).astype(np.int32))

    def put(self, slot: int, number: int) -> None:
        """Set one slot."""
        self.heads[slot] = number
        self._changed_page[slot >> _PAGE_SHIFT] = 1

    def put_many(self, slots: npt.NDArray[Any], numbers: npt.NDArray[Any]) -> None:
        """Set many slots, each at most once."""
        self.values[slots] = numbers
        self._changed[slots >> _PAGE_SHIFT] = True

    def change_all(self) -> None:
        """Treat every slot as changed: the file has different content."""
        self._changed[:] = True

    def begin_write(self) -> None:
        """Mark all pages changed so far to be written by `write_some`."""
        self._due |= self._changed
        self._changed[:] = False

    def write_some(self) -> bool:
        """Write a slice of the marked pages; returns whether all of them are written. Raises
        OSError."""
        pages = np.flatnonzero(self._due)
        for run in _runs(pages[:SLICE_PAGES]):
            first, last = int(run[0]), int(run[-1])
            start, end = first << _PAGE_SHIFT, (last + 1) << _PAGE_SHIFT
            data = self.values[start:end].astype(_DISK).tobytes()
            self._file.pwrite(self._at + SLOT_BYTES * start, data)
            self._due[first : last + 1] = False
        return len(pages) <= SLICE_PAGES


def _runs(pages: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Adjacent pages, which one call writes."""
    if not len(pages):
        return []
    return np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1)
