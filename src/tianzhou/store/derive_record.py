"""The queue unit and index entries of one record, derived from its bytes. Pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from tianzhou.base.java import as_key_hash, hash_onward, string_hash
from tianzhou.base.kinds import Bytes, QueueKey, QueueOffset, queue_key
from tianzhou.base.limits import QUEUE_OFFSET_MAX, TOPIC_BYTES_MAX, TOPIC_DIRECTORY_BYTES_MAX
from tianzhou.record import flags, properties
from tianzhou.record.errors import RecordDamaged
from tianzhou.record.layout import (
    AT_STORE_TIMESTAMP,
    AT_SYS_FLAG,
    HEAD,
    HOST_BYTES_EXTRA,
    INT16,
    INT32,
    INT64,
    MAGIC_V1,
    MAGIC_V2,
)
from tianzhou.wire.names import SCHEDULE_TOPIC

_INT64_MAX: Final = (1 << 63) - 1


class QueueUnits(NamedTuple):
    """Units of one queue without a gap."""

    queue: QueueKey
    first: QueueOffset
    units: bytes


class Malformed(NamedTuple):
    """An intact record that cannot be parsed or put into a queue."""

    offset: int
    size: int
    reason: str


class Derived(NamedTuple):
    runs: list[QueueUnits]
    key_hashes: Sequence[int]
    key_offsets: Sequence[int]
    key_timestamps: Sequence[int]
    last_timestamp: int | None
    """Store time of the last record that is not malformed; None if all are."""
    malformed: Sequence[Malformed] = ()
    """Records that contribute nothing."""


class Facts(NamedTuple):
    """The queue unit and index entries of one record."""

    queue: QueueKey | None
    """None for the invisible records of a transaction."""
    queue_offset: int
    tags_code: int
    key_hashes: list[int]
    store_timestamp: int


def facts_of(
    buffer: Bytes, start: int, end: int, delays_ms: Sequence[int], *, with_keys: bool = True
) -> Facts:
    """Parse the fields that dispatch needs from one record of at least `RECORD_BYTES_MIN` bytes.
    Without `with_keys` the hashes of its keys, which take half of the time, are left out.

    Raises only RecordDamaged, whatever the bytes are: a matching checksum proves that a record is
    stored as it was written, not that it was written correctly.
    """
    (
        _,
        magic,
        _,
        queue_id,
        _,
        queue_offset,
        _,
        sys_flag,
        _,
        _,
        store_timestamp,
        _,
        _,
        _,
        body_size,
    ) = HEAD.unpack_from(buffer, start)
    topic_at = start + HEAD.size + body_size
    if sys_flag & flags.LAYOUT_MASK:
        topic_at, body_size, store_timestamp = _behind_long_hosts(buffer, start, end, sys_flag)
    if body_size < 0 or topic_at + 3 > end:
        raise RecordDamaged(f"claims a body of {body_size} bytes")
    if magic == MAGIC_V1:
        name_at = topic_at + 1
        name_size, name_max = buffer[topic_at], TOPIC_BYTES_MAX
    elif magic == MAGIC_V2:
        name_at = topic_at + 2
        name_size, name_max = INT16.unpack_from(buffer, topic_at)[0], end
    else:
        raise RecordDamaged(f"has the unknown magic number {magic & 0xFFFFFFFF:#x}")
    name_end = name_at + name_size
    if not 0 <= name_size <= name_max or name_end + 2 > end:
        raise RecordDamaged(f"claims a topic of {name_size} bytes")
    if name_end + 2 + INT16.unpack_from(buffer, name_end)[0] != end:
        raise RecordDamaged("has properties that do not end where the record ends")
    if queue_id < 0 or not 0 <= queue_offset < QUEUE_OFFSET_MAX:
        raise RecordDamaged(f"claims offset {queue_offset} of queue {queue_id}")
    topic = topic_of(bytes(buffer[name_at:name_end]))
    found = bytes(buffer[name_end + 2 : end])
    kind = sys_flag & flags.TRANSACTION_MASK
    tags = properties.find(found, b"TAGS")
    tags_code = _tags_code(tags) if tags else 0
    if topic == SCHEDULE_TOPIC:
        tags_code = _delivery_time(found, store_timestamp, delays_ms, tags_code)
    is_indexed = with_keys and kind != flags.TRANSACTION_ROLLBACK
    keys = _keys(topic, found) if is_indexed else []
    visible = kind not in (flags.TRANSACTION_PREPARED, flags.TRANSACTION_ROLLBACK)
    queue = queue_key(topic, queue_id) if visible else None
    return Facts(queue, queue_offset, tags_code, keys, store_timestamp)


def store_time_of(buffer: Bytes, start: int) -> int:
    """Store time of the record that begins here."""
    born_v6 = buffer[start + AT_SYS_FLAG + 3] & flags.BORN_HOST_V6
    at = start + AT_STORE_TIMESTAMP + (HOST_BYTES_EXTRA if born_v6 else 0)
    return INT64.unpack_from(buffer, at)[0]


def last_store_time(buffer: Bytes, starts: Sequence[int], end: int) -> int | None:
    """Store time of the last of these records that is not malformed; None if all are."""
    ends = [*starts[1:], end]
    for start, stop in zip(reversed(starts), reversed(ends), strict=True):
        try:
            return facts_of(buffer, start, stop, ()).store_timestamp
        except RecordDamaged:
            continue
    return None


def _behind_long_hosts(buffer: Bytes, start: int, end: int, sys_flag: int) -> tuple[int, int, int]:
    """Position of the topic, size of the body and store timestamp, when a host has 20 bytes."""
    hosts = (sys_flag >> 4 & 1) + (sys_flag >> 5 & 1)
    body_at = start + HEAD.size + HOST_BYTES_EXTRA * hosts
    if body_at > end:
        raise RecordDamaged("claims hosts that do not fit into it")
    (body_size,) = INT32.unpack_from(buffer, body_at - 4)
    return body_at + body_size, body_size, store_time_of(buffer, start)


_CACHED_MAX: Final = 100_000
"""Far more topics or tags than a broker has: then they are names from damaged bytes, or keys."""
_tags_codes: dict[bytes, int] = {}
_key_prefixes: dict[str, int] = {}


def _tags_code(tags: bytes) -> int:
    code = _tags_codes.get(tags)
    if code is None:
        if len(_tags_codes) >= _CACHED_MAX:
            _tags_codes.clear()
        code = _tags_codes[tags] = string_hash(tags)
    return code


def _keys(topic: str, found: bytes) -> list[int]:
    """Hashes of the unique id and of every key, in the order in which Java indexes them."""
    prefix = _key_prefixes.get(topic)
    if prefix is None:
        if len(_key_prefixes) >= _CACHED_MAX:
            _key_prefixes.clear()
        prefix = _key_prefixes[topic] = string_hash(topic + "#")
    return [as_key_hash(hash_onward(prefix, key)) for key in properties.keys_of(found)]


def _delivery_time(
    found: bytes, store_timestamp: int, delays_ms: Sequence[int], otherwise: int
) -> int:
    """Delayed messages carry the time of delivery where others carry the hash of their tag."""
    text = properties.find(found, b"DELAY")
    # No more digits than a level may have: Java fails on them, and so may `int`.
    level = int(text) if text and len(text) < 10 and text.isdigit() else 0
    if level <= 0 or not delays_ms:
        return otherwise
    return min(store_timestamp + delays_ms[min(level, len(delays_ms)) - 1], _INT64_MAX)


_topics: dict[bytes, str] = {}


def topic_of(name: bytes) -> str:
    """The topic as text; the same object each time, so that dictionaries find it fast.

    Raises RecordDamaged for a name that is not valid as a directory name.
    """
    topic = _topics.get(name)
    if topic is None:
        if len(_topics) >= _CACHED_MAX:
            _topics.clear()
        topic = name.decode("utf-8", "replace")
        if not is_topic_name(topic):
            raise RecordDamaged(f"claims the topic {topic[:64]!r}, which cannot name a directory")
        _topics[name] = topic
    return topic


def is_topic_name(topic: str) -> bool:
    """Whether queues of this topic can have a directory."""
    if not topic.strip(".") or "/" in topic or "\0" in topic:
        return False
    return len(topic.encode("utf-8", "replace")) <= TOPIC_DIRECTORY_BYTES_MAX
