"""Views for the dashboard: the broker, its topics, its groups, and one topic or group.

A view is computed on request from the tables of the other slices; nothing is maintained for it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import tianzhou
from tianzhou.base.clock import Clock
from tianzhou.base.kinds import QueueOffset, queue_key
from tianzhou.base.probe import Histogram
from tianzhou.base.steps import Steps
from tianzhou.broker import names
from tianzhou.broker.alarms import Alarm
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.admin_offsets import offset_at_time
from tianzhou.broker.groups.groups import Client, Sessions
from tianzhou.broker.groups.lags import ROWS_PER_STEP
from tianzhou.broker.observe.group_rows import GroupRows, event_of, is_troubled, trouble
from tianzhou.broker.role import Permission
from tianzhou.broker.stats import DAY, HOUR, MINUTE, Flow, Stats
from tianzhou.broker.topics.store_times import last_store_time
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.writing.stored import records
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import (
    TopicRequest,
    ViewBrokerRequest,
    ViewGroupRequest,
    ViewLightQueuesRequest,
)
from tianzhou.wire.raft_bodies import RaftView
from tianzhou.wire.replication_bodies import ReplicationView
from tianzhou.wire.tables import TopicConfig
from tianzhou.wire.view_bodies import (
    AlarmRow,
    BrokerView,
    Disk,
    GroupRow,
    GroupsView,
    History,
    LightQueueRow,
    LightQueuesView,
    PlannedMove,
    ProducerSeen,
    QueueView,
    TopicRow,
    TopicsView,
    TopicView,
    Totals,
)

TOP: Final = 10
"""Busy topics in an overview, limited to what fits on a screen."""
TROUBLED_MAX: Final = 100
"""Groups with lag or findings; findings are computed from them, so there are more than are
shown."""
EVENTS_MAX: Final = 50
STEP_S: Final = 2
TAIL: Final = ReadLimit(count=8)
"""Messages at the end of a queue that are read to list its producers."""
LIGHT_QUEUES_MAX: Final = 1_000
"""Light queues in one response; a broker may have many times more."""
TAILS_MAX: Final = 64
"""Queues of one topic whose ends are read."""
T = TypeVar("T")

SHARE: Final = 20
"""A result is kept for this many times as long as it took to compute: pages take at most a
twentieth of the loop's time, however often they are requested."""


