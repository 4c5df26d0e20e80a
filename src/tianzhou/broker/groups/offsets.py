"""Requests about offsets: of consumers, of queues, and reports on them for administrators."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import QueueOffset, queue_key
from tianzhou.base.steps import Steps
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.accepted_offsets import FORWARD_ONLY, RESET_SEEN
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets, end_if_beyond
from tianzhou.broker.groups.groups import Groups, check_commit
from tianzhou.broker.groups.lags import LOOKUPS_PER_STEP
from tianzhou.broker.groups.sessions import Sessions
from tianzhou.broker.stats import MINUTE, Stats
from tianzhou.broker.topics.store_times import last_store_time, store_time
from tianzhou.broker.topics.topics import QUEUES_MAX, Topics
from tianzhou.broker.writing.stored import require_ready
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.record.message import decode_all
from tianzhou.store.protocols import LogAppender, QueueReader
from tianzhou.store.read import ReadLimit
from tianzhou.store.search import Boundary
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import (
    CloneGroupOffsetRequest,
    GetBrokerConsumeStatsRequest,
    GetConsumeStatsRequest,
    GroupTopicRequest,
    QueryCorrectionOffsetRequest,
)
from tianzhou.wire._generated_headers_pull import (
    GetMaxOffsetRequest,
    QueryConsumerOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from tianzhou.wire.admin_bodies import (
    ConsumeTimeSpans,
    QueueTimeSpan,
    encode_broker_consume_stats,
    encode_correction_offsets,
)
from tianzhou.wire.queues import ConsumeStats, MessageQueue, OffsetWrapper, encode_consume_stats
from tianzhou.wire.tables import TopicConfig

_NEVER: Final = (1 << 63) - 1
"""RocketMQ's value for an offset that needs no correction."""


@dataclass(slots=True, kw_only=True)
class Offsets:
    store: QueueReader
    log: LogAppender
    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.maximum,
            RequestCode.GET_MIN_OFFSET: self.minimum,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

    def query(self, request: Request) -> Reply:
        """The committed offset. A new group on a topic that still has its first message starts
        there: clients that get no offset would start at the end and miss messages."""
        asked = QueryConsumerOffsetRequest.from_ext(request.header.ext)
        offset = self.offsets.get(asked.consumer_group, asked.topic, asked.queue_id)
        if offset is None:
            key = queue_key(asked.topic, asked.queue_id)
            if asked.set_zero_if_not_found is False or self.store.min_offset(key) > 0:
                raise RequestRejected(
                    ResponseCode.QUERY_NOT_FOUND,
                    f"group {asked.consumer_group} has no offset for queue {asked.queue_id} of "
                    f"{asked.topic}, maybe this group consumes for the first time",
                )
            offset = 0
        return Reply(ext={"offset": str(offset)})

    def update(self, request: Request) -> Reply:
        asked = UpdateConsumerOffsetRequest.from_ext(request.header.ext)
        check_commit(asked.consumer_group)
        if self.groups.obtain(asked.consumer_group) is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {asked.consumer_group[:128]} does not exist and cannot be created "
                "automatically; create it first",
            )
        if self.topics.get(asked.topic) is None:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {asked.topic} does not exist"
            )
        if not 0 <= asked.queue_id < QUEUES_MAX or asked.commit_offset < 0:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"offset {asked.commit_offset} of queue {asked.queue_id} is invalid; queues go "
                f"from 0 to {QUEUES_MAX - 1}, offsets start at 0",
            )
        row = asked.consumer_group, asked.topic, asked.queue_id
        if request.header.ext.get(FORWARD_ONLY) != "true":
            end = end_if_beyond(self.log, asked.topic, asked.queue_id, asked.commit_offset)
            if end is not None:
                raise RequestRejected(
                    ResponseCode.INVALID_PARAMETER,
                    f"offset {asked.commit_offset} is beyond the end of queue {asked.queue_id} of "
                    f"{asked.topic[:128]}; commit an offset from 0 to {end}; if the topic was "
                    "deleted and created again, seek to its new messages first",
                )
            self.offsets.put(*row, asked.commit_offset)
        elif self._takes_from_slave(asked, request.header.ext.get(RESET_SEEN)):
            self.offsets.advance(*row, asked.commit_offset)
        return Reply()

    def _takes_from_slave(self, asked: UpdateConsumerOffsetRequest, seen: str | None) -> bool:
        """Whether the master adopts an offset that a slave hands over. `seen` is the latest reset
        that the slave knows; slaves of an earlier version do not send it."""
        if seen is not None and not (seen.isascii() and seen.isdigit() and len(seen) < 20):
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"invalid {RESET_SEEN} {seen[:32]!r}; it must be a timestamp in milliseconds",
            )
        latest = self.offsets.resets.latest(f"{asked.topic}@{asked.consumer_group}", asked.queue_id)
        if seen is not None and latest > int(seen):
            return False
        return asked.commit_offset <= self.store.max_offset(queue_key(asked.topic, asked.queue_id))

    def search(self, request: Request) -> Reply:
        asked = SearchOffsetRequest.from_ext(request.header.ext)
        upper = (asked.boundary_type or "").upper() == "UPPER"
        boundary = Boundary.UPPER if upper else Boundary.LOWER
        key = queue_key(asked.topic, asked.queue_id)
        return _offset(self.store.offset_by_time(key, asked.timestamp_ms, boundary))

    def maximum(self, request: Request) -> Reply:
        asked = GetMaxOffsetRequest.from_ext(request.header.ext)
        return _offset(self.store.max_offset(queue_key(asked.topic, asked.queue_id)))

    def minimum(self, request: Request) -> Reply:
        asked = QueueRequest.from_ext(request.header.ext)
        return _offset(self.store.min_offset(queue_key(asked.topic, asked.queue_id)))

    def earliest(self, request: Request) -> Reply:
        asked = QueueRequest.from_ext(request.header.ext)
        key = queue_key(asked.topic, asked.queue_id)
        timestamp = -1
        first = self.store.read(key, self.store.min_offset(key), ReadLimit(1))
        with require_ready(first) as found:
            for span in found.spans:
                timestamp = next(decode_all(span)).store_timestamp
        return Reply(ext={"timestamp": str(timestamp)})


def _offset(offset: QueueOffset) -> Reply:
    return Reply(ext={"offset": str(offset)})


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
