"""A row of records in one buffer: building it from messages, stamping it when the log takes it.

A chunk is a structure of arrays: one `bytearray` and parallel lists. No object per record. Two
fields are known only to the log (queue offset, physical offset) and one is taken when it is
written (store timestamp): `stamp` writes them in place, then the checksum that covers them.
"""

from collections.abc import Iterable, Sequence
from struct import pack as struct_pack
from typing import Final, NamedTuple

from tianzhou.base import limits
from tianzhou.base.kinds import Bytes, QueueKey
from tianzhou.record import flags, properties
from tianzhou.record.crc import CRC_BITS, crc31, crc32
from tianzhou.record.errors import RecordTooLarge
from tianzhou.record.layout import (
    AT_QUEUE_OFFSET,
    AT_STORE_TIMESTAMP,
    CRC_PROPERTY,
    FIELDS,
    HEAD,
    HOST_BYTES_EXTRA,
    HOST_BYTES_V4,
    HOST_BYTES_V6,
    INT16,
    INT64,
    MAGIC_V1,
    MAGIC_V2,
    OFFSETS,
)
from tianzhou.record.light_queues import Room, rooms_of

NUMPY_FROM: Final = 48
"""A numpy call costs about 4 µs whatever it does; below this many records `struct` is faster."""

CRC_PLACEHOLDER: Final = CRC_PROPERTY + b"\x01" + b"0" * 10 + b"\x02"
# Prepared and rolled back records have this bit, others have not.
_INVISIBLE: Final = flags.TRANSACTION_PREPARED & flags.TRANSACTION_ROLLBACK
_LONG_HOSTS: Final = flags.LAYOUT_MASK
_FIXED_BYTES: Final = HEAD.size + 2
_PROPERTIES_MAX: Final = limits.PROPERTIES_BYTES_MAX
_RECORD_MAX: Final = limits.RECORD_BYTES_MAX
_pack_head: Final = HEAD.pack
_pack_size: Final = INT16.pack


class Entry(NamedTuple):
    """One message, as a producer's request describes it.

    A host has 8 or 20 bytes. The bits of `sys_flag` that describe hosts are ignored here: `build`
    derives them from the hosts themselves, so that the flag and the layout cannot disagree.
    """

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

    __slots__ = ("data", "ends", "has_crc", "has_long_hosts", "queues", "rooms", "starts")

    def __init__(
        self,
        data: bytearray,
        starts: list[int],
        ends: list[int],
        queues: list[QueueKey | None],
        *,
        has_crc: bool,
        has_long_hosts: bool,
        rooms: Sequence[Room] = (),
    ) -> None:
        self.data = data
        self.starts = starts
        self.ends = ends
        self.queues = queues
        """The queue that gives each record its offset; None for the invisible records of a
        transaction, which have offset 0."""
        self.has_crc = has_crc
        self.has_long_hosts = has_long_hosts
        self.rooms = rooms
        """Records that are also in light queues."""

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


def build(
    entries: Iterable[Entry], *, store_host: bytes, record_crc: bool, is_finished: bool = False
) -> RecordChunk:
    """Write the stored form of all messages into one buffer, in order.

    `is_finished`: all properties end with `CRC_PLACEHOLDER`, have no other checksum in them, and no
    room for offsets in light queues.
    """
    rows: list[Entry] = []
    if not is_finished:
        entries = rows = [_finished(entry, record_crc) for entry in entries]
    parts: list[Bytes] = []
    starts: list[int] = []
    queues: list[QueueKey | None] = []
    topics: dict[str, bytes] = {}
    at = rare = 0
    is_rare = len(store_host) != HOST_BYTES_V4
    for entry in entries:
        queue, body, text, flag, sys_flag, born, born_host, times, prepared = entry
        topic_name, queue_id = queue
        topic = topics.get(topic_name)
        if topic is None:
            topic = topics[topic_name] = _sized_topic(topic_name)
        body_size, properties_size = len(body), len(text)
        total = _FIXED_BYTES + body_size + len(topic) + properties_size
        if properties_size > _PROPERTIES_MAX or total > _RECORD_MAX:
            raise _too_large(entry, body_size, properties_size)
        if sys_flag & _LONG_HOSTS or len(born_host) != HOST_BYTES_V4 or is_rare or len(topic) > 128:
            head = _rare_head(entry, topic, store_host, total)
            total += len(head) - HEAD.size
            rare += len(head) != HEAD.size
        else:
            head = _pack_head(
                total,
                MAGIC_V1,
                crc32(body) & CRC_BITS,
                queue_id,
                flag,
                0,
                0,
                sys_flag,
                born,
                born_host,
                0,
                store_host,
                times,
                prepared,
                body_size,
            )
        parts += (head, body, topic, _pack_size(properties_size), text)
        starts.append(at)
        at += total
        queues.append(None if sys_flag & _INVISIBLE else queue)
    data = bytearray().join(parts)
    ends = [*starts[1:], at] if starts else []
    rooms = rooms_of([entry.properties for entry in rows], ends) if rows else ()
    rooms = [room for room in rooms if queues[room.row] is not None] if rooms else ()
    return RecordChunk(
        data, starts, ends, queues, has_crc=record_crc, has_long_hosts=rare > 0, rooms=rooms
    )


