"""The fast half of `derive`: many records at once, by the shape of their topic and properties."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tianzhou.base.java import string_hash
from tianzhou.base.kinds import Bytes, PhysicalOffset, QueueOffset, queue_key
from tianzhou.record import flags
from tianzhou.record.layout import HEAD, MAGIC_V1
from tianzhou.record.walk import HEAD_DTYPE
from tianzhou.store.facts import SCHEDULE_TOPIC, Derived, Run, facts_of, topic_of

Ints = npt.NDArray[np.int64]
Raw = npt.NDArray[np.uint8]

_UNIT_DTYPE: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_GROUP_MIN: Final = 8
"""Fewer records of one shape than this are not worth a round of matrix work."""
_VALUE_BYTES_MAX: Final = 256
_POWERS: Final = np.array([pow(31, n, 1 << 32) for n in range(_VALUE_BYTES_MAX)], np.uint32)[::-1]
_NOT_PLAIN: Final = (
    flags.TRANSACTION_MASK | flags.BORN_HOST_V6 | flags.STORE_HOST_V6 | flags.INNER_BATCH
)


class _Value(NamedTuple):
    """Where a value stands in the matrix of one shape."""

    name: bytes
    start: int
    end: int


class _Shape(NamedTuple):
    """How topic and properties of a record are laid out; `fixed` are the bytes all must share."""

    topic: str
    fixed: npt.NDArray[np.bool_]
    hashed: list[_Value]
    keys: list[_Value]
    tags: _Value | None


class _Columns:
    """One row a record: what its unit and its index entries need."""

    def __init__(self, buffer: Bytes, starts: Sequence[int], end: int) -> None:
        self.at = np.array(starts)
        self.ends = np.append(self.at[1:], end)
        self.raw = np.frombuffer(buffer, np.uint8)
        windows = np.ndarray((len(self.raw) - HEAD.size + 1,), HEAD_DTYPE, self.raw, strides=(1,))
        self.heads = windows[self.at]
        self.topics: list[str] = []
        self.topic_rank = np.full(len(self.at), -1)
        """Which of `topics` a record belongs to; -1: no queue."""
        self.tags_codes = np.zeros(len(self.at), np.int64)
        self.store_timestamps: Ints = self.heads["store_timestamp"].astype(np.int64)
        self.key_rows: list[Ints] = []
        self.key_hashes: list[Ints] = []

    def rank_of(self, topic: str) -> int:
        if topic not in self.topics:
            self.topics.append(topic)
        return self.topics.index(topic)


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
        _one_by_one(buffer, columns, int(row), delays_ms)
    runs = _runs(columns, base)
    if columns.key_rows:
        rows = np.concatenate(columns.key_rows)
        order = np.argsort(rows, kind="stable")
        rows, hashes = rows[order], np.concatenate(columns.key_hashes)[order]
    else:
        rows = hashes = np.zeros(0, np.int64)
    # numpy arrays do what the index wants of a sequence: length, slices, the last item.
    found: tuple[Any, Any, Any] = (hashes, columns.at[rows] + base, columns.store_timestamps[rows])
    return Derived(runs, *found, int(columns.store_timestamps[-1]))


def _by_groups(columns: _Columns) -> Ints:
    """Work out all records of common shapes; the rows that are left."""
    heads, raw = columns.heads, columns.raw
    plain = (heads["magic"] == MAGIC_V1) & (heads["sys_flag"] & _NOT_PLAIN == 0)
    topic_at = columns.at + HEAD.size + heads["body_size"]
    topic_at = np.where(plain, topic_at, columns.at)
    widths = columns.ends - topic_at - 1
    waiting = np.flatnonzero(plain)
    left = [np.flatnonzero(~plain)]
    while len(waiting) >= _GROUP_MIN:
        leader = waiting[0]
        width = int(widths[leader])
        alike = waiting[
            (widths[waiting] == width) & (raw[topic_at[waiting]] == raw[topic_at[leader]])
        ]
        # Overlapping windows of this width, one at every byte; indexing copies the chosen ones.
        windows = np.ndarray((len(raw) - width + 1,), f"V{width}", raw, strides=(1,))
        matrix = windows[topic_at[alike] + 1].view(np.uint8).reshape(-1, width)
        shape = _shape_of(matrix[0].tobytes(), int(raw[topic_at[leader]]))
        fits = _fits(matrix, shape) if shape is not None else np.zeros(len(alike), np.bool_)
        if shape is not None and fits[0]:
            _fill(columns, alike[fits], matrix[fits], shape)
            done = alike[fits]
        else:
            done = waiting[:1]
            left.append(done)
        waiting = waiting[~np.isin(waiting, done, assume_unique=True)]
        if len(done) < _GROUP_MIN:
            break
    return np.concatenate([*left, waiting])


def _shape_of(block: bytes, topic_size: int) -> _Shape | None:
    """Topic, length and properties of the leader, or None if the fast way can't take it."""
    topic = topic_of(block[:topic_size])
    if topic == SCHEDULE_TOPIC or not block[:topic_size].isascii():
        return None
    fixed = np.ones(len(block), np.bool_)
    found: dict[bytes, _Value] = {}
    at = topic_size + 2
    while at < len(block):
        end = block.find(b"\x02", at)
        end = len(block) if end < 0 else end
        middle = block.find(b"\x01", at, end)
        if middle > at and middle + 1 < end:
            name = block[at:middle]
            if name in found:
                return None
            found[name] = _Value(name, middle + 1, end)
            fixed[middle + 1 : end] = False
        at = end + 1
    wanted = [found[n] for n in (b"UNIQ_KEY", b"KEYS") if n in found]
    tags = found.get(b"TAGS")
    keys = [part for value in wanted for part in _tokens(block, value, fixed)]
    hashed = [*keys, tags] if tags else keys
    if any(value.end - value.start > _VALUE_BYTES_MAX for value in hashed):
        return None
    return _Shape(topic, fixed, hashed, keys, tags)


