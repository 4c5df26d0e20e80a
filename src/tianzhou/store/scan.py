"""Read a log that may be damaged or have an unknown end, in slices, checking everything.

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
    RECORD_BYTES_MIN,
)
from tianzhou.record.message import MessageView
from tianzhou.record.walk import Stop, Walk, first_unsound, is_sound, walk
from tianzhou.store.derive import store_time_of
from tianzhou.store.segments import Segment

SLICE_RECORDS: Final = 2048
SLICE_BYTES: Final = 1024 * 1024
"""Bytes per read. With 4 MiB most of them were read again for the next slice, because a slice of
small messages ends after `SLICE_RECORDS`, long before the end of the bytes."""
NOWHERE: Final = PhysicalOffset(1 << 62)
_CRC_DIGITS_BYTES: Final = CRC_PROPERTY_BYTES - len(CRC_PROPERTY) - 1
_SEARCH_BYTES: Final = 1 << 20
_MAGICS: Final = (INT32.pack(MAGIC_V1), INT32.pack(MAGIC_V2))


class Window(NamedTuple):
    """Bytes of one file, and the records that were found in them. Positions are relative to the
    first byte of `data`, whose log offset is `base`."""

    data: bytes
    base: PhysicalOffset
    walk: Walk
    is_whole: bool
    """Whether everything could be read; unreadable bytes are zeros."""


def read_slice(segment: Segment, start: int, end: int) -> Window:
    """The first records of the file's bytes from `start` to `end`: at most one slice, and at least
    one record."""
    data, is_whole = segment.salvage(start, min(end, start + SLICE_BYTES))
    found = walk(data, 0, len(data), count_max=SLICE_RECORDS)
    if not found.starts and found.stop is Stop.TORN and start + len(data) < end:
        # A record larger than the slice; one whose size exceeds the available bytes is torn.
        (size,) = INT32.unpack_from(data) if len(data) >= INT32.size else (end,)
        data, is_whole = segment.salvage(start, min(end, start + max(size, len(data))))
        found = walk(data, 0, len(data), count_max=1)
    return Window(data, PhysicalOffset(segment.start + start), found, is_whole)


class Damage(NamedTuple):
    """A range of the log that was durable and is not readable."""

    start: int
    end: int
    reason: str


class Slice(NamedTuple):
    """Intact adjacent records in one file. Positions are relative to the first byte of `data`."""

    data: bytes
    base: PhysicalOffset
    starts: list[int]
    end: int

    @property
    def end_offset(self) -> PhysicalOffset:
        return PhysicalOffset(self.base + self.end)


class Halt(NamedTuple):
    """Where intact records end, and why."""

    offset: PhysicalOffset
    reason: str
    is_bare: bool
    """Nothing is written here: the ordinary end of a log."""


class LogScan:
    """Scans segments from an offset on. After the iteration `halt` describes how it ended.

    Every record from `checked` on has a checksum of the whole record. Only where that is known can
    a record whose checksum is torn be distinguished from one that was written without. Where it is
    not known (None), a record without must at least end in text, as all brokers write it.
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
            window = read_slice(segment, at - segment.start, self._file_bytes)
            data, base, found, is_whole = window
            bad = self._first_bad(data, base, found)
            if bad is not None:
                end = found.starts[bad]
                if bad:
                    yield Slice(data, base, found.starts[:bad], end)
                self.halt = Halt(PhysicalOffset(base + end), _why(window), is_bare=False)
                return
            if found.starts:
                yield Slice(data, base, found.starts, found.end)
            elif found.stop is not Stop.BLANK:
                is_bare = is_whole and found.stop is Stop.END
                self.halt = Halt(at, _why(window), is_bare=is_bare)
                return
            at = PhysicalOffset(base + found.end)
            if found.stop is Stop.BLANK:
                at = PhysicalOffset(segment.start + self._file_bytes)
        self.halt = Halt(at, "the last file ends here", is_bare=True)

    def _first_bad(self, data: bytes, base: int, found: Walk) -> int | None:
        """Return the rank of the first record that is damaged, or lacks a required checksum."""
        bad = first_unsound(data, found.starts, found.end, base=base)
        sound_end = found.end if bad is None else found.starts[bad]
        lacking = self._first_unchecked(data, base, found.starts[:bad], sound_end)
        return bad if lacking is None else lacking

    def _first_unchecked(self, data: bytes, base: int, starts: list[int], end: int) -> int | None:
        """Return the rank of the first record that lacks a required checksum."""
        checked = self._checked
        if not starts or (checked is not None and base + end <= checked):
            return None
        for rank, (start, stop) in enumerate(zip(starts, [*starts[1:], end], strict=True)):
            if checked is not None and base + start < checked:
                continue
            if not _has_proof(data, start, stop, checked):
                return rank
        return None


