"""Reading a log whose end, or soundness, is not known: slice by slice, never believing it.

Nothing here changes a file. Recovery decides what to do about what is found.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from tianzhou.base.kinds import Bytes, PhysicalOffset
from tianzhou.record.errors import RecordDamaged
from tianzhou.record.layout import (
    AT_MAGIC,
    CRC_PROPERTY,
    CRC_PROPERTY_BYTES,
    INT32,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
)
from tianzhou.record.message import MessageView
from tianzhou.record.walk import Stop, Walk, first_unsound, is_sound, walk
from tianzhou.store.facts import store_time_of
from tianzhou.store.segments import Segment

SLICE_RECORDS: Final = 2048
SLICE_BYTES: Final = 4 * 1024 * 1024
NOWHERE: Final = PhysicalOffset(1 << 62)
_CRC_DIGITS_BYTES: Final = CRC_PROPERTY_BYTES - len(CRC_PROPERTY) - 1
_SEARCH_BYTES: Final = 1 << 20
_MAGICS: Final = (INT32.pack(MAGIC_V1), INT32.pack(MAGIC_V2))


def walk_slice(buffer: Bytes, start: int, end: int) -> Walk:
    """The first records in `buffer[start:end]`, no more than one slice takes; one at least."""
    found = walk(buffer, start, min(end, start + SLICE_BYTES), count_max=SLICE_RECORDS)
    if not found.starts and found.stop is Stop.TORN:  # a record larger than the slice
        return walk(buffer, start, end, count_max=1)
    return found


class Damage(NamedTuple):
    """A range of the log that was on the medium and is not readable."""

    start: int
    end: int
    reason: str


class Slice(NamedTuple):
    """Sound records, neighbours in one file."""

    segment: Segment
    starts: list[int]
    end: int

    @property
    def end_offset(self) -> PhysicalOffset:
        return PhysicalOffset(self.segment.start + self.end)


class Halt(NamedTuple):
    """Where sound records end, and why."""

    offset: PhysicalOffset
    reason: str
    is_bare: bool
    """Nothing is written here: the ordinary end of a log."""


class LogScan:
    """Walks segments from an offset on. After iteration `halt` tells how it ended.

    Every record from `checked` on carries a checksum of the whole. Only where that is known can a
    record that is torn in its checksum be told from one that was written without. Where it is not
    known (None), one without must at least end in text, as everybody writes it.
    """

    def __init__(
        self,
        segments: list[Segment],
        file_bytes: int,
        start: PhysicalOffset,
        checked: int | None = NOWHERE,
    ) -> None:
        self._segments = segments
        self._file_bytes = file_bytes
        self._at = start
        self._checked = checked
        self.halt = Halt(start, "nothing was read", is_bare=True)

    def __iter__(self) -> Iterator[Slice]:
        at = self._at
        while (segment := segment_of(self._segments, self._file_bytes, at)) is not None:
            found = walk_slice(segment.view, at - segment.start, self._file_bytes)
            bad = self._first_bad(segment, found)
            if bad is not None:
                end = found.starts[bad]
                if bad:
                    yield Slice(segment, found.starts[:bad], end)
                offset = PhysicalOffset(segment.start + end)
                self.halt = Halt(offset, "a record whose checksum fails", is_bare=False)
                return
            if found.starts:
                yield Slice(segment, found.starts, found.end)
            elif found.stop is not Stop.BLANK:
                reason = f"no record begins here ({found.stop.name.lower()})"
                self.halt = Halt(at, reason, is_bare=found.stop is Stop.END)
                return
            at = PhysicalOffset(segment.start + found.end)
            if found.stop is Stop.BLANK:
                at = PhysicalOffset(segment.start + self._file_bytes)
        self.halt = Halt(at, "the last file ends here", is_bare=True)

    def _first_bad(self, segment: Segment, found: Walk) -> int | None:
        """Rank of the first record that is not sound, or lacks the checksum it must have."""
        bad = first_unsound(segment.view, found.starts, found.end, base=segment.start)
        sound_end = found.end if bad is None else found.starts[bad]
        lacking = self._first_unchecked(segment, found.starts[:bad], sound_end)
        return bad if lacking is None else lacking

    def _first_unchecked(self, segment: Segment, starts: list[int], end: int) -> int | None:
        """Rank of the first record that lacks the checksum which it must have."""
        checked = self._checked
        if not starts or (checked is not None and segment.start + end <= checked):
            return None
        for rank, (start, stop) in enumerate(zip(starts, [*starts[1:], end], strict=True)):
            if not _is_checked(segment, start, stop, checked):
                return rank
        return None


def has_checksum(view: memoryview, end: int) -> bool:
    """Whether the record that ends here has the checksum of the whole, right or wrong."""
    return bytes(view[end - CRC_PROPERTY_BYTES : end - _CRC_DIGITS_BYTES]) == CRC_PROPERTY + b"\x01"


def _is_checked(segment: Segment, start: int, end: int, checked: int | None) -> bool:
    """Whether a sound record may be without a checksum, or has one."""
    if checked is not None and segment.start + start < checked:
        return True
    return has_checksum(segment.view, end) or (checked is None and _is_text(segment.view, start))


def _is_text(view: memoryview, start: int) -> bool:
    try:
        bytes(MessageView(view, start).stored_properties).decode()
    except (RecordDamaged, UnicodeDecodeError):
        return False
    return True


def segment_of(segments: list[Segment], file_bytes: int, offset: int) -> Segment | None:
    if not segments or offset < segments[0].start:
        return None
    rank = (offset - segments[0].start) // file_bytes
    return segments[rank] if rank < len(segments) else None


def sound_record_at(segments: list[Segment], file_bytes: int, offset: int) -> int | None:
    """Size of the sound record at this offset, or None."""
    segment = segment_of(segments, file_bytes, offset)
    if segment is None:
        return None
    at = offset - segment.start
    if at + 8 > file_bytes:
        return None
    size, _ = SIZE_AND_MAGIC.unpack_from(segment.view, at)
    if size <= 0 or at + size > file_bytes:
        return None
    return size if is_sound(segment.view, at, at + size, base=segment.start) else None


def store_time_at(segments: list[Segment], file_bytes: int, offset: int) -> int:
    """Store time of the sound record at this offset."""
    segment = segment_of(segments, file_bytes, offset)
    assert segment is not None
    return store_time_of(segment.view, offset - segment.start)


def next_sound_record(
    segments: list[Segment], file_bytes: int, after: PhysicalOffset, checked: int | None = NOWHERE
) -> PhysicalOffset | None:
    """The first sound record that begins behind this offset, in this file or a later one."""
    for segment in segments:
        if segment.start + file_bytes <= after:
            continue
        at = max(after + 1 - segment.start, 0)
        while (at := max(segment.file.next_data(at) - AT_MAGIC, at)) < file_bytes:
            # Windows overlap by the bytes of a head, so that none is missed at an edge.
            window = segment.file.pread(at, _SEARCH_BYTES + AT_MAGIC + 4)
            for magic_at in _all(window):
                offset = segment.start + at + magic_at - AT_MAGIC
                size = sound_record_at(segments, file_bytes, offset) if offset > after else None
                if size is None:
                    continue
                start = offset - segment.start
                if _is_checked(segment, start, start + size, checked):
                    return PhysicalOffset(offset)
            at += _SEARCH_BYTES
    return None


def _all(window: bytes) -> list[int]:
    """Positions of either magic number, ascending."""
    found: list[int] = []
    for magic in _MAGICS:
        at = window.find(magic)
        while at >= 0:
            found.append(at)
            at = window.find(magic, at + 1)
    return sorted(found)