def _tokens(block: bytes, value: _Value, fixed: npt.NDArray[np.bool_]) -> list[_Value]:
    """The keys in a value: KEYS are separated by spaces, which then belong to the shape."""
    if value.name != b"KEYS":
        return [value]
    tokens: list[_Value] = []
    at = value.start
    for word in block[value.start : value.end].split(b" "):
        if word:
            tokens.append(_Value(value.name, at, at + len(word)))
        at += len(word) + 1
    for position in range(value.start, value.end):
        fixed[position] |= block[position] == 32
    return tokens


def _fits(matrix: Raw, shape: _Shape) -> npt.NDArray[np.bool_]:
    """Which rows have this shape: the fixed bytes agree, and no separator hides in a value."""
    fits = ((matrix == matrix[0]) | ~shape.fixed).all(axis=1)
    fits &= ((matrix > 2) | shape.fixed).all(axis=1)
    for value in shape.hashed:
        part = matrix[:, value.start : value.end]
        fits &= (part < 128).all(axis=1)  # the hash of other letters counts UTF-16 units
        if value.name == b"KEYS":
            fits &= (part != 32).all(axis=1)
    return fits


def _fill(columns: _Columns, rows: Ints, matrix: Raw, shape: _Shape) -> None:
    columns.topic_rank[rows] = columns.rank_of(shape.topic)
    if shape.tags is not None:
        hashes = _hashes(matrix, shape.tags, 0)
        columns.tags_codes[rows] = hashes.astype(np.int32)
    prefix = string_hash(shape.topic + "#")
    for value in shape.keys:
        signed = _hashes(matrix, value, prefix).astype(np.int32).astype(np.int64)
        absolute = np.abs(signed)
        absolute[absolute == 1 << 31] = 0
        columns.key_rows.append(rows)
        columns.key_hashes.append(absolute)


def _hashes(matrix: Raw, value: _Value, prefix: int) -> npt.NDArray[np.uint32]:
    """Java's hash of one column of strings that all begin with what `prefix` is the hash of."""
    size = value.end - value.start
    weights = _POWERS[_VALUE_BYTES_MAX - size :]
    sums = matrix[:, value.start : value.end].astype(np.uint32) @ weights
    return sums + np.uint32(prefix * pow(31, size, 1 << 32) & 0xFFFFFFFF)


def _one_by_one(buffer: Bytes, columns: _Columns, row: int, delays_ms: Sequence[int]) -> None:
    facts = facts_of(buffer, int(columns.at[row]), int(columns.ends[row]), delays_ms)
    columns.store_timestamps[row] = facts.store_timestamp
    if facts.queue is not None:
        columns.topic_rank[row] = columns.rank_of(facts.queue.topic)
        columns.tags_codes[row] = facts.tags_code
    if facts.key_hashes:
        columns.key_rows.append(np.full(len(facts.key_hashes), row))
        columns.key_hashes.append(np.array(facts.key_hashes))


def _runs(columns: _Columns, base: int) -> list[Run]:
    units = np.empty(len(columns.at), _UNIT_DTYPE)
    units["physical_offset"] = columns.at + base
    units["size"] = columns.ends - columns.at
    units["tags_code"] = columns.tags_codes
    queue_ids = columns.heads["queue_id"].astype(np.int64)
    queue_offsets = columns.heads["queue_offset"].astype(np.int64)
    # Queues in the order of their first record, so that both ways give the same runs.
    visible = np.flatnonzero(columns.topic_rank >= 0)
    keys = (columns.topic_rank << 32 | queue_ids)[visible]
    if len(keys) and (keys == keys[0]).all():
        order = visible
    else:
        order = visible[np.argsort(keys, kind="stable")]
    sorted_keys = (columns.topic_rank << 32 | queue_ids)[order]
    breaks = (sorted_keys[1:] != sorted_keys[:-1]) | (np.diff(queue_offsets[order]) != 1)
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(order)]
    runs: list[Run] = []
    for first, last in pairwise(edges):
        if first < last:
            row = order[first]
            queue = queue_key(columns.topics[columns.topic_rank[row]], int(queue_ids[row]))
            offset = QueueOffset(int(queue_offsets[row]))
            runs.append(Run(queue, offset, units[order[first:last]].tobytes()))
    return runs
