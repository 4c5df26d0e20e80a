"""Send requests and their responses.

A `SendRequest` is the content of one frame: one message (SEND_MESSAGE_V2) or many
(SEND_BATCH_MESSAGE). It is encoded once and sent as often as needed; only the queue and the
time differ between attempts. So a message that is stored twice, because a response was lost, has
the same unique id both times.

Messages that are sent one by one can be put together into batches. One batch is open for each kind
of message: topic, queue if the message has one, and whether the response waits for the disk.
`OpenBatches` decides which batches are full; `aio.batcher` keeps the time, `aio.sender` sends.
"""

import base64
import binascii
import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import Bytes
from tianzhou.base.limits import BODY_BYTES_MAX, PROPERTIES_BYTES_MAX
from tianzhou.client.core.arguments import check_text
from tianzhou.client.core.routing import TopicRoute, check_message, queue_for_key
from tianzhou.client.errors import BadAnswer, ClientError, remote_error
from tianzhou.record import compression, flags, properties
from tianzhou.record.batch import ENTRY_BYTES_MIN, HEAD, encode_batch
from tianzhou.record.layout import INT16
from tianzhou.record.message import Message
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.codec import Header
from tianzhou.wire.names import RETRY_PREFIX
from tianzhou.wire.queues import MessageQueue

Token = TypeVar("Token")


class Compression(enum.Enum):
    """Compression of large bodies.

    The value is the part of the system flag that names the compression.

        ProducerOptions(compression=Compression.ZSTD, compress_over_bytes=16 * 1024)
    """

    NONE = 0
    LZ4 = flags.COMPRESSED | flags.COMPRESSION_LZ4
    ZSTD = flags.COMPRESSED | flags.COMPRESSION_ZSTD
    ZLIB = flags.COMPRESSED | flags.COMPRESSION_ZLIB
    """Every client can read it, even those that do not know the other two."""


class SendStatus(enum.Enum):
    """Status of a stored message.

    All but SEND_OK mean a weaker guarantee than requested: the message is stored, but was not
    flushed or replicated in time.

        if result.status is not SendStatus.SEND_OK:
            log.warning("%s: %s", result.message_id, result.status.name)
    """

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE


COMPRESS_HERE_BYTES: Final = 64 * 1024
"""Larger bodies are compressed in a thread, because that blocks the event loop for milliseconds."""

_NO_COMPRESSION: Final = Compression.NONE
_STATUSES: Final[dict[int, SendStatus]] = {int(status.value): status for status in SendStatus}


