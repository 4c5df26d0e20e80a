"""Fixed-size files that form the commit log: names, order, gaps, and the pages just written.

A file is named by the offset of its first byte, with twenty digits. Opening a directory rejects
unexpected files and names them; it deletes or resizes nothing but an empty or short last file,
which a crash during creation leaves behind.

A record has a checksum, but formatting, finding and comparing its digits takes longer than
everything else in a pull. Recently written records are therefore checked by the page (`PageSums`),
with a checksum that is only in memory: about 0.1 µs per message in a pull of 32. It costs four
bytes of memory per page.
"""

import errno
from array import array
from typing import Final, NamedTuple

from tianzhou.base.kinds import Bytes, PhysicalOffset
from tianzhou.record.crc import crc32, crc32_on
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.files import File, Files, creating, list_visible

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


class Salvaged(NamedTuple):
    data: bytes
    """All requested bytes, with zeros for those that cannot be read."""
    is_whole: bool
    """Everything could be read."""


class Segment:
    """One open file, read with `pread`.

    A mapping would be no faster, and turns a bad sector or a truncated file into a signal that
    kills the process; with `pread` they are errors that affect only the records concerned.

    Owner: the store's writer.
    """

    __slots__ = ("file", "reserved", "start", "sums")

    def __init__(self, file: File, start: PhysicalOffset, *, reserved: int) -> None:
        self.file = file
        self.start = start
        self.reserved = reserved
        """Blocks are allocated for the bytes before this position of the file."""
        self.sums: PageSums | None = None
        """Page checksums of what this process wrote; None if it wrote nothing recently."""

    def read(self, start: int, end: int) -> bytes:
        """Bytes of the file. Raises OSError if the disk can't read them or the file is shorter."""
        data = self.file.pread(start, end - start)
        if len(data) != end - start:
            raise OSError(errno.EIO, f"ends at byte {start + len(data)}", self.file.path)
        return data

    def salvage(self, start: int, end: int) -> Salvaged:
        """The same for bytes that may be unreadable, page by page if necessary."""
        try:
            return Salvaged(self.read(start, end), is_whole=True)
        except OSError:
            pieces: list[bytes] = []
            while start < end:
                stop = min(end, (start // PAGE + 1) * PAGE)
                try:
                    pieces.append(self.read(start, stop))
                except OSError:
                    pieces.append(bytes(stop - start))
                start = stop
            return Salvaged(b"".join(pieces), is_whole=False)

    def write(self, at: int, data: Bytes) -> None:
        """Write records after the previous ones."""
        self.file.pwrite(at, data)
        if self.sums is not None:
            try:
                self.sums.wrote(at, data)
            except MemoryError:
                # The bytes are in the file. From now on readers check each record by its own
                # checksum.
                self.sums = None

    def close(self) -> None:
        self.file.close()


def file_name(offset: int) -> str:
    return f"{offset:020d}"


def is_file_name(name: str) -> bool:
    return len(name) == 20 and name.isascii() and name.isdecimal()


def create(
    files: Files, directory: str, start: PhysicalOffset, *, size: int, reserve: int
) -> Segment:
    """Create a file whose name is durable, with its first blocks allocated."""
    path = f"{directory}/{file_name(start)}"
    with creating(files, path, size) as file:
        file.reserve(0, min(reserve, size))
        file.sync()
        files.sync_dir(directory)
        return Segment(file, start, reserved=min(reserve, size))


def starts_of(files: Files, directory: str, size: int) -> list[PhysicalOffset]:
    """The start offsets of a directory's files, in order. Raises StoreDamaged for an unexpected
    name or a gap."""
    names = list_visible(files, directory)
    for name in names:
        if not is_file_name(name):
            raise StoreDamaged(f"{directory}/{name}", "is not a commit log file; move it away")
    starts: list[PhysicalOffset] = []
    for name in names:
        start = PhysicalOffset(int(name))
        if start % size:
            raise StoreDamaged(
                f"{directory}/{name}",
                f"does not start at a multiple of the file size {size}; "
                "was the directory written with another commit_log_file_bytes?",
            )
        if starts and start != starts[-1] + size:
            missing = file_name(starts[-1] + size)
            raise StoreDamaged(f"{directory}/{missing}", f"is missing; {name} comes after it")
        starts.append(start)
    return starts


def open_all(files: Files, directory: str, size: int, *, heal: bool = True) -> list[Segment]:
    """Every file of the directory, in order. Only with `heal` is anything repaired."""
    starts = starts_of(files, directory, size)
    opened = (
        _open(
            files, f"{directory}/{file_name(start)}", start, size, heal=heal and start == starts[-1]
        )
        for start in starts
    )
    return [segment for segment in opened if segment is not None]


def _open(
    files: Files, path: str, start: PhysicalOffset, size: int, *, heal: bool
) -> Segment | None:
    file = files.open(path)
    found = file.size()
    if found == 0 and heal:
        file.close()
        files.remove(path)
        # The previous file may be truncated next, and only the last file of a log may be short.
        files.sync_dir(path.rpartition("/")[0])
        return None
    if found < size and heal:
        # A crash between creating the file and setting its length, or during a truncation.
        file.truncate(size)
        file.sync()
    elif found != size:
        file.close()
        raise wrong_size(path, found, size)
    return Segment(file, start, reserved=0)


def wrong_size(path: str, found: int, size: int) -> StoreDamaged:
    return StoreDamaged(
        path,
        f"has {found} bytes and should have {size}; restore it, or set "
        "commit_log_file_bytes to the size the directory was written with",
    )
