"""A chunk of records as Arrow columns: only the requested ones, all rows at once.

Fixed fields are gathered by numpy from the heads of all records; bodies and texts are slices of the
chunk (`binary_slices`); properties are parsed together (`Entries`). Python handles single messages
only where that cannot be avoided: a compressed body, a batch stored as one record.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianzhou.base.kinds import Bytes
from tianzhou.record import compression, flags, names
from tianzhou.record.columns import HEAD_DTYPE, gather
from tianzhou.record.compression import DecompressionError
from tianzhou.record.errors import RecordDamaged
from tianzhou.record.ids import decode_host, offset_id
from tianzhou.record.layout import (
    AT_BORN_HOST,
    AT_STORE_TIMESTAMP,
    HEAD,
    HOST_BYTES_EXTRA,
    HOST_BYTES_V4,
    MAGIC_V2,
    position_of,
)
from tianzhou.spark.arrow import Array, Batch, Kind, Schema, pa, pc

Int64s = npt.NDArray[np.int64]
Raw = npt.NDArray[np.uint8]

BUFFER_BYTES_MAX: Final = (1 << 31) - 1
"""Positions in an Arrow array of bytes have 32 bits."""
_AT_STORE_HOST: Final = position_of("store_host")
_BACK_TO_RECONSUME_TIMES: Final = HEAD.size - position_of("reconsume_times")
_US_PER_MS: Final = 1_000
_NAME_END: Final = 1
_VALUE_END: Final = 2


# Variable-length slices of a buffer, without a Python object per slice


def binary_slices(raw: Raw, starts: Int64s, ends: Int64s) -> Array:
    """Return the slices `raw[start:end]`. They must be ascending and must not overlap.

    An Arrow array of bytes is a buffer of consecutive values and the positions between them.
    Scattered slices become such an array in two steps: an array over the whole buffer has the
    entries gap, slice, gap, slice, ...; taking every second entry then copies the bytes once.
    """
    count = len(starts)
    assert raw.nbytes <= BUFFER_BYTES_MAX
    edges = np.empty(2 * count + 1, np.int32)
    edges[0] = 0
    edges[1::2] = starts
    edges[2::2] = ends
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(edges), pa.py_buffer(raw)]
    )
    return pieces.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int32)))


def parts_of(array: Array) -> tuple[Raw, Int64s]:
    """Return the bytes of a newly built array, and the positions between its values."""
    assert array.offset == 0
    _, offsets, data = array.buffers()
    edges = np.frombuffer(offsets, np.int32, len(array) + 1).astype(np.int64)
    raw = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return raw[: edges[-1]], edges


def as_text(array: Array) -> Array:
    """Decode bytes as text. Invalid UTF-8 becomes U+FFFD, as everywhere in Tianzhou."""
    raw, _ = parts_of(array)
    if len(raw) == 0 or raw.max() < 128:
        return array.view(pa.string())
    text = array.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        values = [
            None if value is None else value.decode("utf-8", "replace")
            for value in array.to_pylist()
        ]
        return pa.array(values, pa.string())
    return text


def integers(raw: Raw, at: Int64s, dtype: str) -> npt.NDArray[Any]:
    """Return the big-endian number at each of these positions."""
    size = np.dtype(dtype).itemsize
    # Overlapping windows, one per byte; indexing copies only the selected ones.
    windows = np.ndarray((len(raw) - size + 1,), dtype, raw, strides=(1,))
    return windows[at]


# Properties


class Entries:
    r"""All properties of a chunk of records, parsed together.

    A property string is `name \x01 value \x02`, repeated (`record/properties.py` has the rules and
    is the reference of the tests). The strings of a chunk are concatenated; both separators are
    then found in all strings at once, and every name and value is a pair of positions.

    Invariant: `rows` is ascending; entries of one row are in the order of the string.
    """

    def __init__(self, strings: Array) -> None:
        self._count = len(strings)
        self._raw, edges = parts_of(strings)
        starts, ends, rows = self._pieces(edges)
        middles, has_middle = self._find_middles(starts, ends)
        # A piece is valid if its name and its value, around the first \x01, are not empty.
        sound = has_middle & (middles > starts) & (middles < ends - 1)
        if not sound.all():
            starts, ends, rows, middles = (a[sound] for a in (starts, ends, rows, middles))
        self.rows = rows
        self._starts, self._middles, self._ends = starts, middles, ends
        named = binary_slices(self._raw, starts, middles).dictionary_encode()
        self._codes = named.indices.to_numpy().astype(np.int64)
        self._names: dict[bytes, int] = {
            name: code for code, name in enumerate(named.dictionary.to_pylist())
        }

    def _pieces(self, edges: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the start, the end and the row of each piece."""
        raw, row_starts, row_ends = self._raw, edges[:-1], edges[1:]
        stops = np.flatnonzero(raw == _VALUE_END)
        ends, next_starts = stops, stops + 1
        filled = row_ends > row_starts
        open_ends = row_ends[filled][raw[row_ends[filled] - 1] != _VALUE_END]
        if len(open_ends):  # the last separator of a string may be missing
            ends = np.concatenate((stops, open_ends))
            next_starts = np.concatenate((stops + 1, open_ends))
            # A string may start with the separator; the end of the previous row sorts first.
            order = np.lexsort((next_starts, ends))
            ends, next_starts = ends[order], next_starts[order]
        starts = np.concatenate((np.zeros(1, np.int64), next_starts))[:-1]
        per_row = np.diff(np.searchsorted(next_starts, edges, "right"))
        return starts, ends, np.repeat(np.arange(self._count), per_row)

    def _find_middles(self, starts: Int64s, ends: Int64s) -> tuple[Int64s, Any]:
        """Return the first \x01 at or after each start, and whether it is within the piece."""
        found = np.flatnonzero(self._raw == _NAME_END)
        if len(found) == len(starts) and (found >= starts).all() and (found < ends).all():
            return found, np.ones(len(found), bool)
        # A sentinel at the end, so that every start has a next separator.
        found = np.append(found, len(self._raw))
        middles = found[np.searchsorted(found, starts)]
        return middles, middles < ends

    def text(self, name: bytes) -> Array:
        """Return one property by row, null where it is missing. The last of several wins."""
        return as_text(self.values(name))

    def values(self, name: bytes) -> Array:
        chosen = self._codes == self._names.get(name, -1)
        rows = self.rows[chosen]
        starts, ends = self._middles[chosen] + 1, self._ends[chosen]
        if len(rows) > 1 and not (rows[1:] > rows[:-1]).all():
            last = np.append(rows[1:] != rows[:-1], True)
            rows, starts, ends = rows[last], starts[last], ends[last]
        found = binary_slices(self._raw, starts, ends)
        if len(rows) == self._count:
            return found
        places = np.full(self._count, -1, np.int64)
        places[rows] = np.arange(len(rows))
        return found.take(pa.array(places, mask=places < 0))

    def maps(self, kind: Kind) -> Array:
        """Return all properties of each row, without the checksum that some brokers add."""
        keep = self._codes != self._names.get(names.RECORD_CRC, -1)
        keep &= self._is_last()
        rows = self.rows[keep]
        keys = as_text(binary_slices(self._raw, self._starts[keep], self._middles[keep]))
        items = as_text(binary_slices(self._raw, self._middles[keep] + 1, self._ends[keep]))
        edges = np.searchsorted(rows, np.arange(self._count + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(edges), keys, items, kind)

    def _is_last(self) -> Any:
        """Return False for entries whose name occurs again later in the same row."""
        places = self.rows * len(self._names) + self._codes
        counts = np.bincount(places, minlength=1)
        last = np.ones(len(places), bool)
        if len(counts) and counts.max() > 1:
            _, first_from_behind = np.unique(places[::-1], return_index=True)
            last[:] = False
            last[len(places) - 1 - first_from_behind] = True
        return last


def split_keys(texts: Array, kind: Kind) -> Array:
    """Split keys at blanks. A message without keys has an empty list."""
    filled = pc.fill_null(texts, "")
    raw, edges = parts_of(filled)
    if not (raw == ord(" ")).any():
        present = (np.diff(edges) > 0).astype(np.int32)
        offsets = np.concatenate((np.zeros(1, np.int32), np.cumsum(present, dtype=np.int32)))
        values = filled.filter(pa.array(present.astype(bool)))
        return pa.ListArray.from_arrays(pa.array(offsets), values, kind)
    lists = pc.split_pattern(filled, " ")
    values, parents = lists.flatten(), pc.list_parent_indices(lists)
    used = pc.not_equal(values, "")
    rows = parents.filter(used).to_numpy()
    offsets = np.searchsorted(rows, np.arange(len(filled) + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values.filter(used), kind)


class Chunk:
    """Consecutive records, with the positions of their parts. Parts are located on first use.

    Valid until: the buffer changes.
    """

    def __init__(self, data: Bytes | Raw, starts: Sequence[int] | Int64s, end: int) -> None:
        self.raw = np.frombuffer(data, np.uint8)
        self.starts: Int64s = np.asarray(starts, np.int64)
        self.ends: Int64s = np.append(self.starts[1:], end)
        self.heads: npt.NDArray[Any] = gather(self.raw, self.starts, HEAD.size).view(HEAD_DTYPE)
        self.sys_flags: npt.NDArray[Any] = self.heads["sys_flag"].astype(np.int32)

    def __len__(self) -> int:
        return len(self.starts)

    def chosen(self, ranks: Int64s) -> "Chunk":
        """Return a chunk with some of the records."""
        made = Chunk(self.raw, self.starts[ranks], 0)
        made.ends = self.ends[ranks]
        return made

    @cached_property
    def _has_long_hosts(self) -> bool:
        return bool((self.sys_flags & (flags.BORN_HOST_V6 | flags.STORE_HOST_V6)).any())

    @cached_property
    def _born_extra(self) -> Int64s:
        """Return by how many bytes the fields after the born host are shifted."""
        return HOST_BYTES_EXTRA * ((self.sys_flags & flags.BORN_HOST_V6) != 0).astype(np.int64)

    @cached_property
    def _store_extra(self) -> Int64s:
        return HOST_BYTES_EXTRA * ((self.sys_flags & flags.STORE_HOST_V6) != 0).astype(np.int64)

    @cached_property
    def _body_at(self) -> Int64s:
        at = self.starts + HEAD.size
        return at + self._born_extra + self._store_extra if self._has_long_hosts else at

    @cached_property
    def _body_end(self) -> Int64s:
        return self._body_at + self._counted_back(4, "body_size", ">i4")

    @cached_property
    def _topic_at(self) -> Int64s:
        return self._body_end + np.where(self.heads["magic"] == MAGIC_V2, 2, 1)

    @cached_property
    def _topic_end(self) -> Int64s:
        sizes = self.raw[self._topic_at - 1].astype(np.int64)
        long = self._topic_at - self._body_end == 2
        if long.any():
            sizes[long] |= self.raw[self._body_end[long]].astype(np.int64) << 8
        return self._topic_at + sizes

    def check(self) -> None:
        """Check that the lengths add up before they are used. Raises RecordDamaged."""
        ends, limit = self._body_end, self.ends - 3
        sound = (ends >= self._body_at) & (ends <= limit)
        if sound.all():
            sound &= self._topic_end + 2 <= self.ends
        if sound.all():
            sizes = integers(self.raw, self._topic_end, ">i2").astype(np.int64)
            sound &= self._topic_end + 2 + sizes == self.ends
        if not sound.all():
            rank = int(np.flatnonzero(~sound)[0])
            raise RecordDamaged(
                f"record at byte {self.starts[rank]} with "
                f"{self.ends[rank] - self.starts[rank]} bytes has parts whose lengths do not add up"
            )

    def _counted_back(self, distance: int, name: str, dtype: str) -> npt.NDArray[Any]:
        """Return a field that is located backwards from the body: hosts vary in length."""
        if not self._has_long_hosts:
            return self.heads[name]
        return integers(self.raw, self._body_at - distance, dtype)

    # Fields of a record

    @property
    def queue_ids(self) -> npt.NDArray[Any]:
        return self.heads["queue_id"].astype(np.int32)

    @cached_property
    def queue_offsets(self) -> Int64s:
        return self.heads["queue_offset"].astype(np.int64)

    @property
    def physical_offsets(self) -> Int64s:
        return self.heads["physical_offset"].astype(np.int64)

    @property
    def born_times_ms(self) -> Int64s:
        return self.heads["born_timestamp"].astype(np.int64)

    @cached_property
    def store_times_ms(self) -> Int64s:
        if not self._has_long_hosts:
            return self.heads["store_timestamp"].astype(np.int64)
        at = self.starts + AT_STORE_TIMESTAMP + self._born_extra
        return integers(self.raw, at, ">i8").astype(np.int64)

    @property
    def reconsume_times(self) -> npt.NDArray[Any]:
        times = self._counted_back(_BACK_TO_RECONSUME_TIMES, "reconsume_times", ">i4")
        return times.astype(np.int32)

    def topics(self) -> Array:
        return as_text(binary_slices(self.raw, self._topic_at, self._topic_end))

    @cached_property
    def property_strings(self) -> Array:
        return binary_slices(self.raw, self._topic_end + 2, self.ends)

    @cached_property
    def entries(self) -> Entries:
        return Entries(self.property_strings)

    def bodies(self) -> Array:
        """Return the bodies, decompressed."""
        stored = binary_slices(self.raw, self._body_at, self._body_end)
        packed = np.flatnonzero(self.sys_flags & flags.COMPRESSED)
        if not len(packed):
            return stored
        expanded = pa.array([self._expanded(rank) for rank in packed.tolist()], pa.binary())
        order = np.arange(len(self))
        order[packed] = len(self) + np.arange(len(packed))
        return pa.concat_arrays([stored, expanded]).take(pa.array(order))

    def _expanded(self, rank: int) -> bytes:
        stored = self.raw[self._body_at[rank] : self._body_end[rank]].tobytes()
        try:
            return compression.decompress(stored, int(self.sys_flags[rank]))
        except DecompressionError as error:
            raise DecompressionError(
                f"message at offset {self.queue_offsets[rank]} of queue {self.queue_ids[rank]}, "
                f"physical offset {self.physical_offsets[rank]}: {error}"
            ) from error

    def born_hosts(self) -> Array:
        at = self.starts + AT_BORN_HOST
        hosts = binary_slices(self.raw, at, at + HOST_BYTES_V4 + self._born_extra)
        few = hosts.dictionary_encode()
        texts = [_host_text(host) for host in few.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(few.indices)

    def message_ids(self) -> Array:
        """Return the producer's unique id, or an id made of the message's position."""
        found = self.entries.text(names.UNIQ_KEY)
        if not found.null_count:
            return found
        missing = np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False))
        made = pa.array([self._offset_id(rank) for rank in missing.tolist()], pa.string())
        order = np.arange(len(self))
        order[missing] = len(self) + np.arange(len(missing))
        return pa.concat_arrays([found, made]).take(pa.array(order))

    def _offset_id(self, rank: int) -> str:
        at = int(self.starts[rank] + _AT_STORE_HOST + self._born_extra[rank])
        host = self.raw[at : at + HOST_BYTES_V4 + int(self._store_extra[rank])]
        return offset_id(host.tobytes(), int(self.physical_offsets[rank]))

    def transaction_ids(self) -> Array:
        """Return the transaction id set by the producer, else the unique id, as Java does."""
        found = self.entries.text(names.TRANSACTION_ID)
        is_transaction = pa.array((self.sys_flags & flags.TRANSACTION_MASK) != 0)
        unique = self.entries.text(names.UNIQ_KEY)
        return pc.coalesce(found, pc.if_else(is_transaction, unique, pa.scalar(None, pa.string())))


def _host_text(host: bytes) -> str:
    address, port = decode_host(host)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _times(values_ms: Int64s) -> Array:
    return pa.array(values_ms * _US_PER_MS).view(pa.timestamp("us", "UTC"))


Maker = Callable[[Chunk, Kind], Any]

COLUMNS: Final[dict[str, Maker]] = {
    "topic": lambda c, _: c.topics(),
    "brokerName": lambda c, kind: pa.nulls(len(c), kind),
    "queueId": lambda c, _: pa.array(c.queue_ids),
    "queueOffset": lambda c, _: pa.array(c.queue_offsets),
    "msgId": lambda c, _: c.message_ids(),
    "tags": lambda c, _: c.entries.text(names.TAGS),
    "keys": lambda c, kind: split_keys(c.entries.text(names.KEYS), kind),
    "body": lambda c, _: c.bodies(),
    "properties": lambda c, kind: c.entries.maps(kind),
    "bornTimestamp": lambda c, _: _times(c.born_times_ms),
    "storeTimestamp": lambda c, _: _times(c.store_times_ms),
    "bornHost": lambda c, _: c.born_hosts(),
    "reconsumeTimes": lambda c, _: pa.array(c.reconsume_times),
    "sysFlag": lambda c, _: pa.array(c.sys_flags),
    "transactionId": lambda c, _: c.transaction_ids(),
    "physicalOffset": lambda c, _: pa.array(c.physical_offsets),
}
"""The function that builds each column of `schema.py`."""


def to_batch(chunk: Chunk, schema: Schema, *, broker_name: str | None = None) -> Batch:
    """Build the columns of the schema. Raises RecordDamaged or DecompressionError."""
    chunk.check()
    arrays = [
        pa.array([broker_name], field.type).take(pa.array(np.zeros(len(chunk), np.int32)))
        if field.name == "brokerName" and broker_name is not None
        else COLUMNS[field.name](chunk, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
