"""A row of records in one buffer: building it from messages, stamping it when the log takes it.

A chunk is a structure of arrays: one `bytearray` and parallel lists. No object per record. Two
fields are known only to the log (queue offset, physical offset) and one is taken when it is
written (store timestamp): `stamp` writes them in place, then the checksum that covers them.
"""

from collections.abc import Iterable, Sequence
from struct import pack as struct_pack
from typing import Final, NamedTuple

import numpy as np

from tianzhou.base import limits
from tianzhou.base.kinds import Bytes, QueueKey
from tianzhou.record import flags
from tianzhou.record.crc import crc31, crc32
from tianzhou.record.errors import RecordTooLarge
from tianzhou.record.layout import (
    AT_QUEUE_OFFSET,
    AT_STORE_TIMESTAMP,
    CRC_PROPERTY,
    CRC_PROPERTY_BYTES,
    FIELDS,
    HEAD,
    HOST_BYTES_EXTRA,
    INT16,
    INT64,
    MAGIC_V1,
    MAGIC_V2,
    OFFSETS,
)

NUMPY_FROM: Final = 48
"""A numpy call costs about 4 µs whatever it does; below this many records `struct` is faster."""

CRC_PLACEHOLDER: Final = CRC_PROPERTY + b"\x01" + b"0" * 10 + b"\x02"
_INVISIBLE: Final = (flags.TRANSACTION_PREPARED, flags.TRANSACTION_ROLLBACK)


class Entry(NamedTuple):
    """One message, as a producer's request describes it. Hosts are 8 or 20 bytes by flag."""

    queue: QueueKey
    body: Bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_offset: int = 0


class RecordChunk:
    """Records back to back.

    Invariant: starts are ascending, the first is 0, `ends[i] == starts[i + 1]`,
    and the last end is the size of the data.
    """

    __slots__ = ("data", "ends", "has_crc", "queues", "starts")

    def __init__(
        self,
        data: bytearray,
        starts: list[int],
        ends: list[int],
        queues: list[QueueKey | None],
        *,
        has_crc: bool,
    ) -> None:
        self.data = data
        self.starts = starts
        self.ends = ends
        self.queues = queues
        """The queue that gives each record its offset; None for the invisible records of a
        transaction, which have offset 0."""
        self.has_crc = has_crc

    def __len__(self) -> int:
        return len(self.starts)

    def fitting(self, first: int, room: int) -> int:
        """The end of the run of records from `first` on that fits into `room` bytes."""
        base = self.starts[first]
        if self.ends[-1] - base <= room:
            return len(self.starts)
        end = first
        while self.ends[end] - base <= room:
            end += 1
        return end


def build(entries: Iterable[Entry], *, store_host: bytes, record_crc: bool) -> RecordChunk:
    """Write the stored form of all messages into one buffer, in order."""
    parts: list[Bytes] = []
    starts: list[int] = []
    ends: list[int] = []
    queues: list[QueueKey | None] = []
    topics: dict[str, bytes] = {}
    at = 0
    extra_flags = flags.STORE_HOST_V6 if len(store_host) > 8 else 0
    for entry in entries:
        queue, body, properties, _, sys_flag, *_ = entry
        topic = topics.get(queue.topic)
        if topic is None:
            topic = topics[queue.topic] = _sized_topic(queue.topic)
        if record_crc:
            properties = _with_placeholder(properties)
        body_size, properties_size = len(body), len(properties)
        total = HEAD.size + body_size + len(topic) + 2 + properties_size
        if properties_size > limits.PROPERTIES_BYTES_MAX or total > limits.RECORD_BYTES_MAX:
            raise _too_large(entry, body_size, properties_size)
        if (extra_flags | sys_flag) & 0x30 or len(topic) > 128:
            head = _rare_head(entry, topic, store_host, total)
            total += len(head) - HEAD.size
        else:
            head = HEAD.pack(
                total, MAGIC_V1, crc31(body), queue.queue_id, entry.flag, 0, 0, sys_flag,
                entry.born_timestamp, entry.born_host, 0, store_host,
                entry.reconsume_times, entry.prepared_offset, body_size,
            )  # fmt: skip
        parts += (head, body, topic, INT16.pack(properties_size), properties)
        starts.append(at)
        at += total
        ends.append(at)
        queues.append(None if sys_flag & flags.TRANSACTION_MASK in _INVISIBLE else queue)
    return RecordChunk(bytearray().join(parts), starts, ends, queues, has_crc=record_crc)


def stamp(
    chunk: RecordChunk,
    first: int,
    end: int,
    *,
    queue_offsets: Sequence[int],
    physical_offset: int,
    store_timestamp: int,
) -> None:
    """Write what only the log can know into records `first` to `end`, then their checksum.

    `physical_offset` is where record `first` will stand; `queue_offsets` are those of the run.
    """
    base = physical_offset - chunk.starts[first]
    if end - first < NUMPY_FROM:
        _stamp_few(chunk, first, end, queue_offsets, base, store_timestamp)
    else:
        _stamp_many(chunk, first, end, queue_offsets, base, store_timestamp)