class SendResult(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how one message was stored.

    `message_id` is assigned by the producer, `offset_id` by the broker.

        result = await producer.send(Message("orders", b"paid"))
        print(result.status, result.message_id, result.queue_offset)
    """

    status: SendStatus
    message_id: str
    """Assigned by the producer: the id that consumers and tools show."""
    offset_id: str
    """Assigned by the broker: the position of the message in its log."""
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None
    """For scheduled messages: the handle that `recall` needs."""
    region_id: str = ""
    is_traced: bool = True
    """Whether the broker allows tracing of its messages."""

    def __repr__(self) -> str:
        queue = f"{self.queue.topic}@{self.queue.broker_name}:{self.queue.queue_id}"
        return (
            f"SendResult({self.status.name}, message_id={self.message_id!r}, queue={queue!r}, "
            f"queue_offset={self.queue_offset})"
        )


class SendRequest(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    code: int = RequestCode.SEND_MESSAGE_V2
    body: Bytes
    properties: str
    message_ids: tuple[str, ...]
    sys_flag: int = 0
    flag: int = 0

    @property
    def size(self) -> int:
        return len(self.body) + len(self.properties)


class MessageEncoder:
    """Encodes the requests for the single messages of a producer; large bodies are compressed."""

    __slots__ = ("_compression", "_over_bytes", "slow_bytes")

    def __init__(self, compression: Compression, over_bytes: int) -> None:
        self._compression = compression
        self._over_bytes = over_bytes
        is_slow = compression is not Compression.NONE
        self.slow_bytes: float = max(over_bytes, COMPRESS_HERE_BYTES) if is_slow else inf
        """Size of a body from which on `request` would block an event loop."""

    def request(
        self,
        message: Message,
        message_id: str,
        added: Mapping[bytes, str] | None = None,
        *,
        sys_flag: int = 0,
        code: int = RequestCode.SEND_MESSAGE_V2,
    ) -> SendRequest:
        """Return the request for one message. `added` are properties that the client adds."""
        body = message.body
        encoded = message.encode_properties(added) if added else message.encoded_properties
        if len(body) >= self._over_bytes and self._compression is not _NO_COMPRESSION:
            compressed = self._compression.value
            smaller = compression.compress(body, compressed)
            if len(smaller) < len(body):
                body, sys_flag = smaller, sys_flag | compressed
        return SendRequest(
            topic=message.topic,
            code=code,
            body=body,
            properties=with_id(encoded, message_id).decode(),
            message_ids=(message_id,),
            sys_flag=sys_flag,
            flag=message.flag,
        )


def with_id(encoded: bytes, message_id: str) -> bytes:
    """Return the property string with the unique id. Ids are hexadecimal and need no check."""
    encoded = b"%bUNIQ_KEY\x01%b\x02" % (encoded, message_id.encode())
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise properties.too_long(encoded)
    return encoded


def _check_is_list(messages: object) -> None:
    if not isinstance(messages, Sequence):
        raise UsageError(f"a batch must be a list of messages, not {type(messages).__name__}")


def check_batchable(messages: Sequence[Message]) -> None:
    """Raise UsageError for messages that brokers do not accept as one batch."""
    if not messages:
        raise UsageError("a batch needs at least one message")
    _check_is_list(messages)
    first = messages[0]
    for message in messages:
        check_message(message)
        if message.topic != first.topic:
            raise UsageError(
                f"a batch is for one topic; this one has {first.topic!r} and {message.topic!r}"
            )
        if message.wait_store_ok != first.wait_store_ok:
            raise UsageError("messages of a batch have the same wait_store_ok")
        if message.is_delayed:
            raise UsageError("a delayed message can't be in a batch; send it by itself")
        if message.topic.startswith(RETRY_PREFIX):
            raise UsageError(f"topic {message.topic!r} takes no batches")


def batch_request(
    messages: Sequence[Message], message_ids: Sequence[str], body_bytes_max: int = BODY_BYTES_MAX
) -> SendRequest:
    """Return one request for a batch. Raises UsageError if it is too large."""
    body = encode_batch(
        (message.flag, message.body, with_id(message.encoded_properties, message_id))
        for message, message_id in zip(messages, message_ids, strict=True)
    )
    if len(body) > body_bytes_max:
        raise UsageError(
            f"a batch of {len(messages)} messages takes {len(body)} bytes; at most"
            f" {body_bytes_max}: send fewer at once, or let the producer gather them"
        )
    # These properties apply to each message of the batch; their ids are their own.
    outer = "" if messages[0].wait_store_ok else "WAIT\x01false\x02"
    return SendRequest(
        topic=messages[0].topic,
        code=RequestCode.SEND_BATCH_MESSAGE,
        body=body,
        properties=outer,
        message_ids=tuple(message_ids),
    )


# Batching

PROPERTIES_ADDED_BYTES = 48
"""Size of the unique id as a property."""


class Kind(NamedTuple):
    topic: str
    queue: MessageQueue | None
    wait_store_ok: bool


def kind_of(message: Message, queue: MessageQueue | None, route: TopicRoute | None) -> Kind | None:
    """Return the kind of batch for a message; None if it depends on a route not known yet."""
    if queue is None and message.sharding_key is not None:
        if route is None or not route.write_queues:
            return None
        queue = queue_for_key(route.write_queues, message.sharding_key)
    return Kind(message.topic, queue, message.wait_store_ok)


@dataclass(slots=True)
class Batch(Generic[Token]):
    kind: Kind
    messages: list[Message] = field(default_factory=list[Message])
    tokens: list[Token] = field(default_factory=list[Token])
    size: int = 0


def size_in_batch(message: Message) -> int:
    """Return an upper bound of the bytes that a message takes in a batch."""
    encoded = len(message.encoded_properties)
    return ENTRY_BYTES_MIN + len(message.body) + encoded + PROPERTIES_ADDED_BYTES


class OpenBatches(Generic[Token]):
    """The batch of each kind that still accepts messages.

    Owner: the event loop of the producer.
    Invariant: no open batch is empty, has more messages than `count_max`, or is larger than
    `bytes_max` unless it has a single message.
    """

    def __init__(self, *, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._open: dict[Kind, Batch[Token]] = {}

    def accepts(self, message: Message) -> bool:
        """Whether a message may be in a batch at all. One whose properties become too long with
        the unique id must fail alone."""
        properties_size = len(message.encoded_properties) + PROPERTIES_ADDED_BYTES
        if message.is_delayed or properties_size > PROPERTIES_BYTES_MAX:
            return False
        return size_in_batch(message) <= self._bytes_max

    def add(self, kind: Kind, message: Message, token: Token) -> list[Batch[Token]]:
        """Add a message to the batch of its kind; return the batches that must be sent now."""
        size = size_in_batch(message)
        leaving: list[Batch[Token]] = []
        batch = self._open.get(kind)
        if batch is not None and batch.size + size > self._bytes_max:
            leaving.append(batch)
            batch = None
        if batch is None:
            batch = self._open[kind] = Batch(kind)
        batch.messages.append(message)
        batch.tokens.append(token)
        batch.size += size
        if len(batch.messages) >= self._count_max:
            leaving.append(self._open.pop(kind))
        return leaving

    def open_batch(self, kind: Kind) -> Batch[Token] | None:
        return self._open.get(kind)

    def take(self, kind: Kind) -> Batch[Token] | None:
        """Close and return the open batch of a kind."""
        return self._open.pop(kind, None)

    def take_all(self) -> Iterator[Batch[Token]]:
        while self._open:
            yield self._open.popitem()[1]


# Bulk batches


class Entry(NamedTuple):
    """One message of a bulk batch: its body and its encoded properties."""

    body: Bytes
    properties: bytes


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Encode a batch whose entries are known to be valid and have no flags, as `encode_batch`
    would. Bulk writers encode thousands of rows, for which the checks would cost too much."""
    parts: list[Bytes] = []
    pack_head, pack_size, fixed = HEAD.pack, INT16.pack, ENTRY_BYTES_MIN
    for body, encoded in entries:
        body_size, size = len(body), len(encoded)
        parts += (
            pack_head(fixed + body_size + size, 0, 0, 0, body_size),
            body,
            pack_size(size),
            encoded,
        )
    return b"".join(parts)


# Fields and responses


def is_stored(code: int) -> bool:
    """Whether a response code means that the messages are stored, if with a weaker guarantee."""
    return code in _STATUSES


class SendFields(msgspec.Struct, frozen=True):
    """Header fields that are the same in all sends of a producer."""

    group: str
    default_topic: str
    default_topic_queues: int

    def ext(self, request: SendRequest, queue: MessageQueue, now_ms: int) -> dict[str, str]:
        """The fields of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE; see `SendMessageV2Request`."""
        is_batch = request.code == RequestCode.SEND_BATCH_MESSAGE
        return {
            "a": self.group,
            "b": request.topic,
            "c": self.default_topic,
            "d": str(self.default_topic_queues),
            "e": str(queue.queue_id),
            "f": str(request.sys_flag),
            "g": str(now_ms),
            "h": str(request.flag),
            "i": request.properties,
            "j": "0",
            "k": "false",
            "m": "true" if is_batch else "false",
            "n": queue.broker_name,
        }


def outcome_of(
    answer: Header, request: SendRequest, queue: MessageQueue, address: str
) -> list[SendResult] | ClientError:
    """Return a result for each message, or the error if the broker stored nothing or its response
    lacks a required field."""
    status = _STATUSES.get(answer.code)
    if status is None:
        return remote_error(address, answer.code, answer.remark)
    ext = answer.ext
    try:
        first, queue_id, place = int(ext["queueOffset"]), int(ext["queueId"]), ext["msgId"]
    except (KeyError, ValueError) as error:
        return BadAnswer(address, request.code, repr(error))
    if queue_id != queue.queue_id:  # delayed messages wait elsewhere
        queue = MessageQueue(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue_id)
    ids, region = request.message_ids, ext.get("MSG_REGION", "")
    is_traced = ext.get("TRACE_ON", "false") == "true"
    if len(ids) == 1:
        return [
            SendResult(
                status=status,
                message_id=ids[0],
                offset_id=place,
                queue=queue,
                queue_offset=first,
                transaction_id=ext.get("transactionId"),
                recall_handle=ext.get("recallHandle"),
                region_id=region,
                is_traced=is_traced,
            )
        ]
    places = place.split(",")
    if len(places) != len(ids):
        # Topics whose batches are one record have one place for all of them.
        places = [places[0]] * len(ids)
    return [
        SendResult(
            status=status,
            message_id=message_id,
            offset_id=offset_id,
            queue=queue,
            queue_offset=offset,
            region_id=region,
            is_traced=is_traced,
        )
        for offset, (message_id, offset_id) in enumerate(zip(ids, places, strict=True), first)
    ]


def broker_of_handle(topic: str, handle: str | None) -> str:
    """Return the broker that a recall goes to. Raises UsageError for an invalid handle."""
    if handle is None:
        raise UsageError("there is no recall handle: only timed messages have one, from RocketMQ 5")
    check_text("topic", topic)
    check_text("handle", handle)
    try:
        parts = base64.urlsafe_b64decode(handle.encode()).decode().split(" ")
    except (binascii.Error, UnicodeError) as error:
        raise UsageError(f"invalid recall handle {handle!r}: {error}") from error
    if len(parts) != 5 or parts[0] != "v1":
        raise UsageError(f"invalid recall handle {handle!r}; use `recall_handle` of a SendResult")
    if parts[1] != topic:
        raise UsageError(f"the handle is of topic {parts[1]!r}, not {topic!r}")
    return parts[2]
