"""One pull: what is asked, what the answer means, which messages are in it.

An answer holds records as they are stored. They stay bytes here: what comes out is where each
record begins, its queue offset and its size. Two kinds need work: a message whose tag only has the
hash of a wanted one is left out, and a record that is a whole batch is taken apart.
"""

import contextlib
import enum
import struct
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final, NamedTuple

from tianzhou.base.errors import ProtocolError, UsageError
from tianzhou.base.kinds import Bytes, queue_key
from tianzhou.client.core.subscription import Subscription
from tianzhou.client.errors import BadPullAnswer
from tianzhou.record import flags, layout, names, properties
from tianzhou.record.batch import decode_batch, join_properties
from tianzhou.record.chunk import Entry, build, stamp
from tianzhou.record.compression import DecompressionError
from tianzhou.record.crc import crc31
from tianzhou.record.errors import RecordDamaged
from tianzhou.record.ids import encode_host
from tianzhou.record.message import MessageView
from tianzhou.record.walk import Stop, walk
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest, PullMessageResponse
from tianzhou.wire.header import Header
from tianzhou.wire.names import PULL_COMMIT_OFFSET, PULL_LITE, PULL_SUBSCRIPTION, PULL_SUSPEND
from tianzhou.wire.queues import MessageQueue

_BATCH: Final = flags.NEED_UNWRAP | flags.INNER_BATCH
_HOSTS_EXTRA: Final = (0, *(layout.HOST_BYTES_EXTRA * count for count in (1, 1, 2)))


class PullStatus(enum.Enum):
    FOUND = enum.auto()
    NO_NEW = enum.auto()
    """Everything that is there was seen."""
    NO_MATCHED = enum.auto()
    """There were messages, but none for us; go on at the next offset."""
    OFFSET_ILLEGAL = enum.auto()
    """The queue has nothing at this offset: deleted, reset, or it never had. The next offset is
    the nearest one that is good."""


_STATUSES: Final[dict[int, PullStatus]] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


@dataclass(frozen=True, slots=True)
class PullAnswer:
    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    broker_id: int
    """Who should be asked next time: 0, unless the master would rather have a slave do it."""
    body: bytes = b""


class Records(NamedTuple):
    """The messages of an answer that are for us: parallel lists over one buffer."""

    buffer: bytes
    starts: list[int]
    offsets: list[int]
    sizes: list[int]


NOTHING: Final = Records(b"", [], [], [])


@dataclass(frozen=True, slots=True)
class PullPlan:
    """What stays the same from pull to pull of one queue."""

    group: str
    queue: MessageQueue
    subscription: Subscription
    count_max: int
    bytes_max: int
    suspend_ms: int
    lite: bool = False

    def ext(self, offset: int, commit: int | None = None) -> dict[str, str]:
        """The header of a pull from here on, with the offset to commit, if there is one."""
        sys_flag = PULL_SUBSCRIPTION | (PULL_SUSPEND if self.suspend_ms else 0)
        if commit is not None and commit > 0:
            sys_flag |= PULL_COMMIT_OFFSET
        return PullMessageRequest(
            consumer_group=self.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=offset,
            max_msg_nums=self.count_max,
            sys_flag=sys_flag | (PULL_LITE if self.lite else 0),
            commit_offset=commit or 0,
            suspend_timeout_ms=self.suspend_ms,
            # Given with every pull: a broker that has just started knows no subscriptions.
            subscription=self.subscription.expression,
            sub_version=self.subscription.version,
            expression_type=self.subscription.kind,
            max_msg_bytes=self.bytes_max,
        ).to_ext()


_INVALID: Final = (
    RecordDamaged, DecompressionError, ProtocolError, UsageError, ValueError, IndexError,
    OverflowError, struct.error,
)  # fmt: skip
"""Exceptions that decoding an invalid response raises."""


@contextlib.contextmanager
def untrusted(queue: MessageQueue, offset: int) -> Generator[None]:
    """Raise BadPullAnswer for any error in the response to a pull from this offset."""
    try:
        yield
    except BadPullAnswer:
        raise
    except _INVALID as error:
        raise BadPullAnswer(queue, offset, str(error) or type(error).__name__) from error


def read_answer(header: Header, body: bytes) -> PullAnswer | None:
    """What the broker says; None when it refuses, and the code tells why."""
    status = _STATUSES.get(header.code)
    if status is None:
        return None
    fields = PullMessageResponse.from_ext(header.ext)
    return PullAnswer(
        status,
        fields.next_begin_offset,
        fields.min_offset,
        fields.max_offset,
        fields.suggest_which_broker_id,
        body if status is PullStatus.FOUND else b"",
    )


