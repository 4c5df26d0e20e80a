"""Derivation of queue units and index entries from the bytes of the log. Pure.

One function, used right after an append and when everything is rebuilt: `derive` takes a row of
records and returns runs of consume-queue units, one per queue, and the entries of the key index.

Below a few dozen records a plain loop over `facts_of` is fastest; it is also the reference. Above,
all heads are read at once and the records are grouped by the shape of their topic and properties
(the names and lengths of all properties); inside a group every tag and key is at the same position,
so that they are hashed as columns of a matrix. Records of a rare shape go through the loop.

No input makes it fail: a malformed record is listed with the reason and contributes nothing; the
others are derived as usual.

This is one file because both ways read the same fields and must agree on each: a new version of the
record changes both.
"""

from collections.abc import Sequence
from itertools import pairwise
from operator import mul
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tianzhou.base.java import string_hash
from tianzhou.base.kinds import Bytes, PhysicalOffset, QueueKey, QueueOffset, queue_key
from tianzhou.base.limits import QUEUE_OFFSET_MAX, TOPIC_BYTES_MAX
from tianzhou.record import flags, light_queues, properties
from tianzhou.record.columns import HEAD_DTYPE, gather
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
    RECORD_BYTES_MIN,
    position_of,
)
from tianzhou.store.consume_queue import UNIT, is_topic_name
from tianzhou.wire.names import SCHEDULE_TOPIC

_INT64_MAX: Final = (1 << 63) - 1
_VALUE_BYTES_MAX: Final = 256
"""Tags and keys up to this length are hashed as a weighted sum, which runs in C from end to end."""
_WEIGHTS: Final = tuple(pow(31, n, 1 << 32) for n in reversed(range(_VALUE_BYTES_MAX)))
"""`_WEIGHTS[-n:]` are the weights of the characters of a string of length n in Java's hash."""


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
    light: Sequence[tuple[QueueKey, int]] = ()
    """The light queues that contain the record as well, with its offset in each."""


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
    if visible and found.find(light_queues.OFFSETS_BEGIN) >= 0:
        light = _light_queues(found)
        return Facts(queue, queue_offset, tags_code, keys, store_timestamp, light)
    return Facts(queue, queue_offset, tags_code, keys, store_timestamp)


def _light_queues(found: bytes) -> list[tuple[QueueKey, int]]:
    """The light queues of a record. Names that no directory can have are left out, as in
    RocketMQ."""
    light: list[tuple[QueueKey, int]] = []
    for name, offset in light_queues.offsets_of(found):
        try:
            light.append((queue_key(topic_of(name), 0), offset))
        except RecordDamaged:
            continue
    return light


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
    return [_key_hash(prefix, key) for key in properties.keys_of(found)]


