"""One pull: the request, the meaning of the response, and the messages in it.

A response contains records as they are stored. They stay bytes: the result is the start, the queue
offset and the size of each record. Two kinds need work: a message whose tag only shares the hash of
a wanted tag is left out, and a batch record is split.
"""

import contextlib
import enum
import struct
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tianzhou.base.errors import ProtocolError, Retry, UsageError
from tianzhou.base.kinds import Bytes, queue_key
from tianzhou.client.core.namespace import Namespace
from tianzhou.client.core.routing import MASTER
from tianzhou.client.core.subscription import Subscription
from tianzhou.client.errors import BadPullAnswer, ClientError, RemoteError
from tianzhou.record import flags, layout, names, properties
from tianzhou.record.batch import decode_batch, join_properties
from tianzhou.record.chunk import Entry, build, stamp
from tianzhou.record.compression import DecompressionError
from tianzhou.record.crc import CRC_BITS, crc32
from tianzhou.record.errors import RecordDamaged
from tianzhou.record.ids import encode_host
from tianzhou.record.light_queues import is_light, offset_in
from tianzhou.record.message import MessageView
from tianzhou.record.walk import Stop, walk
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest, PullMessageResponse
from tianzhou.wire.codec import Header
from tianzhou.wire.names import PULL_COMMIT_OFFSET, PULL_LITE, PULL_SUBSCRIPTION, PULL_SUSPEND
from tianzhou.wire.queues import MessageQueue

_BATCH: Final = flags.NEED_UNWRAP | flags.INNER_BATCH
_HOSTS_EXTRA: Final = (0, *(layout.HOST_BYTES_EXTRA * count for count in (1, 1, 2)))


class PullStatus(enum.Enum):
    """Outcome of a pull, found in `PullResult.status`.

    In every case `PullResult.next_offset` is where to continue.

        if (await consumer.pull(queue, offset)).status is PullStatus.FOUND: ...
    """

    FOUND = enum.auto()
    NO_NEW = enum.auto()
    """There is no message at or after the offset."""
    NO_MATCHED = enum.auto()
    """There were messages, but the filter matched none; continue at the next offset."""
    OFFSET_ILLEGAL = enum.auto()
    """The queue has no message at this offset: it was deleted, or never existed. The next offset is
    the nearest valid one."""


PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 3.0
"""Pause after the first failed pull; it doubles with each further failure, up to the maximum."""

_AFTER_HEARTBEAT: Final = (
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
    ResponseCode.FILTER_DATA_NOT_EXIST,
    ResponseCode.FILTER_DATA_NOT_LATEST,
)
"""The broker has no heartbeat of this consumer, perhaps because the broker has just started."""

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
    """The replica for the next pull: 0, unless the master suggests a slave."""
    body: bytes = b""


class Records(NamedTuple):
    """The matching messages of a response: parallel lists over one buffer."""

    buffer: bytes
    starts: list[int]
    offsets: list[int]
    sizes: list[int]


NOTHING: Final = Records(b"", [], [], [])


@dataclass(frozen=True, slots=True, kw_only=True)
class PullPlan:
    """The fields that all pulls of one queue share."""

    group: str
    queue: MessageQueue
    subscription: Subscription
    count_max: int
    bytes_max: int
    suspend_ms: int
    lite: bool = False
    names: Namespace = Namespace()
    """Converts the names that users see; those of the plan are names on the wire."""

    @property
    def takes_all(self) -> bool:
        """Whether no filter leaves out messages."""
        return self.subscription.is_tag and self.subscription.tags.is_all

    def ext(
        self, offset: int, commit: int | None = None, *, suspend: bool = True
    ) -> dict[str, str]:
        """Return the header fields of a pull from `offset` on; `commit` is an offset to commit.
        Without `suspend` the broker does not wait for messages."""
        sys_flag = PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend and self.suspend_ms else 0)
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
            # With every pull, because a broker that has just started has no subscriptions.
            subscription=self.subscription.expression,
            sub_version=self.subscription.version,
            expression_type=self.subscription.kind,
            max_msg_bytes=self.bytes_max,
        ).to_ext()


_INVALID: Final = (
    RecordDamaged,
    DecompressionError,
    ProtocolError,
    UsageError,
    ValueError,
    IndexError,
    OverflowError,
    struct.error,
)
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
    """Decode a response; None if the broker rejected the pull, and the code says why."""
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


