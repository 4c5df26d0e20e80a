"""Bytes of another log, on their way into this one: only whole and sound records are taken.

A stream of a log comes in pieces that may end anywhere. A log ends behind a record, always, so that
a start can tell what was torn; what has not come whole waits with whoever receives it.
"""

from typing import NamedTuple

from tianzhou.base.kinds import Bytes
from tianzhou.record.layout import SIZE_AND_MAGIC
from tianzhou.record.walk import Stop, first_unsound, walk
from tianzhou.store.derive_record import last_store_time
from tianzhou.store.errors import RawRefused
from tianzhou.store.scan import has_checksum


class Whole(NamedTuple):
    """What of some bytes may be taken."""

    size: int
    """Whole records, and blanks with all the room they announce, have so many bytes."""
    timestamp: int
    """Store time of the last record; 0 when there is none."""
    is_checked: bool
    """Every record carries a checksum of the whole."""


def whole(data: memoryview, *, offset: int, file_bytes: int) -> Whole:
    """How much of `data`, which stands at `offset`, is whole. Raises RawRefused for what is no
    sound log."""
    at, timestamp, is_checked = 0, 0, True
    while at < len(data):
        file_end = at + file_bytes - (offset + at) % file_bytes
        end = min(len(data), file_end)
        found = walk(data, at, end)
        _refuse_unsound(data, found.starts, found.end, offset)
        if found.starts:
            timestamp = last_store_time(data, found.starts, found.end) or timestamp
            ends = [*found.starts[1:], found.end]
            is_checked = is_checked and all(has_checksum(data, stop) for stop in ends)
        at = found.end
        if found.stop is Stop.BLANK:
            (room, _) = SIZE_AND_MAGIC.unpack_from(data, at)
            if at + room != file_end:
                raise RawRefused(
                    f"the blank at {offset + at} announces {room} bytes; its file of "
                    f"{file_bytes} ends in {file_end - at}: do both logs have equal files?"
                )
            if file_end > len(data):
                break
            at = file_end
        elif at == end < len(data):
            continue  # a file that was filled to its last byte
        else:
            _refuse_wrong_end(data, at, offset, is_file_end=end == file_end, stop=found.stop)
            break
    return Whole(at, timestamp, is_checked)


def _refuse_unsound(data: memoryview, starts: list[int], end: int, offset: int) -> None:
    bad = first_unsound(data, starts, end, base=offset)
    if bad is not None:
        raise RawRefused(
            f"the record for offset {offset + starts[bad]} is not sound: its checksum fails, or it "
            "belongs elsewhere in the log"
        )


def _refuse_wrong_end(data: Bytes, at: int, offset: int, *, is_file_end: bool, stop: Stop) -> None:
    """The rest must be the beginning of something."""
    left = len(data) - at
    is_wrong = stop is Stop.DAMAGED or (stop is Stop.END and left >= SIZE_AND_MAGIC.size)
    if is_wrong or (left and is_file_end):
        raise RawRefused(f"no record begins at offset {offset + at} ({stop.name.lower()})")