def _why(window: Window) -> str:
    """Why the scan stopped before the next record."""
    if not window.is_whole:
        return "the disk cannot read these bytes, or the file was truncated"
    if window.walk.starts:
        return "a record whose checksum fails"
    return f"no record starts here ({window.walk.stop.name.lower()})"


def has_checksum(view: Bytes, end: int) -> bool:
    """Whether the record that ends here has the checksum of the whole, right or wrong."""
    return bytes(view[end - CRC_PROPERTY_BYTES : end - _CRC_DIGITS_BYTES]) == CRC_PROPERTY + b"\x01"


def _has_proof(data: Bytes, start: int, end: int, checked: int | None) -> bool:
    """Whether an intact record after `checked` has a checksum, or may have none."""
    return has_checksum(data, end) or (checked is None and _is_text(data, start))


def _is_text(view: Bytes, start: int) -> bool:
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


def sound_record_at(segments: list[Segment], file_bytes: int, offset: int) -> bytes | None:
    """The intact record at this offset, or None."""
    segment = segment_of(segments, file_bytes, offset)
    if segment is None:
        return None
    try:
        record = record_bytes(segment, offset - segment.start, file_bytes)
    except OSError:
        return None
    if record is None or not is_sound(record, 0, len(record), base=offset):
        return None
    return record


def record_bytes(segment: Segment, at: int, end: int) -> bytes | None:
    """The bytes of the record at this position, by the size in its header; None if that is not the
    size of a record that ends before `end`. Raises OSError."""
    if at < 0 or at + RECORD_BYTES_MIN > end:
        return None
    (size,) = INT32.unpack(segment.read(at, at + INT32.size))
    if not RECORD_BYTES_MIN <= size <= end - at:
        return None
    return segment.read(at, at + size)


def store_time_at(segments: list[Segment], file_bytes: int, offset: int) -> int:
    """Store time of the intact record at this offset; 0 if it can no longer be read."""
    record = sound_record_at(segments, file_bytes, offset)
    return 0 if record is None else store_time_of(record, 0)


def next_sound_record(
    segments: list[Segment], file_bytes: int, after: PhysicalOffset, checked: int | None = NOWHERE
) -> PhysicalOffset | None:
    """Return the first intact record after this offset, in this file or a later one."""
    for segment in segments:
        if segment.start + file_bytes <= after:
            continue
        at = max(after + 1 - segment.start, 0)
        while (at := max(segment.file.next_data(at) - AT_MAGIC, at)) < file_bytes:
            # Windows overlap by the bytes of a head, so that none is missed at an edge.
            window_end = min(at + _SEARCH_BYTES + AT_MAGIC + 4, file_bytes)
            for magic_at in _all(segment.salvage(at, window_end).data):
                offset = segment.start + at + magic_at - AT_MAGIC
                found = sound_record_at(segments, file_bytes, offset) if offset > after else None
                if found is None:
                    continue
                is_old = checked is not None and offset < checked
                if is_old or _has_proof(found, 0, len(found), checked):
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