def _key_hash(prefix: int, key: bytes) -> int:
    """What the index stores for a key, given the hash of its topic and `#`: the absolute value of
    Java's hash of the whole, where abs(-2**31) counts as 0."""
    size = len(key)
    if size < _VALUE_BYTES_MAX and key.isascii():
        power = _WEIGHTS[_VALUE_BYTES_MAX - size - 1]
        total = sum(map(mul, key, _WEIGHTS[_VALUE_BYTES_MAX - size :]))
    else:
        power = pow(31, len(key.decode("utf-8", "replace").encode("utf-16-be")) // 2, 1 << 32)
        total = string_hash(key)
    hash_ = (prefix * power + total) & 0xFFFF_FFFF
    if hash_ > 1 << 31:
        return (1 << 32) - hash_
    return 0 if hash_ == 1 << 31 else hash_


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


# Few records: the plain loop

_SHAPES_FROM: Final = 16
"""From this many records on the matrices pay for themselves."""


def derive(
    buffer: Bytes,
    starts: Sequence[int],
    end: int,
    *,
    base: PhysicalOffset,
    delays_ms: Sequence[int],
) -> Derived:
    """Units and index entries of the records at `starts`, each ending where the next begins.

    `base` is the physical offset of the buffer's first byte.
    """
    if len(starts) < _SHAPES_FROM:
        return derive_plainly(buffer, starts, end, base=base, delays_ms=delays_ms)
    return derive_by_shape(buffer, starts, end, base=base, delays_ms=delays_ms)


def derive_plainly(
    buffer: Bytes,
    starts: Sequence[int],
    end: int,
    *,
    base: PhysicalOffset,
    delays_ms: Sequence[int],
) -> Derived:
    units: dict[QueueKey, tuple[int, bytearray]] = {}
    runs: list[QueueUnits] = []
    hashes: list[int] = []
    offsets: list[int] = []
    timestamps: list[int] = []
    malformed: list[Malformed] = []
    store_timestamp = None
    ends = [*starts[1:], end]
    for start, stop in zip(starts, ends, strict=True):
        offset = base + start
        try:
            queue, queue_offset, tags_code, keys, store_timestamp, light = facts_of(
                buffer, start, stop, delays_ms
            )
        except RecordDamaged as error:
            malformed.append(Malformed(offset, stop - start, str(error)))
            continue
        for hash_ in keys:
            hashes.append(hash_)
            offsets.append(offset)
            timestamps.append(store_timestamp)
        if queue is None:
            continue
        unit = UNIT.pack(offset, stop - start, tags_code)
        for key, rank in ((queue, queue_offset), *light):
            first, row = units.get(key, (rank, None))
            if row is not None and rank == first + len(row) // UNIT.size:
                row += unit
                continue
            if row is not None:  # a record of this queue is missing in between
                runs.append(QueueUnits(key, QueueOffset(first), bytes(row)))
            units[key] = (rank, bytearray(unit))
    runs += [QueueUnits(q, QueueOffset(first), bytes(row)) for q, (first, row) in units.items()]
    return Derived(runs, hashes, offsets, timestamps, store_timestamp, malformed)


# Many records: columns of one shape

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Raw = npt.NDArray[np.uint8]

_UNIT_DTYPE: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_QUEUE_ID_TOP: Final = position_of("queue_id")
_QUEUE_OFFSET_TOP: Final = position_of("queue_offset")
_TOO_LARGE: Final = 0x100 - (QUEUE_OFFSET_MAX >> 56)
"""Bits of the first byte that a queue offset below the limit, a power of two, does not have."""
_int16: Final = INT16.unpack_from
_GROUP_MIN: Final = 8
"""Fewer records of one shape than this are not worth a round of matrix work."""
_WEIGHT_COLUMN: Final = np.array(_WEIGHTS, np.uint32)
_NOT_PLAIN: Final = (
    flags.TRANSACTION_MASK | flags.BORN_HOST_V6 | flags.STORE_HOST_V6 | flags.INNER_BATCH
)


class _Value(NamedTuple):
    """Where a value stands in the rows of one shape."""

    start: int
    end: int


class _Shape(NamedTuple):
    """How the ends of some records are laid out: topic, then properties, in rows of one width.

    The masks have a row of bytes each, read as words of eight: `fixed` covers the bytes that all
    records share, `not_free` all but the values, `not_ascii` the high bits of values that must be
    ASCII, `not_keys` all but the values that must hold no space.
    """

    topic: str
    prefix: int
    """Hash of the topic and `#`, with which every indexed key begins."""
    leader: Words
    fixed: Words
    not_free: Words
    not_ascii: Words
    not_keys: Words | None
    keys: list[_Value]
    tags: _Value | None


class _Columns:
    """One row a record: what its unit and its index entries need."""

    def __init__(self, buffer: Bytes, starts: Sequence[int], end: int) -> None:
        self.at = np.array(starts)
        self.ends = np.empty_like(self.at)
        self.ends[:-1] = self.at[1:]
        self.ends[-1] = end
        self.raw = np.frombuffer(buffer, np.uint8)
        self.heads = gather(self.raw, self.at, HEAD.size).view(HEAD_DTYPE)
        self.topics: dict[str, int] = {}
        """The topics of all records by rank, and the light queues."""
        self.topic_rank = np.full(len(self.at), -1)
        """Which of `topics` a record belongs to; -1: no queue."""
        self.tags_codes = np.zeros(len(self.at), np.int64)
        self.store_timestamps: Ints = self.heads["store_timestamp"].astype(np.int64)
        self.key_rows: list[Ints] = []
        self.key_hashes: list[Ints] = []
        self.malformed: dict[int, str] = {}
        """Rows that contribute nothing, and why."""
        self.light: list[tuple[int, int, int]] = []
        """Row, rank and offset for each light queue of a record."""

    def rank_of(self, topic: str) -> int:
        return self.topics.setdefault(topic, len(self.topics))


def derive_by_shape(
    buffer: Bytes,
    starts: Sequence[int],
    end: int,
    *,
    base: PhysicalOffset,
    delays_ms: Sequence[int],
) -> Derived:
    columns = _Columns(buffer, starts, end)
    for row in _by_groups(columns):
        _one_by_one(buffer, columns, row, delays_ms)
    runs = _runs(columns, base)
    rows, hashes = _in_log_order(columns)
    # numpy arrays do what the index wants of a sequence: length, slices, the last item.
    found: tuple[Any, Any, Any] = (hashes, columns.at[rows] + base, columns.store_timestamps[rows])
    if not columns.malformed:
        return Derived(runs, *found, int(columns.store_timestamps[-1]))
    return Derived(runs, *found, _last_timestamp(columns), _malformed(columns, base))


def _last_timestamp(columns: _Columns) -> int | None:
    rows = (row for row in reversed(range(len(columns.at))) if row not in columns.malformed)
    row = next(rows, None)
    return None if row is None else int(columns.store_timestamps[row])


def _malformed(columns: _Columns, base: int) -> list[Malformed]:
    at, ends = columns.at, columns.ends
    return [
        Malformed(int(at[row]) + base, int(ends[row] - at[row]), reason)
        for row, reason in sorted(columns.malformed.items())
    ]


def _in_log_order(columns: _Columns) -> tuple[Ints, Ints]:
    """Rows and hashes of all keys, sorted by row; keys of one record keep their order."""
    if not columns.key_rows:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if len(columns.key_rows) == 1:
        return columns.key_rows[0], columns.key_hashes[0]
    rows = np.concatenate(columns.key_rows)
    order = np.argsort(rows, kind="stable")
    return rows[order], np.concatenate(columns.key_hashes)[order]


def _by_groups(columns: _Columns) -> list[int]:
    """Derive all records of common shapes; returns the remaining rows."""
    heads, raw = columns.heads, columns.raw
    waiting = (heads["magic"] == MAGIC_V1) & (heads["sys_flag"] & _NOT_PLAIN == 0)
    # Read as unsigned, a negative number is huge, so that one comparison finds both.
    body_sizes = heads["body_size"].astype(np.int64)
    rooms = columns.ends - columns.at - RECORD_BYTES_MIN
    waiting &= body_sizes.view(np.uint64) <= rooms.view(np.uint64)
    tops = heads.view(np.uint8).reshape(-1, HEAD.size)
    waiting &= (tops[:, _QUEUE_ID_TOP] & 0x80 | tops[:, _QUEUE_OFFSET_TOP] & _TOO_LARGE) == 0
    topic_at = columns.at + HEAD.size + np.where(waiting, body_sizes, 0)
    widths = columns.ends - topic_at - 1
    topic_sizes = raw[topic_at]
    left = np.flatnonzero(~waiting).tolist()
    while (rows := np.flatnonzero(waiting)).size >= _GROUP_MIN:
        leader = rows[0]
        width, topic_size = int(widths[leader]), int(topic_sizes[leader])
        rows = rows[(widths[rows] == width) & (topic_sizes[rows] == topic_size)]
        done = _by_shape(columns, rows, topic_at[rows] + 1, sizes=(width, topic_size))
        waiting[done] = False  # also for shapes that are too rare: they must not be processed twice
        if len(done) < _GROUP_MIN:
            break
    return left + np.flatnonzero(waiting).tolist()


def _by_shape(columns: _Columns, rows: Ints, at: Ints, *, sizes: tuple[int, int]) -> Ints:
    """Derive the rows that have the same shape as the first one, and return them. `sizes` are
    those of everything from the topic on, and of the topic."""
    width, topic_size = sizes
    # The matrix has whole words: it includes a few bytes before the topic, which no mask covers.
    padding = -width % 8
    size = width + padding
    matrix = gather(columns.raw, at - padding, size).view(np.uint8).reshape(-1, size)
    words = matrix.view(np.uint64)
    leader = matrix[0].tobytes()
    key = leader[padding : padding + topic_size], width
    shape = _last_shapes.get(key)
    misfits = _misfits(words, shape) if shape is not None else None
    if shape is None or misfits is None or misfits[0].any():
        shape = _shape_of(leader, padding, topic_size)
        if shape is None:
            return rows[:0]
        if len(_last_shapes) >= _SHAPES_MAX:
            _last_shapes.clear()
        _last_shapes[key] = shape
        misfits = _misfits(words, shape)
    if misfits.any():
        fits = ~misfits.any(axis=1)
        rows, matrix = rows[fits], matrix[fits]
    if len(rows):
        _fill(columns, rows, matrix, shape)
    return rows


_SHAPES_MAX: Final = 10_000
_last_shapes: dict[tuple[bytes, int], _Shape] = {}
"""The shape seen last, by topic and width. A producer's messages look alike for hours, and working
out a shape takes as long as filling in two hundred records of it."""


def _shape_of(block: bytes, start: int, topic_size: int) -> _Shape | None:
    """Return the shape of this end of a record, or None if the fast path does not support it."""
    topic_end = start + topic_size
    # The size of the properties is equal in all rows of a shape, so one check suffices.
    if topic_size > TOPIC_BYTES_MAX or topic_end + 2 > len(block):
        return None
    if topic_end + 2 + _int16(block, topic_end)[0] != len(block):
        return None
    try:
        topic = topic_of(block[start:topic_end])
    except RecordDamaged:
        return None
    if topic == SCHEDULE_TOPIC or not block[start:topic_end].isascii():
        return None
    if light_queues.OFFSETS_BEGIN in block:
        return None
    fixed = bytearray(start) + b"\xff" * (len(block) - start)
    found: dict[bytes, _Value] = {}
    at = topic_end + 2
    while at < len(block):
        end = block.find(b"\x02", at)
        end = len(block) if end < 0 else end
        middle = block.find(b"\x01", at, end)
        if middle > at and middle + 1 < end:
            name = block[at:middle]
            if name in found:
                return None
            found[name] = _Value(middle + 1, end)
            fixed[middle + 1 : end] = bytes(end - middle - 1)
        at = end + 1
    unique, keys, tags = (found.get(name) for name in (b"UNIQ_KEY", b"KEYS", b"TAGS"))
    words = _words_of(block, keys, fixed) if keys else []
    hashed = [value for value in (unique, *words, tags) if value]
    if any(value.end - value.start > _VALUE_BYTES_MAX for value in hashed):
        return None
    return _Shape(
        topic,
        string_hash(topic + "#"),
        np.frombuffer(block, np.uint64),
        np.frombuffer(fixed, np.uint64),
        ~_mask(len(block), list(found.values())),
        _mask(len(block), hashed) & _HIGH,
        ~_mask(len(block), words) if words else None,
        [unique, *words] if unique else words,
        tags,
    )


def _words_of(block: bytes, keys: _Value, fixed: bytearray) -> list[_Value]:
    """Keys are separated by spaces, which then belong to the shape."""
    words: list[_Value] = []
    at = keys.start
    for word in block[keys.start : keys.end].split(b" "):
        if word:
            words.append(_Value(at, at + len(word)))
        at += len(word)
        fixed[at : at + (at < keys.end)] = b"\xff" * (at < keys.end)
        at += 1
    return words


def _mask(size: int, values: list[_Value]) -> Words:
    mask = bytearray(size)
    for start, end in values:
        mask[start:end] = b"\xff" * (end - start)
    return np.frombuffer(mask, np.uint64)


def _every_byte(value: int) -> np.uint64:
    return np.uint64(value * 0x0101_0101_0101_0101)


_ONE, _THREE, _SPACE, _HIGH = (_every_byte(value) for value in (1, 3, 32, 128))


def _misfits(rows: Words, shape: _Shape) -> Words:
    """Not zero where a row departs from the shape: another fixed byte, a separator hidden in a
    value, a hashed letter that is not ASCII (Java counts UTF-16 units), a space inside a key.

    A byte x is below n, for n up to 128, where the high bit of (x - n) & ~x is set.
    """
    # In place: new arrays would take longer than what is written into them.
    misfits = rows ^ shape.leader
    misfits &= shape.fixed
    values = rows | shape.not_free
    below = values - _THREE
    below &= np.invert(values, out=values)
    below &= _HIGH
    misfits |= below
    misfits |= np.bitwise_and(rows, shape.not_ascii, out=values)
    if shape.not_keys is not None:
        text = rows ^ _SPACE
        text |= shape.not_keys
        np.subtract(text, _ONE, out=below)
        below &= np.invert(text, out=text)
        below &= _HIGH
        misfits |= below
    return misfits


def _fill(columns: _Columns, rows: Ints, matrix: Raw, shape: _Shape) -> None:
    columns.topic_rank[rows] = columns.rank_of(shape.topic)
    if shape.tags is not None:
        columns.tags_codes[rows] = _hashes(matrix, shape.tags, 0).astype(np.int32)
    for value in shape.keys:
        hashes = np.abs(_hashes(matrix, value, shape.prefix).astype(np.int32).astype(np.int64))
        hashes[hashes == 1 << 31] = 0
        columns.key_rows.append(rows)
        columns.key_hashes.append(hashes)


def _hashes(matrix: Raw, value: _Value, prefix: int) -> npt.NDArray[np.uint32]:
    """Java's hash of one column of strings that all begin with what `prefix` is the hash of."""
    size = value.end - value.start
    weights = _WEIGHT_COLUMN[_VALUE_BYTES_MAX - size :]
    sums = matrix[:, value.start : value.end].astype(np.uint32) @ weights
    return sums + np.uint32(prefix * pow(31, size, 1 << 32) & 0xFFFFFFFF)


def _one_by_one(buffer: Bytes, columns: _Columns, row: int, delays_ms: Sequence[int]) -> None:
    try:
        facts = facts_of(buffer, int(columns.at[row]), int(columns.ends[row]), delays_ms)
    except RecordDamaged as error:
        columns.malformed[row] = str(error)
        return
    columns.store_timestamps[row] = facts.store_timestamp
    if facts.queue is not None:
        columns.topic_rank[row] = columns.rank_of(facts.queue.topic)
        columns.tags_codes[row] = facts.tags_code
        columns.light += [(row, columns.rank_of(key.topic), at) for key, at in facts.light]
    if facts.key_hashes:
        columns.key_rows.append(np.full(len(facts.key_hashes), row))
        columns.key_hashes.append(np.array(facts.key_hashes))


def _runs(columns: _Columns, base: int) -> list[QueueUnits]:
    units = np.empty(len(columns.at), _UNIT_DTYPE)
    units["physical_offset"] = columns.at + base
    units["size"] = columns.ends - columns.at
    units["tags_code"] = columns.tags_codes
    rows: npt.NDArray[Any] = units.view(f"V{_UNIT_DTYPE.itemsize}")
    queue_offsets = columns.heads["queue_offset"].astype(np.int64)
    keys = columns.topic_rank << 32 | columns.heads["queue_id"]
    if columns.light:
        of, ranks, offsets = np.array(columns.light).T
        order = np.argsort(np.concatenate([np.arange(len(keys)), of]), kind="stable")
        keys = np.concatenate([keys, ranks << 32])[order]
        queue_offsets = np.concatenate([queue_offsets, offsets])[order]
        rows = np.concatenate([rows, rows[of]])[order]
    if keys[0] < 0 or (keys != keys[0]).any():
        visible = np.flatnonzero(keys >= 0)
        order = visible[np.argsort(keys[visible], kind="stable")]
        keys, queue_offsets, rows = keys[order], queue_offsets[order], rows[order]
    breaks = (keys[1:] != keys[:-1]) | (queue_offsets[1:] != queue_offsets[:-1] + 1)
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(keys)]
    topics = list(columns.topics)
    runs: list[QueueUnits] = []
    for first, last in pairwise(edges):
        if first < last:
            key = int(keys[first])
            queue = queue_key(topics[key >> 32], key & 0xFFFFFFFF)
            offset = QueueOffset(int(queue_offsets[first]))
            runs.append(QueueUnits(queue, offset, rows[first:last].tobytes()))
    return runs
