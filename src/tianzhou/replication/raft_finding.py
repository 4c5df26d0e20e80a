"""Find the entries of a group in the commit log by index, and iterate over them."""

from typing import NamedTuple

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.raft.messages import LogIndex
from tianzhou.record.layout import MAGIC_BLANK, SIZE_AND_MAGIC
from tianzhou.replication.raft_entry import HEADER_BYTES, Header, header_at
from tianzhou.replication.raft_places import Places
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.derive import store_time_of
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.segments import Segment


class Found(NamedTuple):
    """An entry in the log: its header, and its position in its file."""

    header: Header
    segment: Segment
    at: int
    place: PhysicalOffset

    @property
    def data(self) -> bytes:
        """The whole entry, header included. Raises StoreDamaged if it cannot be read."""
        return _read(self.segment, self.at, self.header.entry_bytes)

    @property
    def time_ms(self) -> int:
        """Store time of the header. Raises StoreDamaged."""
        return store_time_of(_read(self.segment, self.at, HEADER_BYTES), 0)

    @property
    def end(self) -> PhysicalOffset:
        return PhysicalOffset(self.place + self.header.entry_bytes)


def _read(segment: Segment, at: int, size: int) -> bytes:
    try:
        return segment.read(at, at + size)
    except OSError as error:
        raise StoreDamaged(segment.file.path, str(error), offset=segment.start + at) from error


class Entries:
    """Owner: the storage."""

    __slots__ = ("_log", "_places")

    def __init__(self, log: CommitLog, places: Places) -> None:
        self._log = log
        self._places = places

    def find(self, index: LogIndex) -> Found:
        known, place = self._places.at_or_before(index)
        found = self.at(place)
        while known < index:
            found = self.next(found)
            known = found.header.index
        return found

    def at(self, place: PhysicalOffset) -> Found:
        """Return the entry that starts here. Raises StoreDamaged if there is none."""
        found = self.maybe_at(place)
        if found is None:
            raise StoreDamaged(
                self._log.directory, "no entry of the group starts here", offset=place
            )
        return found

    def maybe_at(self, place: PhysicalOffset) -> Found | None:
        segment = self._log.segment_at(place)
        if segment is None:
            return None
        at = place - segment.start
        try:
            data = segment.read(at, min(at + HEADER_BYTES, self._log.file_bytes))
        except OSError:
            return None
        header = header_at(data, 0, base=place)
        return None if header is None else Found(header, segment, at, place)

    def next(self, found: Found) -> Found:
        return self.at(self.behind(found))

    def behind(self, found: Found) -> PhysicalOffset:
        """Return where the next entry starts, or will start."""
        end = found.at + found.header.entry_bytes
        if found.end < self._log.end and end + 8 <= self._log.file_bytes:
            room, magic = SIZE_AND_MAGIC.unpack(_read(found.segment, end, SIZE_AND_MAGIC.size))
            if magic == MAGIC_BLANK:
                return PhysicalOffset(found.end + room)
        return found.end
