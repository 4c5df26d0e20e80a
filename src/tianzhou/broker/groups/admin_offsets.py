"""Administration of offsets: reports, copies between groups, and resets.

RocketMQ 4 rejects a reset while no consumer is online, because consumers apply it; RocketMQ 5
changes the broker only. Tianzhou does both: the committed offsets change at once, so that a stopped
group can be reset, and every connected consumer is notified, so that it drops the messages in its
memory and resumes at the new offset.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.base.steps import Steps
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import Groups, Sessions, check_commit
from tianzhou.broker.groups.lags import LOOKUPS_PER_STEP
from tianzhou.broker.stats import MINUTE, Stats
from tianzhou.broker.topics.store_times import last_store_time, store_time
from tianzhou.broker.topics.topics import Topics
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.store.protocols import QueueReader
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import (
    CloneGroupOffsetRequest,
    GetBrokerConsumeStatsRequest,
    GetConsumeStatsRequest,
    GroupTopicRequest,
    QueryCorrectionOffsetRequest,
    ResetOffsetRequest,
)
from tianzhou.wire._generated_headers_client import ResetClientOffsetRequest
from tianzhou.wire.admin_bodies import (
    ConsumeTimeSpans,
    QueueTimeSpan,
    encode_broker_consume_stats,
    encode_correction_offsets,
)
from tianzhou.wire.codec import Language
from tianzhou.wire.queues import (
    ConsumeStats,
    MessageQueue,
    OffsetWrapper,
    encode_consume_stats,
    encode_queue_offsets,
    encode_queue_offsets_as_list,
)
from tianzhou.wire.tables import TopicConfig

_NEVER: Final = (1 << 63) - 1
"""RocketMQ's value for an offset that needs no correction."""
log: Final = logging.getLogger("tianzhou.broker")