class PollCache(Generic[T]):
    """Caches a result, so that polling dashboards do not slow down clients. Owner: the broker
    loop."""

    def __init__(self, make: Callable[[], Steps[T]], monotonic_s: Callable[[], float]) -> None:
        self._make = make
        self._monotonic_s = monotonic_s
        self._kept: tuple[T, float] | None = None

    def get(self) -> Steps[T]:
        """The current result, or the previous one if it is recent enough."""
        begun_s, taken_s = self._monotonic_s(), 0.0
        if self._kept is not None and begun_s < self._kept[1]:
            return self._kept[0]
        steps = self._make()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found = end.value
                break
            taken_s += self._monotonic_s() - begun_s
            yield
            begun_s = self._monotonic_s()
        end_s = self._monotonic_s()
        self._kept = found, end_s + (taken_s + end_s - begun_s) * SHARE
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepths:
    """How much waits in other slices."""

    halves: Callable[[], int]
    held_pulls: Callable[[], int]
    timers: Callable[[], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """Facts about this broker from other parts."""

    facts: Callable[[int], dict[str, str]]
    config: Callable[[], dict[str, str]]
    raft: Callable[[], RaftView | None]
    replication: Callable[[], ReplicationView]
    alarms: Callable[[], list[Alarm]]


@dataclass(slots=True, kw_only=True)
class Views:
    config: BrokerConfig
    store: MessageStore
    topics: Topics
    sessions: Sessions
    permission: Permission
    stats: Stats
    rows: GroupRows
    depths: QueueDepths
    facts: BrokerFacts
    clock: Clock
    _topics: PollCache[list[TopicRow]] = field(init=False)
    _groups: PollCache[list[GroupRow]] = field(init=False)

    def __post_init__(self) -> None:
        monotonic_s = self.clock.monotonic_s
        self._topics = PollCache(self._topic_rows, monotonic_s)
        self._groups = PollCache(lambda: self.rows.all(self.clock.now_ms()), monotonic_s)

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.VIEW_BROKER: self.broker,
            RequestCode.VIEW_TOPICS: self.all_topics,
            RequestCode.VIEW_TOPIC: self.topic,
            RequestCode.VIEW_LIGHT_QUEUES: self.light_queues,
            RequestCode.VIEW_GROUPS: self.all_groups,
            RequestCode.VIEW_GROUP: self.group,
        }

    # The broker

    def broker(self, request: Request) -> Steps[Reply]:
        groups = yield from self._groups.get()
        topics = yield from self._topics.get()
        is_whole = ViewBrokerRequest.from_ext(request.header.ext).is_whole
        stats, store, now_ms = self.stats, self.store, self.clock.now_ms()
        stats.tick(now_ms)
        marks = store.watermarks
        busy = [
            row
            for row in topics
            if not row.is_system and (row.put_per_second or row.get_per_second)
        ]
        busy.sort(key=lambda row: -(row.put_per_second + row.get_per_second))
        troubled = sorted(filter(is_troubled, groups), key=trouble, reverse=True)
        puts, gets = stats.history(STEP_S)
        view = BrokerView(
            alarms=tuple(map(_alarm_row, self.facts.alarms())),
            busiest=tuple(busy[:TOP]),
            cluster=self.config.cluster,
            config=self.facts.config() if is_whole else {},
            damaged=len(store.damaged),
            disk=self._disk(now_ms),
            dispatch_behind=marks.appended - marks.dispatched,
            events=tuple(map(event_of, self.rows.events()[:EVENTS_MAX])),
            facts=self.facts.facts(now_ms) if is_whole else {},
            flush_behind=marks.appended - marks.flushed,
            get_per_second=stats.transferred_rates()[0],
            history=History(puts=_rounded(puts), gets=_rounded(gets), step_s=STEP_S),
            is_broken=store.is_broken,
            name=self.config.name,
            now_ms=now_ms,
            permission=self.permission.bits,
            put_longest_ms=round(stats.put_latency.histogram.longest_s * 1000, 3),
            put_p99_ms=round(_percentile_s(stats.put_latency.histogram, 0.99) * 1000, 3),
            put_per_second=stats.put_rates()[0],
            put_today=stats.puts.count - stats.mornings.today[0],
            raft=self.facts.raft(),
            refusal=store.refusal,
            replication=self.facts.replication(),
            started_ms=stats.started_ms,
            totals=self._totals(groups, topics),
            troubled=tuple(troubled[:TROUBLED_MAX]),
            troubled_count=len(troubled),
            version=tianzhou.__version__,
        )
        return Reply(body=fastjson.encode(view))

    def _totals(self, groups: list[GroupRow], topics: list[TopicRow]) -> Totals:
        producers = {p for clients in self.sessions.producers.values() for p in clients}
        consumers = {p for members in self.sessions.consumers.values() for p in members.clients}
        return Totals(
            consumers=len(consumers),
            dead=sum(row.dead for row in groups),
            groups=sum(not row.is_system for row in groups),
            halves=self.depths.halves(),
            held_pulls=self.depths.held_pulls(),
            lag=sum(row.lag for row in groups if not row.is_system),
            producers=len(producers),
            timers=self.depths.timers(),
            topics=sum(not row.is_system for row in topics),
        )

    def _disk(self, now_ms: int) -> Disk:
        try:
            total, free = self.store.usage
        except OSError:  # the directory was moved away, or its disk fails
            total = free = 0
        config, puts, marks = self.store.config, self.stats.puts, self.store.watermarks
        return Disk(
            clean_ratio=config.disk_clean_ratio,
            free=free,
            log_size=marks.appended - marks.minimum,
            put_size_per_hour=puts.growth(HOUR, now_ms, of_size=True).per_second,
            put_size_per_minute=puts.growth(MINUTE, now_ms, of_size=True).per_second,
            refuse_ratio=config.disk_refuse_ratio,
            retention_hours=config.retention_hours,
            total=total,
        )

    # Topics

    def all_topics(self, _request: Request) -> Steps[Reply]:
        topics = yield from self._topics.get()
        view = TopicsView(now_ms=self.clock.now_ms(), topics=tuple(topics))
        return Reply(body=fastjson.encode(view))

    def _topic_rows(self) -> Steps[list[TopicRow]]:
        now_ms, readers = self.clock.now_ms(), self.rows.readers()
        gets: dict[str, float] = defaultdict(float)
        for (topic, _group), flow in self.stats.group_gets.items():
            gets[topic] += _rate(flow, now_ms)
        rows, count = list[TopicRow](), 0
        for name, topic in sorted(self.topics.all().items()):
            groups = len(readers.get(name, ()))
            rows.append(self._topic_row(topic, now_ms, gets=gets[name], groups=groups))
            count += max(topic.read_queue_nums, topic.write_queue_nums)
            if count >= ROWS_PER_STEP:
                count = 0
                yield
        return rows

    def _topic_row(self, topic: TopicConfig, now_ms: int, *, gets: float, groups: int) -> TopicRow:
        name, store = topic.topic_name, self.store
        flow = self.stats.topic_puts.get(name)
        count = 0
        for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums)):
            key = queue_key(name, queue_id)
            if end := store.max_offset(key):
                count += end - store.min_offset(key)
        return TopicRow(
            count=count,
            get_per_second=gets,
            groups=groups,
            is_system=self._is_system(name),
            name=name,
            order=topic.order,
            perm=topic.perm,
            put_per_second=_rate(flow, now_ms),
            put_size_per_second=_rate(flow, now_ms, of_size=True),
            read_queues=topic.read_queue_nums,
            write_queues=topic.write_queue_nums,
        )

    def _is_system(self, topic: str) -> bool:
        return self.topics.is_system(topic) or topic.startswith(
            (names.RETRY_PREFIX, names.DEAD_PREFIX)
        )

    def topic(self, request: Request) -> Reply:
        name, now_ms = TopicRequest.from_ext(request.header.ext).topic, self.clock.now_ms()
        topic = self.topics.get(name)
        if topic is None:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {name[:128]} does not exist"
            )
        flow = self.stats.topic_puts.get(name)
        view = TopicView(
            config=topic,
            hours=tuple(flow.steps(DAY)) if flow else (),
            is_system=self._is_system(name),
            now_ms=now_ms,
            producers=self._producers(topic),
            put_per_second=_rate(flow, now_ms),
            put_size_per_second=_rate(flow, now_ms, of_size=True),
            queues=tuple(
                self._queue(name, queue_id)
                for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums))
            ),
            readers=tuple(self.rows.of_topic(name, now_ms)),
        )
        return Reply(body=fastjson.encode(view))

    def light_queues(self, request: Request) -> Steps[Reply]:
        asked = ViewLightQueuesRequest.from_ext(request.header.ext)
        like, found, total = (asked.like or "").lower(), list[LightQueueRow](), 0
        for rank, queue in enumerate(list(self.store.queues), 1):
            if queue.is_light:
                total += 1
                if like in queue.key.topic.lower():
                    name, first = queue.key.topic, self.store.min_offset(queue.key)
                    found.append(LightQueueRow(max_offset=queue.end, min_offset=first, name=name))
            if rank % ROWS_PER_STEP == 0:
                yield
        found.sort(key=lambda row: row.name)
        count = min(max(asked.count, 0), LIGHT_QUEUES_MAX)
        view = LightQueuesView(queues=tuple(found[:count]), total=total)
        return Reply(body=fastjson.encode(view))

    def _queue(self, topic: str, queue_id: int) -> QueueView:
        key = queue_key(topic, queue_id)
        return QueueView(
            last_ms=last_store_time(self.store, key) or 0,
            max_offset=self.store.max_offset(key),
            min_offset=self.store.min_offset(key),
            queue_id=queue_id,
        )

    def _producers(self, topic: TopicConfig) -> tuple[ProducerSeen, ...]:
        """Producers of the last messages in each queue. Heartbeats do not say which topics a
        producer sends to."""
        seen: dict[str, int] = {}
        for queue_id in range(min(topic.write_queue_nums, TAILS_MAX)):
            key = queue_key(topic.topic_name, queue_id)
            start = max(self.store.max_offset(key) - TAIL.count, self.store.min_offset(key))
            with self.store.read(key, QueueOffset(start), TAIL) as found:
                for stored in records(found):
                    host, at_ms = stored.view.born_host, stored.view.store_timestamp
                    address = f"{host.address}:{host.port}"
                    seen[address] = max(seen.get(address, 0), at_ms)
        known: dict[str, tuple[str, Client]] = {
            peer.remote: (group, client)
            for group, clients in self.sessions.producers.items()
            for peer, client in clients.items()
        }
        return tuple(
            ProducerSeen(
                address=address,
                client_id=known[address][1].client_id if address in known else "",
                group=known[address][0] if address in known else "",
                language=known[address][1].language.name if address in known else "",
                last_ms=at_ms,
            )
            for address, at_ms in sorted(seen.items(), key=lambda row: -row[1])
        )

    # Groups

    def all_groups(self, _request: Request) -> Steps[Reply]:
        groups = yield from self._groups.get()
        view = GroupsView(groups=tuple(groups), now_ms=self.clock.now_ms())
        return Reply(body=fastjson.encode(view))

    def group(self, request: Request) -> Steps[Reply]:
        asked = ViewGroupRequest.from_ext(request.header.ext)
        name, moves = asked.group, tuple(self._moves(asked))
        groups = yield from self._groups.get()
        view = yield from self.rows.group_view(asked, groups, self.clock.now_ms(), moves)
        if view is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {name[:128]} does not exist"
            )
        return Reply(body=fastjson.encode(view))

    def _moves(self, asked: ViewGroupRequest) -> Iterator[PlannedMove]:
        """Empty if the topic does not exist here: it may be on another broker."""
        name = asked.topic or ""
        topic = self.topics.get(name)
        for queue_id in range(topic.read_queue_nums if topic else 0):
            committed = self.rows.offsets.get(asked.group, name, queue_id)
            yield PlannedMove(
                committed=-1 if committed is None else committed,
                queue_id=queue_id,
                target=offset_at_time(self.store, queue_key(name, queue_id), asked.timestamp_ms),
            )


def _rate(flow: Flow | None, now_ms: int, *, of_size: bool = False) -> float:
    return flow.growth(MINUTE, now_ms, of_size=of_size).per_second if flow else 0.0


def _rounded(rates: list[float]) -> tuple[float, ...]:
    return tuple(round(rate, 1) for rate in rates)


def _percentile_s(times: Histogram, part: float) -> float:
    """The upper bound of the range that contains this percentile."""
    wanted = times.count * part
    ends = (end for end, count in times.up_to() if count >= wanted)
    return min(next(ends, 0.0), times.longest_s)


def _alarm_row(alarm: Alarm) -> AlarmRow:
    return AlarmRow(
        is_problem=alarm.is_problem,
        kind=alarm.kind,
        remedy=alarm.remedy,
        since_ms=alarm.since_ms,
        text=alarm.text,
    )
