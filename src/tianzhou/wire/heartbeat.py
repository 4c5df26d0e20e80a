"""Clients and their subscriptions: heartbeats and lists of clients.

Tolerant where clients differ. C++ leaves out empty sets, sends enumerations as ordinals and
versions as text; Go sends the hash codes of tags as text. The hash codes are not to be trusted at
all: build filters from `sub_string`.
"""

import enum
from typing import Final

import msgspec

from tianzhou.base.kinds import Bytes
from tianzhou.wire.fastjson import BodyReader, Json


class ConsumeType(enum.Enum):
    """In the order of Java's ordinals, as are the next two."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(enum.Enum):
    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(enum.Enum):
    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The subscription of a group to one topic. `sub_version` is the time of its last change."""

    class_filter_mode: bool = False
    code_set: tuple[int, ...] = ()
    expression_type: str = "TAG"
    sub_string: str = "*"
    sub_version: int = 0
    tags_set: tuple[str, ...] = ()
    topic: str


class ConsumerData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    group_name: str
    message_model: MessageModel = MessageModel.CLUSTERING
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False


class ProducerData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    group_name: str


class HeartbeatData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of HEART_BEAT."""

    client_id: str = msgspec.field(name="clientID", default="")
    """Empty if the peer sent none, as RocketMQ allows."""
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: int = 0
    producer_data_set: tuple[ProducerData, ...] = ()
    without_sub: bool = False


class ConsumerList(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to GET_CONSUMER_LIST_BY_GROUP."""

    consumer_id_list: tuple[str, ...] = ()


class ClientConnection(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    client_addr: str
    client_id: str
    language: str = "OTHER"
    version: int = 0


class ProducerConnections(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to GET_PRODUCER_CONNECTION_LIST."""

    connection_set: tuple[ClientConnection, ...] = ()


class ConsumerConnections(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to GET_CONSUMER_CONNECTION_LIST."""

    connection_set: tuple[ClientConnection, ...] = ()
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    subscription_table: dict[str, SubscriptionData] = {}


_ORDINALS: Final[dict[str, tuple[str, ...]]] = {
    "consumeType": tuple(member.value for member in ConsumeType),
    "messageModel": tuple(member.value for member in MessageModel),
    "consumeFromWhere": tuple(member.value for member in ConsumeFromWhere),
}


def _name_ordinals(value: Json) -> None:
    """Replace ordinals of enumerations by names; the decoder rejects unknown ordinals."""
    if isinstance(value, list):
        for item in value:
            _name_ordinals(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            names = _ORDINALS.get(key)
            if names is None:
                _name_ordinals(item)
            elif isinstance(item, int) and 0 <= item < len(names):
                value[key] = names[item]


_HEARTBEAT: Final = BodyReader(HeartbeatData, tidy=_name_ordinals)
_CONSUMERS: Final = BodyReader(ConsumerList)
_PRODUCER_CONNECTIONS: Final = BodyReader(ProducerConnections)
_CONSUMER_CONNECTIONS: Final = BodyReader(ConsumerConnections, tidy=_name_ordinals)


def decode_heartbeat(data: Bytes) -> HeartbeatData:
    return _HEARTBEAT.read(data)


def decode_consumer_list(data: Bytes) -> ConsumerList:
    return _CONSUMERS.read(data)


def decode_producer_connections(data: Bytes) -> ProducerConnections:
    return _PRODUCER_CONNECTIONS.read(data)


def decode_consumer_connections(data: Bytes) -> ConsumerConnections:
    return _CONSUMER_CONNECTIONS.read(data)