@dataclass(slots=True, kw_only=True)
class AdminOffsets:
    config: BrokerConfig
    address: str
    store: QueueReader
    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets
    sessions: Sessions
    stats: Stats
    clock: Clock

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.broker_consume_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_spans,
            RequestCode.QUERY_CORRECTION_OFFSET: self.corrections,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all,
        }

    # Lag

    def consume_stats(self, request: Request) -> Steps[Reply]:
        asked = GetConsumeStatsRequest.from_ext(request.header.ext)
        named = [asked.topic or "", *(asked.topic_list or "").split(";")]
        names = [name for name in named if name] or self.offsets.topics_of(asked.consumer_group)
        rows: dict[MessageQueue, OffsetWrapper] = {}
        rate = 0.0
        for topic in self._consumed(asked.consumer_group, names):
            before = len(rows)
            rows |= self._rows(asked.consumer_group, topic)
            if len(rows) // LOOKUPS_PER_STEP > before // LOOKUPS_PER_STEP:
                yield
            rate += self._rate(asked.consumer_group, topic.topic_name)
        return Reply(body=encode_consume_stats(ConsumeStats(consume_tps=rate, offset_table=rows)))

    def broker_consume_stats(self, request: Request) -> Steps[Reply]:
        asked = GetBrokerConsumeStatsRequest.from_ext(request.header.ext)
        found: list[tuple[str, list[ConsumeStats]]] = []
        behind = count = 0
        for group in sorted(self.groups.all()):
            stats: list[ConsumeStats] = []
            for topic in self._consumed(group, self.offsets.topics_of(group)):
                if asked.is_order and not topic.order:
                    continue
                rows = self._rows(group, topic)
                behind += sum(row.broker_offset - row.consumer_offset for row in rows.values())
                rate = self._rate(group, topic.topic_name)
                stats.append(ConsumeStats(consume_tps=rate, offset_table=rows))
                count += len(rows)
                if count >= LOOKUPS_PER_STEP:
                    count = 0
                    yield
            found.append((group, stats))
        return Reply(body=encode_broker_consume_stats(self.address, found, total_diff=behind))

    def _consumed(self, group: str, names: Iterable[str]) -> list[TopicConfig]:
        """The existing topics of these names. While the group is online, topics that it no longer
        subscribes to are left out: it would never catch up there."""
        members = self.sessions.consumers.get(group)
        subscribed = members.subscriptions if members else {}
        found = [self.topics.get(name) for name in dict.fromkeys(names)]
        return [t for t in found if t and (not subscribed or t.topic_name in subscribed)]

    def _rows(self, group: str, topic: TopicConfig) -> dict[MessageQueue, OffsetWrapper]:
        rows: dict[MessageQueue, OffsetWrapper] = {}
        committed = self.offsets.of(group, topic.topic_name)
        for queue_id in range(topic.read_queue_nums):
            key = queue_key(topic.topic_name, queue_id)
            offset = max(committed.get(queue_id, 0), 0)
            rows[self._queue(topic.topic_name, queue_id)] = OffsetWrapper(
                broker_offset=self.store.max_offset(key),
                consumer_offset=offset,
                last_timestamp=store_time(self.store, key, offset - 1) or 0,
                pull_offset=offset,
            )
        return rows

    def _rate(self, group: str, topic: str) -> float:
        flow = self.stats.group_gets.get((topic, group))
        return flow.growth(MINUTE, self.clock.now_ms()).per_second if flow else 0.0

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(broker_name=self.config.name, queue_id=queue_id, topic=topic)

    # Times

    def time_spans(self, request: Request) -> Reply:
        asked = GroupTopicRequest.from_ext(request.header.ext)
        topic = self._topic(asked.topic)
        spans = [
            self._time_span(asked.group, topic.topic_name, queue_id)
            for queue_id in range(topic.write_queue_nums)
        ]
        return Reply(body=fastjson.encode(ConsumeTimeSpans(consume_time_span_set=tuple(spans))))

    def _time_span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        store, key = self.store, queue_key(topic, queue_id)
        offset = max(self.offsets.get(group, topic, queue_id) or 0, 0)
        first_ms = store_time(store, key, store.min_offset(key))
        consumed_ms = store_time(store, key, offset - 1) if offset > 0 else first_ms
        next_ms = store_time(store, key, offset)
        return QueueTimeSpan(
            consume_time_stamp=_or_none(consumed_ms),
            delay_time=self.clock.now_ms() - next_ms if next_ms is not None else 0,
            max_time_stamp=_or_none(last_store_time(store, key)),
            message_queue=self._queue(topic, queue_id),
            min_time_stamp=_or_none(first_ms),
        )

    # The offsets themselves

    def corrections(self, request: Request) -> Reply:
        """For each queue the lowest offset of all other groups; nothing to correct where the
        compared group is behind it."""
        asked = QueryCorrectionOffsetRequest.from_ext(request.header.ext)
        left_out = set((asked.filter_groups or "").split(","))
        least: dict[int, int] = {}
        for group in self.offsets.groups_of(asked.topic):
            if group in left_out:
                continue
            for queue_id, offset in self.offsets.of(group, asked.topic).items():
                if self.store.min_offset(queue_key(asked.topic, queue_id)) <= offset:
                    least[queue_id] = min(offset, least.get(queue_id, _NEVER))
        for queue_id, offset in self.offsets.of(asked.compare_group, asked.topic).items():
            if least.get(queue_id, -1) > offset:
                least[queue_id] = _NEVER
        return Reply(body=encode_correction_offsets(least))

    def clone(self, request: Request) -> Reply:
        """Copy the offsets of one group to another."""
        asked = CloneGroupOffsetRequest.from_ext(request.header.ext)
        check_commit(asked.dest_group)
        if self.groups.obtain(asked.dest_group) is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {asked.dest_group[:128]} does not exist",
            )
        names = [asked.topic] if asked.topic else self.offsets.topics_of(asked.src_group)
        if asked.offline:
            found = [topic for name in names if (topic := self.topics.get(name))]
        else:
            found = self._consumed(asked.src_group, names)
        for topic in found:
            self.offsets.clone(asked.src_group, asked.dest_group, topic.topic_name)
        return Reply()

    def all(self, _request: Request) -> Reply:
        return Reply(body=fastjson.encode(self.offsets.table()))

    def _topic(self, name: str) -> TopicConfig:
        topic = self.topics.get(name)
        if topic is None:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {name[:128]} does not exist"
            )
        return topic


