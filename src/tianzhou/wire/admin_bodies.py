"""Bodies for administration only: connections, progress of groups, rates."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tianzhou.base.kinds import Bytes
from tianzhou.wire.fastjson import BodyReader, encode, object_map
from tianzhou.wire.heartbeat import SubscriptionData
from tianzhou.wire.queues import ConsumeStats, MessageQueue, encode_consume_stats
from tianzhou.wire.tables import SubscriptionGroupConfig


class SubscriptionGroupList(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: tuple[SubscriptionGroupConfig, ...] = ()


class GroupList(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to QUERY_TOPIC_CONSUME_BY_WHO."""

    group_list: tuple[str, ...] = ()


class GroupForbidden(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to UPDATE_AND_GET_GROUP_FORBIDDEN."""

    group: str
    readable: bool
    topic: str


class ProducerClient(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    client_id: str
    language: str
    last_update_timestamp: int
    remote_ip: str = msgspec.field(name="remoteIP")
    version: int


class ProducerTable(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to GET_ALL_PRODUCER_INFO: clients by group."""

    data: dict[str, list[ProducerClient]] = {}


class QueueTimeSpan(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """From when to when the messages of a queue are, and of when the next to consume is."""

    consume_time_stamp: int
    delay_time: int
    max_time_stamp: int
    message_queue: MessageQueue
    min_time_stamp: int


class ConsumeTimeSpans(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: tuple[QueueTimeSpan, ...] = ()


class GroupSubscription(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str
    subscription_data: SubscriptionData | None = None
    topic: str


class StatsWindow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    avgpt: float = 0.0
    sum: int = 0
    tps: float = 0.0


class BrokerStats(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to VIEW_BROKER_STATS_DATA."""

    stats_day: StatsWindow = StatsWindow()
    stats_hour: StatsWindow = StatsWindow()
    stats_minute: StatsWindow = StatsWindow()


class QueueUnit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One entry of a consume queue. We keep neither extensions nor bit maps of filters."""

    bit_map: str | None = None
    eval: bool = False
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: int
    physic_size: int
    tags_code: int


class QueueUnits(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to QUERY_CONSUME_QUEUE."""

    filter_data: str | None = None
    max_queue_index: int
    min_queue_index: int
    queue_data: tuple[QueueUnit, ...] = ()
    subscription_data: SubscriptionData | None = None


class QueueProcess(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One queue as a consumer holds it; what another kind of client leaves out reads as 0."""

    cached_msg_count: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_size_in_mi_b: int = 0
    commit_offset: int = 0
    droped: bool = False
    last_consume_timestamp: int = 0
    last_pull_timestamp: int = 0
    locked: bool = False


class _RunningInfoText(msgspec.Struct, rename="camel"):
    jstack: str | None = None
    mq_table: dict[str, QueueProcess] = {}
    properties: dict[str, str] = {}
    subscription_set: tuple[SubscriptionData, ...] = ()


class RunningInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's response to GET_CONSUMER_RUNNING_INFO."""

    properties: dict[str, str]
    queues: dict[MessageQueue, QueueProcess]
    stacks: str
    """Stack traces of its threads, if requested."""
    subscriptions: tuple[SubscriptionData, ...]


class _GroupStatusText(msgspec.Struct, rename="camel"):
    consumer_table: dict[str, dict[str, int]] = {}


class HalfMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A transactional message that is not decided."""

    checks: int
    """How many check-backs its producer received."""
    group: str
    msg_id: str
    offset_msg_id: str
    """Log position of the half message, as in END_TRANSACTION and RESUME_CHECK_HALF_MESSAGE."""
    queue_offset: int
    store_timestamp: int
    topic: str


class HalfMessages(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to LIST_HALF_MESSAGES and LIST_PARKED_MESSAGES, the oldest first."""

    messages: tuple[HalfMessage, ...] = ()
    total: int = 0


class TimedMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message that waits for its delivery time."""

    deliver_timestamp: int
    msg_id: str
    offset_msg_id: str
    recall_handle: str | None = None
    """What RECALL_MESSAGE names; messages without a unique id have none."""
    store_timestamp: int
    topic: str


class TimedMessages(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to LIST_TIMERS, the soonest first."""

    messages: tuple[TimedMessage, ...] = ()
    total: int = 0
    """Of all topics; may include recalled messages."""


class HaConnection(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A slave, as RocketMQ's tools show it."""

    addr: str
    diff: int
    in_sync: bool
    slave_ack_offset: int
    transfer_from_where: int = 0
    transferred_byte_in_second: int = 0


class HaStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to GET_BROKER_HA_STATUS."""

    ha_client_runtime_info: dict[str, int] = {}
    ha_connection_info: tuple[HaConnection, ...] = ()
    in_sync_slave_nums: int = 0
    master: bool = True
    master_commit_log_max_offset: int


class _ClientStatusText(msgspec.Struct, rename="camel"):
    message_queue_table: dict[str, int] = {}


class CleaningView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to VIEW_CLEANING and CLEAN_LOG: what is removed, and what remains."""

    begin: int
    """Where the log starts now."""
    files: int
    """Log files to remove."""
    held: int = 0
    """Log files that are as old, but stay."""
    held_because: str = ""
    keep_hours: int
    """Messages younger than this stay."""
    oldest_ms: int = -1
    """When the oldest message that remains was stored; -1: none remains."""
    size: int
    """Bytes of these log files."""
    unused_topics: tuple[str, ...] = ()
    """Topics that no longer exist, but still have queues; they are removed, too."""
    until: int
    """Where the log starts afterwards."""

    @property
    def is_empty(self) -> bool:
        return not self.files and not self.unused_topics


decode_cleaning_view = BodyReader(CleaningView).read


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """Response to ACKNOWLEDGE_INCIDENTS: the closed incidents."""

    acknowledged: tuple[str, ...] = ()


_ACKNOWLEDGED: Final = BodyReader(Acknowledged)
_GROUP_CONFIGS: Final = BodyReader(SubscriptionGroupList)
_CLIENT_STATUS: Final = BodyReader(_ClientStatusText)
_QUEUE: Final = BodyReader(MessageQueue)
_GROUPS: Final = BodyReader(GroupList)
_PRODUCERS: Final = BodyReader(ProducerTable)
_TIME_SPANS: Final = BodyReader(ConsumeTimeSpans)
_STATS: Final = BodyReader(BrokerStats)
_RUNNING: Final = BodyReader(_RunningInfoText)
_GROUP_STATUS: Final = BodyReader(_GroupStatusText)
_HALVES: Final = BodyReader(HalfMessages)
_TIMERS: Final = BodyReader(TimedMessages)


def decode_group_config_list(data: Bytes) -> SubscriptionGroupList:
    return _GROUP_CONFIGS.read(data)


def encode_correction_offsets(offsets: Mapping[int, int]) -> bytes:
    """Response to QUERY_CORRECTION_OFFSET."""
    return encode({"correctionOffsets": offsets})


def decode_client_status(data: Bytes) -> dict[MessageQueue, int]:
    """A consumer's response to GET_CONSUMER_STATUS_FROM_CLIENT: the offsets it holds."""
    table = _CLIENT_STATUS.read(data).message_queue_table
    return {_QUEUE.read(queue.encode()): offset for queue, offset in table.items()}


def encode_group_status(offsets: Mapping[str, Mapping[MessageQueue, int]]) -> bytes:
    """Response to INVOKE_BROKER_TO_GET_CONSUMER_STATUS: offsets by client."""
    clients = {client: object_map(rows.items()) for client, rows in offsets.items()}
    return encode({"consumerTable": clients, "messageQueueTable": {}})


def encode_broker_consume_stats(
    address: str, stats: Sequence[tuple[str, list[ConsumeStats]]], *, total_diff: int
) -> bytes:
    """Response to GET_BROKER_CONSUME_STATS: for each group the state of each of its topics."""
    rows = [
        {group: [msgspec.Raw(encode_consume_stats(one)) for one in found]} for group, found in stats
    ]
    return encode(
        {
            "brokerAddr": address,
            "consumeStatsList": rows,
            "totalDiff": total_diff,
            "totalInflightDiff": 0,
        }
    )


def decode_half_messages(data: Bytes) -> HalfMessages:
    return _HALVES.read(data)


def decode_timed_messages(data: Bytes) -> TimedMessages:
    return _TIMERS.read(data)


def decode_group_list(data: Bytes) -> GroupList:
    return _GROUPS.read(data)


def decode_producer_table(data: Bytes) -> ProducerTable:
    return _PRODUCERS.read(data)


def decode_time_spans(data: Bytes) -> ConsumeTimeSpans:
    return _TIME_SPANS.read(data)


def decode_broker_stats(data: Bytes) -> BrokerStats:
    return _STATS.read(data)


def decode_running_info(data: Bytes) -> RunningInfo:
    text = _RUNNING.read(data)
    return RunningInfo(
        properties=text.properties,
        queues={_QUEUE.read(queue.encode()): row for queue, row in text.mq_table.items()},
        stacks=text.jstack or "",
        subscriptions=text.subscription_set,
    )


def decode_group_status(data: Bytes) -> dict[str, dict[MessageQueue, int]]:
    """Response to INVOKE_BROKER_TO_GET_CONSUMER_STATUS: the offsets that each client holds."""
    table = _GROUP_STATUS.read(data).consumer_table
    return {
        client: {_QUEUE.read(queue.encode()): offset for queue, offset in rows.items()}
        for client, rows in table.items()
    }


def decode_acknowledged(data: Bytes) -> list[str]:
    return list(_ACKNOWLEDGED.read(data).acknowledged)
