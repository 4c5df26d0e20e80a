"""Consumer groups as the dashboard shows them: lag, owners of queues, findings."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.base.steps import Steps, finish
from tianzhou.broker import names
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import ConsumerGroup, Groups, Pulled, Readers, Sessions
from tianzhou.broker.groups.lags import LOOKUPS_PER_STEP, ROWS_PER_STEP, Lag, Lags
from tianzhou.broker.observe.watchdog import WHOLE_GROUP, Finding
from tianzhou.broker.stats import MINUTE, Stats
from tianzhou.broker.topics.store_times import last_store_time, store_time
from tianzhou.broker.topics.topics import Topics
from tianzhou.store.protocols import QueueReader
from tianzhou.wire._generated_headers_admin import ViewGroupRequest
from tianzhou.wire.view_bodies import (
    Event,
    GroupRow,
    GroupView,
    HeldQueue,
    Member,
    PlannedMove,
    ReaderView,
    Wanted,
)

AGES_MAX: Final = 2_000
"""Queues whose oldest message is read for one response, those with the largest lags first."""


@dataclass(slots=True)
class _Tally:
    """Sums over the queues of one group."""

    lag: int = 0
    held: int = 0
    retrying: int = 0
    oldest_ms: int = 0
    is_unknown: bool = False
    moved_ms: int = 0
    stuck: int = 0
    stuck_ms: int = 0
    topics: set[str] = field(default_factory=set[str])


def is_troubled(row: GroupRow) -> bool:
    """Whether a group needs attention; the broker's internal groups never do."""
    is_well = not row.lag and not row.stuck and row.is_consistent and row.enabled
    return not row.is_system and not is_well


def trouble(row: GroupRow) -> tuple[int, ...]:
    """A sort key; a larger one is worse."""
    is_unread = bool(row.lag) and not row.members
    return (row.stuck, not row.is_consistent, not row.enabled, is_unread, row.lag)