def join(chunks: Sequence[RecordChunk]) -> RecordChunk:
    """All records of some chunks that were built alike, as one chunk."""
    if len(chunks) == 1:
        return chunks[0]
    data = bytearray().join([chunk.data for chunk in chunks])
    starts: list[int] = []
    queues: list[QueueKey | None] = []
    rooms: list[Room] = []
    base = 0
    for chunk in chunks:
        if chunk.rooms:
            rooms += [room.moved(len(starts), base) for room in chunk.rooms]
        starts += [base + start for start in chunk.starts]
        queues += chunk.queues
        base += len(chunk.data)
    return RecordChunk(
        data,
        starts,
        [*starts[1:], base],
        queues,
        has_crc=chunks[0].has_crc,
        has_long_hosts=any(chunk.has_long_hosts for chunk in chunks),
        rooms=rooms,
    )


def stamp(
    chunk: RecordChunk,
    first: int,
    end: int,
    *,
    queue_offsets: Sequence[int],
    physical_offset: int,
    store_timestamp: int,
) -> None:
    """Write the fields that only the log knows into records `first` to `end`, then their checksum.

    `physical_offset` is the offset of record `first`; `queue_offsets` are those of the run.
    """
    base = physical_offset - chunk.starts[first]
    if end - first < NUMPY_FROM or chunk.has_long_hosts:
        _stamp_few(chunk, (first, end), queue_offsets, base=base, now_ms=store_timestamp)
    else:
        from tianzhou.record.columns import stamp_many

        stamp_many(chunk, (first, end), queue_offsets, base=base, now_ms=store_timestamp)


def _stamp_few(
    chunk: RecordChunk,
    rows: tuple[int, int],
    queue_offsets: Sequence[int],
    *,
    base: int,
    now_ms: int,
) -> None:
    first, end = rows
    data, put_offsets, put_time = chunk.data, OFFSETS.pack_into, INT64.pack_into
    starts = chunk.starts[first:end]
    for start, queue_offset in zip(starts, queue_offsets, strict=True):
        put_offsets(data, start + AT_QUEUE_OFFSET, queue_offset, base + start)
        put_time(data, _time_position(data, start), now_ms)
    if chunk.has_crc:
        with memoryview(data) as view:
            for start, stop in zip(starts, chunk.ends[first:end], strict=True):
                data[stop - 11 : stop - 1] = crc_digits(crc32(view[start : stop - 20]))


def crc_digits(crc: int) -> bytes:
    """The ten digits of the checksum property: 31 bits, least significant digit first."""
    return (b"%010d" % (crc & CRC_BITS))[::-1]


def _time_position(data: Bytes, start: int) -> int:
    """The store timestamp follows the born host, whose length varies."""
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


def _finished(entry: Entry, record_crc: bool) -> Entry:
    """The entry with the place of our checksum behind its properties, or with none. A retried
    message brings the checksum of its first life: kept, it would prove the record damaged."""
    text = properties.without(entry.properties, CRC_PROPERTY)
    if record_crc:
        text = properties.with_trailing_separator(text) + CRC_PLACEHOLDER
    return entry if text is entry.properties else entry._replace(properties=text)


def _rare_head(entry: Entry, topic: bytes, store_host: bytes, total: int) -> bytes:
    """The head of a record with long hosts, a topic that needs two bytes of length, or a
    `sys_flag` whose bits for hosts must be corrected."""
    sys_flag = entry.sys_flag & ~_LONG_HOSTS
    sys_flag |= flags.BORN_HOST_V6 if _is_long(entry.born_host) else 0
    sys_flag |= flags.STORE_HOST_V6 if _is_long(store_host) else 0
    hosts = {"born_host": f"{len(entry.born_host)}s", "store_host": f"{len(store_host)}s"}
    layout = ">" + "".join(hosts.get(name, code) for name, code in FIELDS)
    total += len(entry.born_host) + len(store_host) - 16
    magic = MAGIC_V2 if len(topic) > limits.TOPIC_BYTES_MAX + 1 else MAGIC_V1
    return struct_pack(
        layout,
        total,
        magic,
        crc31(entry.body),
        entry.queue.queue_id,
        entry.flag,
        0,
        0,
        sys_flag,
        entry.born_timestamp,
        entry.born_host,
        0,
        store_host,
        entry.reconsume_times,
        entry.prepared_offset,
        len(entry.body),
    )


def _is_long(host: bytes) -> bool:
    assert len(host) in (HOST_BYTES_V4, HOST_BYTES_V6), f"a host of {len(host)} bytes"
    return len(host) == HOST_BYTES_V6


def _too_large(entry: Entry, body_size: int, properties_size: int) -> RecordTooLarge:
    return RecordTooLarge(
        f"a message for topic {entry.queue.topic!r} has a body of {body_size} bytes and "
        f"{properties_size} bytes of properties; a record holds {limits.RECORD_BYTES_MAX} in all "
        f"and {limits.PROPERTIES_BYTES_MAX} of properties"
    )
