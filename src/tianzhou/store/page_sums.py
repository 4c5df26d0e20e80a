"""Checksums of the pages that this process wrote, to detect pages that changed since.

A record has a checksum, but formatting, finding and comparing its digits takes longer than
everything else in a pull. Recently written records are therefore checked by the page, with a
checksum that is only in memory: about 0.1 µs per message in a pull of 32. It costs four bytes of
memory per page.
"""

from array import array
from typing import Final

from tianzhou.base.kinds import Bytes
from tianzhou.record.crc import crc32, crc32_on

PAGE: Final = 4096
"""The unit in which the page cache drops and reads bytes."""


class PageSums:
    """The page checksums of one file, from the position where this process started to write.

    Owner: the store's writer.    Invariant: `_sums` has one number for each full page from `_base`
    on, `_open` is that of the bytes behind them, up to `_end`.
    """

    __slots__ = ("_base", "_end", "_known", "_open", "_sums")

    def __init__(self, start: int) -> None:
        self._base = start // PAGE
        self._known = -(-start // PAGE)
        """The first page of which this process wrote every byte."""
        self._end = start
        self._open = 0
        self._sums = array("I")

    def wrote(self, at: int, data: Bytes) -> None:
        """Add bytes that were written after the previous ones."""
        assert at == self._end, f"written at {at}; the bytes before end at {self._end}"
        size, room = len(data), PAGE - at % PAGE
        self._end += size
        if size < room:
            self._open = crc32_on(data, self._open)
            return
        with memoryview(data) as view:
            self._sums.append(crc32_on(view[:room], self._open))
            whole = room + (size - room) // PAGE * PAGE
            self._sums.extend([crc32(view[at : at + PAGE]) for at in range(room, whole, PAGE)])
            self._open = crc32(view[whole:])

    def around(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the bounds of the pages that contain these bytes; None if not all of them are
        known."""
        first, behind = start // PAGE, -(-end // PAGE)
        if first < self._known or end > self._end:
            return None
        return first * PAGE, min(behind * PAGE, self._end)

    def agree(self, pages: Bytes, start: int) -> bool:
        """Whether these bytes, from `start` on and as `around` limits them, are as written."""
        first, end = start // PAGE, start + len(pages)
        full = end // PAGE
        with memoryview(pages) as view:
            if end % PAGE and crc32(view[full * PAGE - start :]) != self._open:
                return False
            found = [crc32(view[at : at + PAGE]) for at in range(0, full * PAGE - start, PAGE)]
        return found == self._sums[first - self._base : full - self._base].tolist()