def _stamp_few(
    chunk: RecordChunk, first: int, end: int, queue_offsets: Sequence[int], base: int, now_ms: int
) -> None:
    data, put_offsets, put_time = chunk.data, OFFSETS.pack_into, INT64.pack_into
    starts = chunk.starts[first:end]
    for start, queue_offset in zip(starts, queue_offsets, strict=True):
        put_offsets(data, start + AT_QUEUE_OFFSET, queue_offset, base + start)
        put_time(data, _time_position(data, start), now_ms)
    if chunk.has_crc:
        with memoryview(data) as view:
            for start, stop in zip(starts, chunk.ends[first:end], strict=True):
                data[stop - 11 : stop - 1] = crc_digits(crc32(view[start : stop - 20]))


_QUEUE_OFFSET: Final = np.dtype(">i8")
_POWERS_OF_TEN: Final = 10 ** np.arange(10, dtype=np.uint32)
_DIGIT_POSITIONS: Final = np.arange(-11, -1)


def _stamp_many(
    chunk: RecordChunk, first: int, end: int, queue_offsets: Sequence[int], base: int, now_ms: int
) -> None:
    if any(chunk.data[start + 39] & 0x30 for start in chunk.starts[first:end]):
        return _stamp_few(chunk, first, end, queue_offsets, base, now_ms)
    data = chunk.data
    starts = np.array(chunk.starts[first:end])
    # One unaligned 8-byte field at every byte position; indexing by the starts scatters.
    count = len(data) - 7
    fields = np.ndarray((count,), _QUEUE_OFFSET, data, strides=(1,))
    fields[starts + AT_QUEUE_OFFSET] = queue_offsets
    fields[starts + (AT_QUEUE_OFFSET + 8)] = starts + base
    fields[starts + AT_STORE_TIMESTAMP] = now_ms
    if chunk.has_crc:
        ends = chunk.ends[first:end]
        with memoryview(data) as view:
            crcs = [
                crc32(view[start : stop - CRC_PROPERTY_BYTES])
                for start, stop in zip(chunk.starts[first:end], ends, strict=True)
            ]
        masked = np.array(crcs, np.uint32) & 0x7FFFFFFF
        digits = (masked[:, None] // _POWERS_OF_TEN % 10 + 48).astype(np.uint8)
        raw = np.frombuffer(data, np.uint8)
        raw[np.array(ends)[:, None] + _DIGIT_POSITIONS] = digits
    return None


def crc_digits(crc: int) -> bytes:
    """The ten digits of the checksum property: 31 bits, least significant digit first."""
    return (b"%010d" % (crc & 0x7FFFFFFF))[::-1]


def _time_position(data: Bytes, start: int) -> int:
    """The store timestamp stands behind the born host, which may be longer."""
    born_v6 = data[start + 39] & flags.BORN_HOST_V6
    return start + AT_STORE_TIMESTAMP + (HOST_BYTES_EXTRA if born_v6 else 0)


def _sized_topic(topic: str) -> bytes:
    name = topic.encode()
    if len(name) <= limits.TOPIC_BYTES_MAX:
        return bytes((len(name),)) + name
    if len(name) <= limits.TOPIC_BYTES_MAX_V2:
        return INT16.pack(len(name)) + name
    raise RecordTooLarge(
        f"the topic name has {len(name)} bytes; a record holds {limits.TOPIC_BYTES_MAX_V2}"
    )


def _with_placeholder(properties: bytes) -> bytes:
    if CRC_PROPERTY in properties:  # a retried message brings the checksum of its first life
        properties = b"\x02".join(
            entry
            for entry in properties.split(b"\x02")
            if not entry.startswith(CRC_PROPERTY + b"\x01")
        )
    if properties and properties[-1] != 2:
        properties += b"\x02"
    return properties + CRC_PLACEHOLDER


def _rare_head(entry: Entry, topic: bytes, store_host: bytes, total: int) -> bytes:
    """A head with long hosts, or of a record whose topic needs two bytes of length."""
    sys_flag = entry.sys_flag & ~flags.STORE_HOST_V6
    if len(store_host) > 8:
        sys_flag |= flags.STORE_HOST_V6
    hosts = {"born_host": f"{len(entry.born_host)}s", "store_host": f"{len(store_host)}s"}
    layout = ">" + "".join(hosts.get(name, code) for name, code in FIELDS)
    total += len(entry.born_host) + len(store_host) - 16
    magic = MAGIC_V2 if len(topic) > limits.TOPIC_BYTES_MAX + 1 else MAGIC_V1
    return struct_pack(
        layout, total, magic, crc31(entry.body), entry.queue.queue_id, entry.flag, 0, 0, sys_flag,
        entry.born_timestamp, entry.born_host, 0, store_host,
        entry.reconsume_times, entry.prepared_offset, len(entry.body),
    )  # fmt: skip


def _too_large(entry: Entry, body_size: int, properties_size: int) -> RecordTooLarge:
    return RecordTooLarge(
        f"a message for topic {entry.queue.topic!r} has a body of {body_size} bytes and "
        f"{properties_size} bytes of properties; a record holds {limits.RECORD_BYTES_MAX} in all "
        f"and {limits.PROPERTIES_BYTES_MAX} of properties"
    )
