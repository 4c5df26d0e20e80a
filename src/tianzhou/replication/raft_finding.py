"""Finding the entries of a group in the commit log: by their index, and one after the other."""

from typing import NamedTuple

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.raft.messages import LogIndex
from tianzhou.record.layout import MAGIC_BLANK, SIZE_AND_MAGIC
from tianzhou.replication.raft_entry import Header, header_at
from tianzhou.replication.raft_places import Places
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.errors import StoreDamaged


class Found(NamedTuple):
    """An entry in the log: its header, and where it stands in the view of its file."""

    header: Header
    view: memoryview
    at: int
    place: PhysicalOffset

    @property
    def end(self) -> PhysicalOffset:
        return PhysicalOffset(self.place + self.header.entry_bytes)


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
        """Raises StoreDamaged if no entry begins here."""
        found = self.maybe_at(place)
        if found is None:
            raise StoreDamaged(
                self._log.directory, "no entry of the group begins here", offset=place
            )
        return found

    def maybe_at(self, place: PhysicalOffset) -> Found | None:
        segment = self._log.segment_at(place)
        if segment is None:
            return None
        at = place - segment.start
        header = header_at(segment.view, at, base=segment.start)
        return None if header is None else Found(header, segment.view, at, place)

    def next(self, found: Found) -> Found:
        return self.at(self.behind(found))

    def behind(self, found: Found) -> PhysicalOffset:
        """Where the next entry begins, or will."""
        end = found.at + found.header.entry_bytes
        if found.end < self._log.end and end + 8 <= self._log.file_bytes:
            room, magic = SIZE_AND_MAGIC.unpack_from(found.view, end)
            if magic == MAGIC_BLANK:
                return PhysicalOffset(found.end + room)
        return found.end
