r"""Light queues: more queues that contain a message, besides the queue of its topic.

A message is stored once. Its producer names the light queues in a property; the broker assigns an
offset in each of them and writes these into a second property, in the same order:

    INNER_MULTI_DISPATCH \x01 %LMQ%a,%LMQ%b \x02
    INNER_MULTI_QUEUE_OFFSET \x01 12,3 \x02

A message is in a light queue only if it has both. RocketMQ calls these queues LMQ. Offsets are
assigned when the log takes a record, so `with_room` leaves room for them: numbers with a fixed
count of digits. RocketMQ and its clients ignore leading zeros.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import Bytes, QueueKey, queue_key
from tianzhou.base.limits import QUEUE_OFFSET_MAX
from tianzhou.record import properties
from tianzhou.record.names import (
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    checked_topic,
)

PREFIX: Final = "%LMQ%"
"""Every light queue is named like a topic that begins with this, and has the queue id 0."""
ANY_PROPERTY: Final = b"INNER_MULTI_"
"""Both properties begin with this."""
OFFSETS_BEGIN: Final = INNER_MULTI_QUEUE_OFFSET + b"\x01"
COUNT_MAX: Final = 128
"""Light queues of one message: each takes 19 bytes of its properties, and a queue unit."""
_SEPARATOR: Final = b","
_DIGITS: Final = len(str(QUEUE_OFFSET_MAX))
_ROOM: Final = b"0" * _DIGITS
_OFFSET_DIGITS_MAX: Final = 19


class Room(NamedTuple):
    """Where the offsets of one record are to be written."""

    row: int
    """Rank of the record in its chunk."""
    at: int
    """Position of the first digit in the data of the chunk."""
    queues: Sequence[QueueKey]

    def write(self, data: bytearray, offsets: Iterable[int]) -> None:
        """Write one offset for each queue."""
        text = _SEPARATOR.join([b"%0*d" % (_DIGITS, offset) for offset in offsets])
        assert len(text) == _room_size(len(self.queues)), "an offset has too many digits"
        data[self.at : self.at + len(text)] = text

    def moved(self, rows: int, size: int) -> "Room":
        """The same record when the chunk has this many more records and bytes before it."""
        return self._replace(row=self.row + rows, at=self.at + size)


def is_light(topic: str) -> bool:
    """Whether this is the name of a light queue, and not of a topic."""
    return topic.startswith(PREFIX)


def checked_name(name: str) -> str:
    """The full name of a light queue, which may be given without its prefix. Raises UsageError."""
    try:
        full = name if is_light(name) else PREFIX + name
    except (TypeError, AttributeError) as error:
        raise UsageError(f"light queue {repr(name)[:42]} is not text; write it as str") from error
    if full == PREFIX:
        raise UsageError(f"light queue {name!r} has no name besides its prefix")
    return checked_topic(full)


def checked_names(names: Iterable[str]) -> tuple[str, ...]:
    """The full names of a message's light queues. Raises UsageError."""
    if isinstance(names, str):
        names = [names]
    found = tuple(map(checked_name, names))
    if len(found) > COUNT_MAX:
        raise UsageError(f"a message can be in {COUNT_MAX} light queues, not {len(found)}")
    if len(set(found)) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise UsageError(f"light queue {twice} is named twice")
    return found


def joined(names: Iterable[str]) -> str:
    """The names of light queues as the value of their property."""
    return _SEPARATOR.decode().join(names)


def names_of(text: Bytes) -> list[bytes]:
    """The names in the first property, whatever they are."""
    found = properties.find(text, INNER_MULTI_DISPATCH)
    return [] if found is None else found.split(_SEPARATOR)


def offsets_of(text: Bytes) -> list[tuple[bytes, int]]:
    """Name and offset of each light queue that contains the message. Nothing if the properties
    contradict each other: they may be those of another broker, or forged."""
    names, found = names_of(text), properties.find(text, INNER_MULTI_QUEUE_OFFSET)
    offsets = [] if found is None else found.split(_SEPARATOR)
    if len(names) != len(offsets):
        return []
    prefix = PREFIX.encode()
    return [
        (name, int(offset))
        for name, offset in zip(names, offsets, strict=True)
        if name.startswith(prefix)
        and offset.isdigit()
        and len(offset) <= _OFFSET_DIGITS_MAX
        and int(offset) < QUEUE_OFFSET_MAX
    ]


def offset_in(text: Bytes, queue: str) -> int | None:
    """The offset of the message in a light queue; None if it is not in that queue."""
    name = queue.encode("utf-8", "replace")
    return next((offset for other, offset in offsets_of(text) if other == name), None)


# Assigning offsets


def room_bytes(count: int) -> int:
    """How many bytes `with_room` adds for this many light queues."""
    return len(OFFSETS_BEGIN) + _room_size(count) + 1


def _room_size(count: int) -> int:
    return count * (_DIGITS + 1) - 1


def without_offsets(text: Bytes) -> bytes:
    """The properties without assigned offsets: those of another record, or a client's."""
    return properties.without(text, INNER_MULTI_QUEUE_OFFSET)


def with_room(text: Bytes, names: Sequence[bytes]) -> bytes:
    """The properties of a message that is to be in these light queues."""
    text = without_offsets(text)
    if names_of(text) != names:
        text = properties.without(text, INNER_MULTI_DISPATCH)
        text = properties.with_trailing_separator(text)
        text += b"%b\x01%b\x02" % (INNER_MULTI_DISPATCH, _SEPARATOR.join(names))
    text = properties.with_trailing_separator(text)
    return text + OFFSETS_BEGIN + _SEPARATOR.join([_ROOM] * len(names)) + properties.VALUE_END


def rooms_of(texts: Iterable[bytes], ends: Sequence[int]) -> list[Room]:
    """The rooms in records with these properties; each record, and its properties, end where
    `ends` says."""
    rooms: list[Room] = []
    for row, (text, end) in enumerate(zip(texts, ends, strict=True)):
        at = text.rfind(OFFSETS_BEGIN)
        if at < 0 or (at and text[at - 1] != 2):  # the latter is within another value
            continue
        names, start = names_of(text), at + len(OFFSETS_BEGIN)
        room = _SEPARATOR.join([_ROOM] * len(names))
        if text[start : start + len(room)] == room and room:
            queues = [queue_key(name.decode("utf-8", "replace"), 0) for name in names]
            rooms.append(Room(row, end - len(text) + start, queues))
    return rooms