def _or_none(time_ms: int | None) -> int:
    """A time for the wire, where -1 means none."""
    return -1 if time_ms is None else time_ms


def offset_at_time(store: QueueReader, key: QueueKey, timestamp_ms: int) -> int:
    """The offset for a reset to a timestamp; a negative one means the end of the queue."""
    return store.max_offset(key) if timestamp_ms < 0 else store.offset_by_time(key, timestamp_ms)


@dataclass(slots=True, kw_only=True)
class AdminReset:
    config: BrokerConfig
    store: QueueReader
    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets
    sessions: Sessions

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset}

    def reset(self, request: Request) -> Reply:
        asked = ResetOffsetRequest.from_ext(request.header.ext)
        check_commit(asked.group)
        targets = {queue_id: self._target(asked, queue_id) for queue_id in self._queues_of(asked)}
        for queue_id, offset in targets.items():
            self.offsets.reset(asked.group, asked.topic, queue_id, offset)
        self.offsets.save()
        table = {
            MessageQueue(broker_name=self.config.name, queue_id=queue_id, topic=asked.topic): offset
            for queue_id, offset in targets.items()
        }
        self._notify_members(asked, table)
        log.info(
            "offsets.reset",
            extra={"group": asked.group, "topic": asked.topic, "peer": request.peer.remote},
        )
        return Reply(body=encode_queue_offsets(table))

    def _queues_of(self, asked: ResetOffsetRequest) -> list[int]:
        topic = self.topics.get(asked.topic)
        if topic is None:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {asked.topic[:128]} does not exist"
            )
        if self.groups.get(asked.group) is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {asked.group[:128]} does not exist",
            )
        if asked.queue_id is None or asked.queue_id < 0:
            return list(range(topic.read_queue_nums))
        if asked.queue_id >= topic.read_queue_nums:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"topic {asked.topic} has {topic.read_queue_nums} queues to read; "
                f"queue {asked.queue_id} is not one of them",
            )
        return [asked.queue_id]

    def _target(self, asked: ResetOffsetRequest, queue_id: int) -> int:
        key = queue_key(asked.topic, queue_id)
        low, high = self.store.min_offset(key), self.store.max_offset(key)
        if asked.offset is not None and asked.offset >= 0:
            if not low <= asked.offset <= high:
                raise RequestRejected(
                    ResponseCode.SYSTEM_ERROR,
                    f"offset {asked.offset} is outside queue {queue_id} of {asked.topic}, which "
                    f"has offsets {low} to {high}",
                )
            return asked.offset
        target = offset_at_time(self.store, key, asked.timestamp_ms)
        committed = self.offsets.get(asked.group, asked.topic, queue_id)
        if asked.is_force or committed is None:
            return target
        # Without force a reset never skips messages that the group has not consumed yet.
        return min(target, committed)

    def _notify_members(self, asked: ResetOffsetRequest, table: dict[MessageQueue, int]) -> None:
        """Notify the members of the group, and no other client."""
        members = self.sessions.consumers.get(asked.group)
        if members is None:
            return
        ext = ResetClientOffsetRequest(
            topic=asked.topic,
            group=asked.group,
            timestamp_ms=asked.timestamp_ms,
            is_force=asked.is_force,
        ).to_ext()
        for client in list(members.clients.values()):
            is_cpp = client.language is Language.CPP
            encode = encode_queue_offsets_as_list if is_cpp else encode_queue_offsets
            client.peer.tell(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, encode(table))
