"""Message queues as peers name them, and the bodies that are tables over queues.

Java's maps with a queue as the key are written with the queue's object where the key should be;
Java insists on that when it reads them (`fastjson.object_map`).
"""

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from tianzhou.base.kinds import Bytes
from tianzhou.wire.fastjson import BodyReader, encode, object_map

Row = TypeVar("Row")


class MessageQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One queue of a topic on one broker; the key of many tables.

        queue = MessageQueue(topic="orders", broker_name="broker-a", queue_id=0)

    Queues with equal fields are equal.
    """

    broker_name: str
    queue_id: int
    topic: str


class LockBatch(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    client_id: str
    consumer_group: str
    mq_set: tuple[MessageQueue, ...] = ()
    only_this_broker: bool = False


class LockedQueues(msgspec.Struct, frozen=True, kw_only=True):
    """Response to LOCK_BATCH_MQ: the queues that the client has now."""

    queues: tuple[MessageQueue, ...] = msgspec.field(name="lockOKMQSet", default=())


class TopicOffset(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One queue in the response to GET_TOPIC_STATS_INFO."""

    last_update_timestamp: int = 0
    max_offset: int = 0
    min_offset: int = 0


class OffsetWrapper(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One queue in the response to GET_CONSUME_STATS."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0


class TopicStats(msgspec.Struct, frozen=True, kw_only=True):
    offset_table: dict[MessageQueue, TopicOffset]
    topic_put_tps: float = 0.0


class ConsumeStats(msgspec.Struct, frozen=True, kw_only=True):
    consume_tps: float = 0.0
    offset_table: dict[MessageQueue, OffsetWrapper]


# The same bodies as they look once object keys have become strings.
class _TopicStatsText(msgspec.Struct, rename="camel"):
    offset_table: dict[str, TopicOffset] = {}
    topic_put_tps: float = 0.0


class _ConsumeStatsText(msgspec.Struct, rename="camel"):
    consume_tps: float = 0.0
    offset_table: dict[str, OffsetWrapper] = {}


class _OffsetsText(msgspec.Struct, rename="camel"):
    offset_table: dict[str, int] = {}


_QUEUE: Final = BodyReader(MessageQueue)
_TOPIC_STATS: Final = BodyReader(_TopicStatsText)
_CONSUME_STATS: Final = BodyReader(_ConsumeStatsText)
_OFFSETS: Final = BodyReader(_OffsetsText)
_LOCK_BATCH: Final = BodyReader(LockBatch)
_LOCKED_QUEUES: Final = BodyReader(LockedQueues)


def _by_queue(rows: Mapping[str, Row]) -> dict[MessageQueue, Row]:
    return {_QUEUE.read(key.encode()): row for key, row in rows.items()}


def decode_lock_batch(data: Bytes) -> LockBatch:
    return _LOCK_BATCH.read(data)


def decode_locked_queues(data: Bytes) -> LockedQueues:
    return _LOCKED_QUEUES.read(data)


def decode_topic_stats(data: Bytes) -> TopicStats:
    text = _TOPIC_STATS.read(data)
    return TopicStats(offset_table=_by_queue(text.offset_table), topic_put_tps=text.topic_put_tps)


def encode_topic_stats(stats: TopicStats) -> bytes:
    return encode(
        {
            "offsetTable": object_map(stats.offset_table.items()),
            "topicPutTps": stats.topic_put_tps,
        }
    )


def decode_consume_stats(data: Bytes) -> ConsumeStats:
    text = _CONSUME_STATS.read(data)
    return ConsumeStats(offset_table=_by_queue(text.offset_table), consume_tps=text.consume_tps)


def encode_consume_stats(stats: ConsumeStats) -> bytes:
    return encode(
        {"consumeTps": stats.consume_tps, "offsetTable": object_map(stats.offset_table.items())}
    )


def decode_queue_offsets(data: Bytes) -> dict[MessageQueue, int]:
    """Body of RESET_CONSUMER_CLIENT_OFFSET and of the response to INVOKE_BROKER_TO_RESET_OFFSET."""
    return _by_queue(_OFFSETS.read(data).offset_table)


def encode_queue_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    return encode({"offsetTable": object_map(offsets.items())})


def encode_queue_offsets_as_list(offsets: Mapping[MessageQueue, int]) -> bytes:
    """The same for C++ clients, whose parser has no object keys."""
    rows = [{**msgspec.to_builtins(queue), "offset": offset} for queue, offset in offsets.items()]
    return encode({"offsetTable": rows})