class PullRetry(enum.Enum):
    """What to do before a failed pull is repeated."""

    HEARTBEAT = enum.auto()
    """Announce this consumer: the broker does not know its subscriptions, or not the latest."""
    SAME_BROKER = enum.auto()
    OTHER_REPLICA = enum.auto()
    """Refresh the route, and pull from the next replica."""
    NEVER = enum.auto()


def retry_after(error: ClientError, *, at: int = MASTER) -> PullRetry:
    """Decide what to do after a pull failed at the replica with this id."""
    if at != MASTER:
        return PullRetry.OTHER_REPLICA  # only a master rejects for good
    code = error.code if isinstance(error, RemoteError) else None
    if code in _AFTER_HEARTBEAT:
        return PullRetry.HEARTBEAT
    if error.retry is Retry.SAME_BROKER:
        return PullRetry.SAME_BROKER
    # A queue that no longer exists, because the topic has fewer, is an invalid parameter; a fresh
    # route shows that.
    if error.retry is Retry.NEVER and code != ResponseCode.INVALID_PARAMETER:
        return PullRetry.NEVER
    return PullRetry.OTHER_REPLICA


def pause_after(failures: int) -> float:
    """Return the pause after this many failures in a row, in seconds."""
    return min(PAUSE_S * 2 ** min(failures, 10), PAUSE_S_MAX)


# Where to pull from

SLAVE_PAUSE_S: Final = 10.0
"""How long advice to read from a slave is ignored after a slave failed or lacked messages: a master
notices a slave that is gone only after a while, and a slave that lags needs time."""


class PullFrom(NamedTuple):
    """The replica to ask next for messages of one queue.

    It is the master, until the master advises a slave for old messages or fails. A slave may lack
    messages of its master, so a slave that fails, or responds with less than `is_usable` requires,
    is left for the master. All readers follow these rules.
    """

    broker_id: int = MASTER
    failed_id: int = MASTER
    """The slave that failed last; if the master fails too, the slave after it is next."""
    slaves_after_s: float = 0.0
    """Until this time, advice to read from a slave is ignored."""

    def after_answer(self, answer: PullAnswer, *, at: int, now_s: float) -> "PullFrom":
        """Follow the advice in a usable response of the replica `at`."""
        is_ignored = at == MASTER and now_s < self.slaves_after_s
        broker_id = MASTER if is_ignored else answer.broker_id
        return self if broker_id == self.broker_id else self._replace(broker_id=broker_id)

    def after_failure(self, known: Iterable[int], *, now_s: float) -> "PullFrom":
        """Leave a replica that failed or whose response is not usable; `known` are the ids of all
        replicas."""
        if self.broker_id != MASTER:
            return PullFrom(MASTER, self.broker_id, now_s + SLAVE_PAUSE_S)
        slave = next((other for other in sorted(known) if other > self.failed_id), MASTER)
        return self._replace(broker_id=slave, failed_id=self.failed_id if slave else MASTER)


def is_usable(answer: PullAnswer, *, at: int, asked: int, count: int | None) -> bool:
    """Whether the response of the replica `at` to a pull from offset `asked` may be used.

    Of a slave only messages count: that it has none, or not all, says nothing about its master.
    `count` is the number of messages in the response; None if a filter may have left out some.
    """
    if at == MASTER:
        return True
    if answer.status not in (PullStatus.FOUND, PullStatus.NO_MATCHED):
        return False
    progress = answer.next_offset - asked
    return progress > 0 if count is None else progress == count > 0


def records_of(
    body: bytes,
    *,
    asked: int,
    topic: str = "",
    accepts_tag: Callable[[bytes | None], bool] | None = None,
) -> Records:
    """Return the messages of the response to a pull of `topic` from `asked` on. Raises
    RecordDamaged."""
    found = walk(body, 0, len(body))
    if found.stop is not Stop.END or found.end != len(body):
        raise RecordDamaged(
            f"byte {found.end} of {len(body)} in a pull response does not start a whole record"
        )
    starts = found.starts
    _check_bodies(body, starts)
    if any(_sys_flags(body, starts, _BATCH)):
        body, starts = unpacked(body, starts)
    if is_light(topic):
        changed = bytearray(body)
        renumber(changed, starts, topic)
        body = bytes(changed)
    unpack, at = layout.INT64.unpack_from, layout.AT_QUEUE_OFFSET
    if accepts_tag is not None:
        starts = [start for start in starts if accepts_tag(_tag_of(body, start))]
    offsets: list[int] = [unpack(body, start + at)[0] for start in starts]
    if offsets and offsets[0] < asked:
        # The first messages of a batch, when the pull starts in the middle of it.
        kept = [rank for rank, offset in enumerate(offsets) if offset >= asked]
        starts, offsets = [starts[r] for r in kept], [offsets[r] for r in kept]
    read = layout.INT32.unpack_from
    return Records(body, starts, offsets, [read(body, start)[0] for start in starts])


