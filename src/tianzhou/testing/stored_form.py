"""An independent parser of the stored form, which checks every chunk before it is written.

Written from docs/formats/record.md with its own constants. It imports nothing that builds, stamps,
walks or derives records, so that both cannot share a mistake. Slow, and only for tests: `install`
enables it for a process.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from tianzhou.base.kinds import Bytes, QueueKey
from tianzhou.store import append_check

_V1, _V2, _BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
_BORN_V6, _STORE_V6 = 0x10, 0x20
_CHECKSUM: Final = b"__CRC32#\x01"
_CHECKSUM_BYTES: Final = 20
_PORT_MAX: Final = 65535


class StoredFormError(AssertionError):
    """A chunk that must not be written."""


class Read(NamedTuple):
    """One record, as this module understands it."""

    size: int
    topic: str
    queue_id: int
    queue_offset: int
    is_visible: bool
    tags: str
    keys: tuple[str, ...]
    store_timestamp: int


def install() -> None:
    append_check.install(check_chunk)


def check_chunk(data: Bytes, offset: int, queues: Sequence[QueueKey | None] | None) -> None:
    """Raises StoredFormError unless these are whole records with the right physical offsets."""
    raw, at, found = bytes(data), 0, list[Read]()
    while at < len(raw):
        if len(raw) - at >= 8 and struct.unpack_from(">I", raw, at + 4)[0] == _BLANK:
            break
        try:
            one = read_record(raw, at, offset + at)
        except (struct.error, IndexError, ValueError) as error:
            raise StoredFormError(f"record at {offset + at}: {error!r}") from error
        found.append(one)
        at += one.size
    if queues is None:
        return
    told = [queue if queue is None else (queue.topic, queue.queue_id) for queue in queues]
    read = [(one.topic, one.queue_id) if one.is_visible else None for one in found]
    _expect(told == read, f"queues are {told[:5]}, but the records say {read[:5]}")


def read_record(raw: bytes, at: int, offset: int) -> Read:
    """Parse the record at this byte, which will be written at this physical offset."""
    size, magic, body_crc = struct.unpack_from(">iIi", raw, at)
    _expect(magic in (_V1, _V2), f"record at {offset} has magic {magic:#x}")
    _expect(91 <= size <= len(raw) - at, f"record at {offset} claims {size} bytes")
    record = raw[at : at + size]
    queue_id, _, queue_offset, place, flag = struct.unpack_from(">iiqqi", record, 12)
    _expect(place == offset, f"record at {offset} says that it stands at {place}")
    _expect(queue_id >= 0, f"record at {offset} has queue {queue_id}")
    _expect(queue_offset >= 0, f"record at {offset} has queue offset {queue_offset}")
    position = _after_host(record, 48, is_long=bool(flag & _BORN_V6), offset=offset)
    (store_timestamp,) = struct.unpack_from(">q", record, position)
    position = _after_host(record, position + 8, is_long=bool(flag & _STORE_V6), offset=offset)
    _, _, body_size = struct.unpack_from(">iqi", record, position)
    body_at = position + 16
    body = record[body_at : body_at + body_size]
    _expect(0 <= body_size == len(body), f"record at {offset} claims a body of {body_size} bytes")
    crc_agrees = zlib.crc32(body) & 0x7FFFFFFF == body_crc
    _expect(crc_agrees, f"record at {offset} has a wrong checksum of its body")
    topic, text = _names(record, body_at + body_size, is_v2=magic == _V2, offset=offset)
    _check_checksum(record, text, offset)
    pairs = dict(pair.split(b"\x01", 1) for pair in text.split(b"\x02") if b"\x01" in pair)
    tags, unique = pairs.get(b"TAGS", b""), pairs.get(b"UNIQ_KEY", b"")
    keys = [unique, *pairs.get(b"KEYS", b"").split(b" ")]
    return Read(
        size,
        topic,
        queue_id,
        queue_offset,
        flag & 0xC not in (0x4, 0xC),
        _text(tags),
        tuple(_text(key) for key in keys if key),
        store_timestamp,
    )


def _after_host(record: bytes, at: int, *, is_long: bool, offset: int) -> int:
    """The position after a host. A port above 65535 shows that address and flag contradict each
    other."""
    end = at + (20 if is_long else 8)
    (port,) = struct.unpack_from(">i", record, end - 4)
    _expect(0 <= port <= _PORT_MAX, f"record at {offset} has a host with port {port}")
    return end


def _names(record: bytes, at: int, *, is_v2: bool, offset: int) -> tuple[str, bytes]:
    """The topic and the property string, which must end where the record ends."""
    (topic_size,) = struct.unpack_from(">h" if is_v2 else ">b", record, at)
    name_at = at + (2 if is_v2 else 1)
    name = record[name_at : name_at + topic_size]
    _expect(0 < topic_size == len(name), f"record at {offset} claims {topic_size} bytes of topic")
    (text_size,) = struct.unpack_from(">h", record, name_at + topic_size)
    text = record[name_at + topic_size + 2 :]
    _expect(
        text_size == len(text),
        f"record at {offset} claims {text_size} bytes of properties, and has {len(text)}",
    )
    topic = _text(name)
    _expect("/" not in topic, f"record at {offset} has topic {topic!r}")
    return topic, text


def _check_checksum(record: bytes, text: bytes, offset: int) -> None:
    if not text[-_CHECKSUM_BYTES:].startswith(_CHECKSUM):
        return
    digits = text[-11:-1][::-1]
    told = zlib.crc32(record[:-_CHECKSUM_BYTES]) & 0x7FFFFFFF
    _expect(int(digits) == told, f"record at {offset} has a wrong checksum of the whole")
    _expect(text.count(_CHECKSUM) == 1, f"record at {offset} has two checksums")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _expect(condition: bool, claim: str) -> None:
    if not condition:
        raise StoredFormError(claim)