def records_of(
    body: bytes, *, asked: int, accepts_tag: Callable[[bytes | None], bool] | None = None
) -> Records:
    """The messages of an answer to a pull from `asked` on. Raises RecordDamaged."""
    found = walk(body, 0, len(body))
    if found.stop is not Stop.END or found.end != len(body):
        raise RecordDamaged(
            f"byte {found.end} of a pull answer with {len(body)} bytes begins no whole record"
        )
    starts = found.starts
    _check_bodies(body, starts)
    if any(_sys_flags(body, starts, _BATCH)):
        body, starts = unpacked(body, starts)
    unpack, at = layout.INT64.unpack_from, layout.AT_QUEUE_OFFSET
    if accepts_tag is not None:
        starts = [start for start in starts if accepts_tag(_tag_of(body, start))]
    offsets: list[int] = [unpack(body, start + at)[0] for start in starts]
    if offsets and offsets[0] < asked:
        # The first ones of a batch whose later ones were asked for.
        kept = [rank for rank, offset in enumerate(offsets) if offset >= asked]
        starts, offsets = [starts[r] for r in kept], [offsets[r] for r in kept]
    read = layout.INT32.unpack_from
    return Records(body, starts, offsets, [read(body, start)[0] for start in starts])


def _check_bodies(body: bytes, starts: list[int]) -> None:
    """Brokers don't look at what they send; whoever receives it does. Raises RecordDamaged."""
    read = layout.INT32.unpack_from
    with memoryview(body) as view:
        for start in starts:
            # Long hosts move the body.
            hosts = body[start + layout.AT_SYS_FLAG + 3] >> 4 & 3
            at = start + layout.HEAD.size + (_HOSTS_EXTRA[hosts] if hosts else 0)
            size = read(body, at - 4)[0]
            if crc31(view[at : at + size]) != read(body, start + layout.AT_BODY_CRC)[0]:
                MessageView(body, start).verify()


def _sys_flags(body: bytes, starts: list[int], mask: int) -> list[bool]:
    # Both bits stand in the last byte.
    at = layout.AT_SYS_FLAG + 3
    return [body[start + at] & mask == mask for start in starts]


def _tag_of(body: bytes, start: int) -> bytes | None:
    return properties.find(MessageView(body, start).stored_properties, names.TAGS)


# Records that are a whole batch


def unpacked(body: bytes, starts: list[int]) -> tuple[bytes, list[int]]:
    """The same with every batch replaced by its messages, as records of their own."""
    parts: list[Bytes] = []
    for start, is_batch in zip(starts, _sys_flags(body, starts, _BATCH), strict=True):
        record = MessageView(body, start)
        parts.append(_messages_of(record) if is_batch else body[start : start + record.total_size])
    joined = b"".join(parts)
    return joined, walk(joined, 0, len(joined)).starts


def _messages_of(record: MessageView) -> bytearray:
    """The messages of a batch record, each with the offset that its place gives it."""
    outer = bytes(record.stored_properties)
    base = properties.find(outer, names.INNER_BASE)
    first = int(base) if base is not None else int(record.queue_offset)
    for name in (names.INNER_BASE, names.INNER_COUNT, names.RECORD_CRC):
        outer = properties.without(outer, name)
    key = queue_key(record.topic, record.queue_id)
    # The body is expanded here, and what comes out is one plain message.
    sys_flag = record.sys_flag & ~(_BATCH | flags.COMPRESSED | flags.COMPRESSION_MASK)
    born_host, store_host = encode_host(record.born_host), encode_host(record.store_host)
    entries = [
        Entry(
            key, body, join_properties(inner, outer), flag, sys_flag,
            record.born_timestamp, born_host, record.reconsume_times, record.prepared_offset,
        )
        for flag, body, inner in decode_batch(record.body)
    ]  # fmt: skip
    chunk = build(entries, store_host=store_host, record_crc=False)
    stamp(
        chunk, 0, len(chunk), queue_offsets=range(first, first + len(chunk)),
        physical_offset=record.physical_offset, store_timestamp=record.store_timestamp,
    )  # fmt: skip
    # All of them are found at the place of the batch.
    put = layout.INT64.pack_into
    for start in chunk.starts:
        put(chunk.data, start + layout.AT_PHYSICAL_OFFSET, record.physical_offset)
    return chunk.data