def _check_bodies(body: bytes, starts: list[int]) -> None:
    """Check the checksums of all bodies, which brokers do not. Raises RecordDamaged."""
    read = layout.INT32.unpack_from
    with memoryview(body) as view:
        for start in starts:
            # Long hosts move the body.
            hosts = body[start + layout.AT_SYS_FLAG + 3] >> 4 & 3
            at = start + layout.HEAD.size + (_HOSTS_EXTRA[hosts] if hosts else 0)
            size = read(body, at - 4)[0]
            if crc32(view[at : at + size]) & CRC_BITS != read(body, start + layout.AT_BODY_CRC)[0]:
                MessageView(body, start).verify()


def _sys_flags(body: bytes, starts: list[int], mask: int) -> list[bool]:
    # Both bits are in the last byte.
    at = layout.AT_SYS_FLAG + 3
    return [body[start + at] & mask == mask for start in starts]


def _tag_of(body: bytes, start: int) -> bytes | None:
    return properties.find(MessageView(body, start).stored_properties, names.TAGS)


def renumber(body: bytearray, starts: list[int], queue: str) -> None:
    """Give records the queue id of a light queue and their offsets in it, which brokers send in a
    property. Raises RecordDamaged for a record of another queue."""
    for start in starts:
        view = MessageView(body, start)
        offset = offset_in(view.stored_properties, queue)
        if offset is None and view.topic == queue:  # sent to the light queue directly
            continue
        if offset is None:
            raise RecordDamaged(f"message {view.message_id} is not in light queue {queue}")
        layout.INT32.pack_into(body, start + layout.AT_QUEUE_ID, 0)
        layout.INT64.pack_into(body, start + layout.AT_QUEUE_OFFSET, offset)


# Batch records


def unpacked(body: bytes, starts: list[int]) -> tuple[bytes, list[int]]:
    """Return the records with every batch record replaced by its messages."""
    parts: list[Bytes] = []
    for start, is_batch in zip(starts, _sys_flags(body, starts, _BATCH), strict=True):
        record = MessageView(body, start)
        parts.append(_messages_of(record) if is_batch else body[start : start + record.total_size])
    joined = b"".join(parts)
    return joined, walk(joined, 0, len(joined)).starts


def _messages_of(record: MessageView) -> bytearray:
    """Return the messages of a batch record, each with its own queue offset."""
    outer = bytes(record.stored_properties)
    base = properties.find(outer, names.INNER_BASE)
    first = int(base) if base is not None else int(record.queue_offset)
    for name in (names.INNER_BASE, names.INNER_COUNT, names.RECORD_CRC):
        outer = properties.without(outer, name)
    key = queue_key(record.topic, record.queue_id)
    # The body is decompressed here; each result is one plain message.
    sys_flag = record.sys_flag & ~(_BATCH | flags.COMPRESSED | flags.COMPRESSION_MASK)
    born_host, store_host = encode_host(record.born_host), encode_host(record.store_host)
    entries = [
        Entry(
            key,
            body,
            join_properties(inner, outer),
            flag,
            sys_flag,
            record.born_timestamp,
            born_host,
            record.reconsume_times,
            record.prepared_offset,
        )
        for flag, body, inner in decode_batch(record.body)
    ]
    chunk = build(entries, store_host=store_host, record_crc=False)
    stamp(
        chunk,
        0,
        len(chunk),
        queue_offsets=range(first, first + len(chunk)),
        physical_offset=record.physical_offset,
        store_timestamp=record.store_timestamp,
    )
    # All of them have the physical offset of the batch.
    put = layout.INT64.pack_into
    for start in chunk.starts:
        put(chunk.data, start + layout.AT_PHYSICAL_OFFSET, record.physical_offset)
    return chunk.data