@dataclass(slots=True, kw_only=True)
class GroupRows:
    """Owner: the broker loop."""

    store: QueueReader
    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets
    sessions: Sessions
    readers_seen: Readers
    stats: Stats
    clock: Clock
    is_ordered: Callable[[str], bool]
    lags: Lags
    events: Callable[[], list[Finding]]
    """Findings of the watchdog, including those that have ended."""

    def ongoing(self) -> list[Finding]:
        return [found for found in self.events() if not found.ended_ms]

    # All groups

    def all(self, now_ms: int) -> Steps[list[GroupRow]]:
        tallies: dict[str, _Tally] = {name: _Tally() for name in self.groups.all()}
        waiting, unseen = list[Lag](), Counter[str]()
        bounds: dict[str, list[tuple[int, int]]] = {}
        count = 0
        for group, topic, committed in list(self.offsets.rows()):
            tally = tallies.get(group)
            # A deleted group may have left its offsets behind; and the progress of a replay of
            # dead letters is not lag.
            if tally is None or topic.startswith(names.DEAD_PREFIX):
                continue
            if not self.lags.reads(group, topic):
                continue
            if topic not in bounds:
                bounds[topic] = self._bounds(topic)
            waits = _waiting(group, topic, committed, bounds[topic])
            self._add(tally, group, topic, sum(lag.messages for lag in waits))
            if not topic.startswith(names.RETRY_PREFIX):
                tally.held += sum(end - first for first, end in bounds[topic])
            waiting += waits
            unseen[group] += len(waits)
            count += len(bounds[topic])
            if count >= ROWS_PER_STEP:
                count, waiting = 0, self.lags.largest(waiting, AGES_MAX)
                yield
        waiting = self.lags.largest(waiting, AGES_MAX)
        unseen.subtract(lag.group for lag in waiting)
        for group in +unseen:
            tallies[group].is_unknown = True
        yield from self._add_ages(tallies, waiting, now_ms)
        self._add_findings(tallies)
        rates, rows = self._rates(now_ms), list[GroupRow]()
        for name in sorted(tallies):
            rows.append(self._row(name, tallies[name], rates.get(name, 0.0)))
            if len(rows) % LOOKUPS_PER_STEP == 0:
                yield
        return rows

    def _bounds(self, topic: str) -> list[tuple[int, int]]:
        """The first offset and the end of every queue that can be read."""
        config = self.topics.get(topic)
        count = config.read_queue_nums if config else 0
        keys = (queue_key(topic, queue_id) for queue_id in range(count))
        return [(self.store.min_offset(key), self.store.max_offset(key)) for key in keys]

    def _add(self, tally: _Tally, group: str, topic: str, messages: int) -> None:
        tally.lag += messages
        if topic.startswith(names.RETRY_PREFIX):
            tally.retrying += messages
        else:
            tally.topics.add(topic)
        moved = self.offsets.moved_ms(group, topic)
        tally.moved_ms = max(tally.moved_ms, *moved.values()) if moved else tally.moved_ms

    def _add_ages(self, tallies: dict[str, _Tally], waiting: list[Lag], now_ms: int) -> Steps[None]:
        ages_ms = yield from self.lags.ages_ms(waiting, now_ms)
        for lag, age_ms in zip(waiting, ages_ms, strict=True):
            tally, stored_ms = tallies[lag.group], now_ms - age_ms
            tally.oldest_ms = min(tally.oldest_ms or stored_ms, stored_ms)

    def _add_findings(self, tallies: dict[str, _Tally]) -> None:
        for found in self.ongoing():
            tally = tallies.get(found.group)
            if tally is not None and found.queue_id != WHOLE_GROUP:
                tally.stuck += 1
                tally.stuck_ms = min(tally.stuck_ms or found.since_ms, found.since_ms)

    def _rates(self, now_ms: int) -> dict[str, float]:
        rates: dict[str, float] = {}
        for (_, group), flow in self.stats.group_gets.items():
            rates[group] = rates.get(group, 0.0) + flow.growth(MINUTE, now_ms).per_second
        return rates

    def _row(self, name: str, tally: _Tally, rate: float) -> GroupRow:
        members = self.sessions.consumers.get(name)
        config = self.groups.get(name)
        wanted = {t for t in members.subscriptions if not _is_derived(t)} if members else set[str]()
        dead, not_replayed, dead_ms = self._dead(name)
        return GroupRow(
            dead=dead,
            dead_ms=dead_ms,
            dead_not_replayed=not_replayed,
            enabled=config is None or config.consume_enable,
            get_per_second=rate,
            held=tally.held,
            is_abandoned=name in self.sessions.abandoned,
            is_consistent=members is None or members.is_consistent,
            is_system=names.is_system_group(name),
            lag=tally.lag,
            members=len(members.clients) if members else 0,
            moved_ms=tally.moved_ms,
            name=name,
            oldest_ms=-1 if tally.is_unknown else tally.oldest_ms,
            retrying=tally.retrying,
            stuck=tally.stuck,
            stuck_ms=tally.stuck_ms,
            topics=tuple(sorted(tally.topics | wanted)),
        )

    def _dead(self, group: str) -> tuple[int, int, int]:
        """Dead letters: all, those not replayed, and when the last one was stored."""
        name = names.dead_topic(group)
        topic = self.topics.get(name)
        count = left = last_ms = 0
        for queue_id in range(topic.read_queue_nums if topic else 0):
            key = queue_key(name, queue_id)
            first, end = self.store.min_offset(key), self.store.max_offset(key)
            count += end - first
            left += end - max(self.offsets.get(group, name, queue_id) or 0, first)
            last_ms = max(last_ms, last_store_time(self.store, key) or 0)
        return count, left, last_ms

    # By topic

    def readers(self) -> dict[str, set[str]]:
        """Groups by topic: those that have committed offsets or subscribe now."""
        found: dict[str, set[str]] = {}
        for group, topic, _ in self.offsets.rows():
            found.setdefault(topic, set()).add(group)
        for group, members in self.sessions.consumers.items():
            for topic in members.subscriptions:
                found.setdefault(topic, set()).add(group)
        return found

    def of_topic(self, topic: str, now_ms: int) -> Iterator[ReaderView]:
        groups = self.readers().get(topic, set())
        bounds = self._bounds(topic)
        if topic.startswith(names.DEAD_PREFIX):
            bounds = []  # the progress of a dead-letter replay is not lag
        for group in sorted(groups):
            waiting = _waiting(group, topic, self.offsets.of(group, topic), bounds)
            ages = finish(self._ages_ms(waiting, now_ms))
            flow = self.stats.group_gets.get((topic, group))
            members = self.sessions.consumers.get(group)
            yield ReaderView(
                get_per_second=flow.growth(MINUTE, now_ms).per_second if flow else 0.0,
                group=group,
                lag=sum(lag.messages for lag in waiting),
                members=len(members.clients) if members else 0,
                oldest_ms=now_ms - max(ages) if ages else 0,
            )

    # One group

    def group_view(
        self,
        asked: ViewGroupRequest,
        rows: list[GroupRow],
        now_ms: int,
        moves: tuple[PlannedMove, ...] = (),
    ) -> Steps[GroupView | None]:
        """One group, with its row of the last `all`; a group created since then gets an empty
        row."""
        name = asked.group
        config = self.groups.get(name)
        if config is None:
            return None
        found = [row for row in rows if row.name == name]
        row = found[0] if found else self._row(name, _Tally(), 0.0)
        members = self.sessions.consumers.get(name)
        queues = yield from self._queues(name, members, now_ms)
        owned = Counter(queue.owner for queue in queues if queue.owner)
        yield
        shown = [queue for queue in queues if asked.queues_like in queue.topic]
        count = len(shown)
        if asked.queues_max is not None and count > asked.queues_max:
            yield
            shown = nlargest(max(asked.queues_max, 0), shown, key=lambda queue: queue.lag)
        described = members.described if members else None
        return GroupView(
            config=config,
            consume_type=described.consume_type.value if described else "",
            events=tuple(event_of(found) for found in self.ongoing() if found.group == name),
            is_ordered=self.is_ordered(name),
            members=tuple(self._members(members, now_ms)) if members else (),
            message_model=described.message_model.value if described else "",
            moves=moves,
            now_ms=now_ms,
            owned=dict(owned),
            queue_count=count,
            queues=tuple(shown),
            row=row,
            started_ms=self.stats.started_ms,
        )

    def _members(self, members: ConsumerGroup, now_ms: int) -> Iterator[Member]:
        uptime_ms = round(self.clock.monotonic_s() * 1000)
        for peer, client in sorted(members.clients.items(), key=lambda row: row[1].client_id):
            subscribed = sorted(members.subscribed_by.get(peer, ()))
            yield Member(
                address=peer.remote,
                client_id=client.client_id,
                heard_ms=now_ms - (uptime_ms - client.heartbeat_ms),
                language=client.language.name,
                wants=tuple(
                    Wanted(topic=topic, kind=kind, expression=expression)
                    for topic, kind, expression in subscribed
                    if not _is_derived(topic)
                ),
            )

    def _queues(
        self, group: str, members: ConsumerGroup | None, now_ms: int
    ) -> Steps[list[HeldQueue]]:
        named = set(self.offsets.topics_of(group))
        named |= set(members.subscriptions if members else ())
        rows = list[HeldQueue]()
        for topic in sorted(named):
            if topic.startswith(names.DEAD_PREFIX) or not self.lags.reads(group, topic):
                continue
            bounds, before = self._bounds(topic), len(rows)
            waiting = _waiting(group, topic, self.offsets.of(group, topic), bounds)
            ages = yield from self._ages_ms(waiting, now_ms)
            stored = {lag.queue: now_ms - age for lag, age in zip(waiting, ages, strict=True)}
            for queue_id in range(len(bounds)):
                key = queue_key(topic, queue_id)
                rows.append(
                    self._queue(
                        group,
                        key,
                        members,
                        self.readers_seen.last(group, key),
                        oldest_ms=stored.get(key, 0),
                        now_ms=now_ms,
                    )
                )
            if len(rows) // LOOKUPS_PER_STEP > before // LOOKUPS_PER_STEP:
                yield
        return rows

    def _ages_ms(self, waiting: list[Lag], now_ms: int) -> Steps[list[int]]:
        """Ages computed without the cache of `lags`, which only covers the queues with the largest
        lags."""
        ages: list[int] = []
        for number, lag in enumerate(waiting, 1):
            time_ms = store_time(self.store, lag.queue, lag.offset)
            ages.append(now_ms - (now_ms if time_ms is None else time_ms))
            if number % LOOKUPS_PER_STEP == 0:
                yield
        return ages

    def _queue(
        self,
        group: str,
        key: QueueKey,
        members: ConsumerGroup | None,
        seen: Pulled | None,
        *,
        oldest_ms: int,
        now_ms: int,
    ) -> HeldQueue:
        committed = self.offsets.get(group, key.topic, key.queue_id)
        reader = seen.peer if seen and seen.peer.is_open else None
        client = members.clients.get(reader) if members and reader else None
        age_ms = round((self.clock.monotonic_s() - seen.at_s) * 1000) if seen else 0
        return HeldQueue(
            committed=-1 if committed is None else committed,
            end=self.store.max_offset(key),
            first=self.store.min_offset(key),
            moved_ms=self.offsets.moved_ms(group, key.topic).get(key.queue_id, 0),
            oldest_ms=oldest_ms,
            owner=client.client_id if client else reader.remote if reader else "",
            pulled_ms=now_ms - age_ms if seen else 0,
            queue_id=key.queue_id,
            topic=key.topic,
        )


def _waiting(
    group: str, topic: str, committed: dict[int, int], bounds: list[tuple[int, int]]
) -> list[Lag]:
    """Queues with waiting messages. Expired messages do not wait."""
    found: list[Lag] = []
    for queue_id, (first, end) in enumerate(bounds):
        offset = committed.get(queue_id, 0)
        if offset < end:
            offset = max(offset, first)
            found.append(Lag(end - offset, group, queue_key(topic, queue_id), offset))
    return found


def event_of(found: Finding) -> Event:
    return Event(
        ended_ms=found.ended_ms,
        group=found.group,
        kind=found.kind.value,
        remedy=found.remedy,
        queue_id=found.queue_id,
        said=found.text,
        since_ms=found.since_ms,
        topic=found.topic,
    )


def _is_derived(topic: str) -> bool:
    return topic.startswith((names.RETRY_PREFIX, names.DEAD_PREFIX))
