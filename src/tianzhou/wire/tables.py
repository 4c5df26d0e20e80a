"""Topics, groups and offsets as tables: sent by brokers to name servers and slaves, and
saved in their configuration directory. Both have the same shape.

Fields that Java 4 lacks have the values here that Java 5 assumes for them.
"""

from typing import Final

import msgspec

from tianzhou.base.kinds import Bytes
from tianzhou.wire.fastjson import BodyReader
from tianzhou.wire.names import PERM_READ_WRITE


class DataVersion(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which state of a table this is. Two tables are the same if all three are."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    attributes: dict[str, str] = {}
    order: bool = False
    perm: int = PERM_READ_WRITE
    read_queue_nums: int = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str
    topic_sys_flag: int = 0
    write_queue_nums: int = 16


class GroupRetryPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    type: str = "CUSTOMIZED"


class SubscriptionGroupConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    attributes: dict[str, str] = {}
    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: int = 15
    group_name: str
    group_retry_policy: GroupRetryPolicy = GroupRetryPolicy()
    group_sys_flag: int = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    which_broker_when_consume_slowly: int = 1


class TopicConfigTable(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to GET_ALL_TOPIC_CONFIG; part of a registration; topics.json."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}


class TopicConfigList(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of UPDATE_AND_CREATE_TOPIC_LIST."""

    topic_config_list: tuple[TopicConfig, ...] = ()


class RegisterBrokerBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of REGISTER_BROKER when it is not compressed."""

    filter_server_list: tuple[str, ...] = ()
    topic_config_serialize_wrapper: TopicConfigTable = TopicConfigTable()


class SubscriptionGroupTable(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to GET_ALL_SUBSCRIPTIONGROUP_CONFIG; subscriptionGroup.json."""

    data_version: DataVersion = DataVersion()
    forbidden_table: dict[str, dict[str, int]] = {}
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}


class ConsumerOffsetTable(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to GET_ALL_CONSUMER_OFFSET; consumerOffset.json. Keys: `topic@group`, queue id."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[str, dict[int, int]] = {}
    tz_resets: dict[str, dict[int, int]] | msgspec.UnsetType = msgspec.UNSET
    """When offsets were last reset or deleted, in milliseconds. RocketMQ ignores this field."""


class DelayOffsetTable(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to GET_ALL_DELAY_OFFSET; delayOffset.json. Keys are levels, counted from 1."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[int, int] = {}


class KVTable(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A plain table, as in GET_KVLIST_BY_NAMESPACE and GET_BROKER_RUNTIME_INFO."""

    table: dict[str, str] = {}


class TopicList(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to the requests that list topics."""

    broker_addr: str | msgspec.UnsetType = msgspec.UNSET
    topic_list: tuple[str, ...] = ()


_DATA_VERSION: Final = BodyReader(DataVersion)
_TOPIC_CONFIG: Final = BodyReader(TopicConfig)
_GROUP_CONFIG: Final = BodyReader(SubscriptionGroupConfig)
_TOPIC_TABLE: Final = BodyReader(TopicConfigTable)
_TOPIC_CONFIG_LIST: Final = BodyReader(TopicConfigList)
_REGISTER_BROKER: Final = BodyReader(RegisterBrokerBody)
_GROUP_TABLE: Final = BodyReader(SubscriptionGroupTable)
_CONSUMER_OFFSETS: Final = BodyReader(ConsumerOffsetTable)
_DELAY_OFFSETS: Final = BodyReader(DelayOffsetTable)
_KV_TABLE: Final = BodyReader(KVTable)
_TOPIC_LIST: Final = BodyReader(TopicList)


def decode_data_version(data: Bytes) -> DataVersion:
    return _DATA_VERSION.read(data)


def decode_topic_config(data: Bytes) -> TopicConfig:
    return _TOPIC_CONFIG.read(data)


def decode_topic_config_list(data: Bytes) -> TopicConfigList:
    return _TOPIC_CONFIG_LIST.read(data)


def decode_topic_table(data: Bytes) -> TopicConfigTable:
    return _TOPIC_TABLE.read(data)


def decode_register_broker(data: Bytes) -> RegisterBrokerBody:
    return _REGISTER_BROKER.read(data)


def decode_group_config(data: Bytes) -> SubscriptionGroupConfig:
    return _GROUP_CONFIG.read(data)


def decode_group_table(data: Bytes) -> SubscriptionGroupTable:
    return _GROUP_TABLE.read(data)


def decode_consumer_offsets(data: Bytes) -> ConsumerOffsetTable:
    return _CONSUMER_OFFSETS.read(data)


def decode_delay_offsets(data: Bytes) -> DelayOffsetTable:
    return _DELAY_OFFSETS.read(data)


def decode_kv_table(data: Bytes) -> KVTable:
    return _KV_TABLE.read(data)


def decode_topic_list(data: Bytes) -> TopicList:
    return _TOPIC_LIST.read(data)
