"""Consumer groups as pages show them: how far behind, who reads, what does not move."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import queue_key
from tianzhou.broker import names
from tianzhou.broker.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups import Groups
from tianzhou.broker.lags import Lag, Lags
from tianzhou.broker.readers import Pulled, Readers
from tianzhou.broker.sessions import ConsumerGroup, Sessions
from tianzhou.broker.stats import MINUTE, Stats
from tianzhou.broker.store_times import last_store_time
from tianzhou.broker.topics import Topics
from tianzhou.store.store import MessageStore
from tianzhou.wire.look_bodies import GroupLook, GroupRow, HeldQueue, Member, ReaderLook, Wanted

STUCK_MS: Final = 60_000
"""Longer than a pull waits and than queues take to change hands."""
AGES_MAX: Final = 2_000
"""Queues whose oldest message is looked up for one answer, those with most messages first."""


@dataclass(slots=True)
class _Tally:
    """What the queues of one group add up to."""

    lag: int = 0
    retrying: int = 0
    oldest_ms: int = 0
    is_unknown: bool = False
    moved_ms: int = 0
    stuck: int = 0
    stuck_ms: int = 0
    unread: int = 0
    topics: set[str] = field(default_factory=set[str])


def is_troubled(row: GroupRow) -> bool:
    return bool(row.lag or row.stuck or row.unread or not row.is_consistent)


def trouble(row: GroupRow) -> tuple[int, ...]:
    """The larger, the worse."""
    return (row.stuck + row.unread, not row.is_consistent, row.lag)


@dataclass(slots=True)
class GroupRows:
    """Owner: the broker loop."""

    store: MessageStore
    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets
    sessions: Sessions
    readers_seen: Readers
    stats: Stats
    clock: Clock
    is_ordered: Callable[[str], bool]
    lags: Lags

    # All of them

    def all(self, now_ms: int) -> list[GroupRow]:
        tallies: dict[str, _Tally] = {name: _Tally() for name in self.groups.all()}
        waiting: list[Lag] = []
        for lag in self._lags():
            # A group that was deleted may have left its offsets behind.
            if lag.group in tallies:
                self._add(tallies[lag.group], lag)
                if lag.messages:
                    waiting.append(lag)
        self._add_ages(tallies, waiting, now_ms)
        rates = self._rates(now_ms)
        return [
            self._row(name, tallies[name], rates.get(name, 0.0))
            for name in sorted(self.groups.all())
        ]

    def _lags(self) -> Iterator[Lag]:
        """How far a replay of dead letters is, is no lag."""
        return (lag for lag in self.lags.all() if not lag.queue.topic.startswith(names.DEAD_PREFIX))

    def _add(self, tally: _Tally, lag: Lag) -> None:
        topic = lag.queue.topic
        tally.lag += lag.messages
        if topic.startswith(names.RETRY_PREFIX):
            tally.retrying += lag.messages
        else:
            tally.topics.add(topic)
        moved_ms = self.offsets.moved_ms(lag.group, topic).get(lag.queue.queue_id, 0)
        tally.moved_ms = max(tally.moved_ms, moved_ms)

    def _add_ages(self, tallies: dict[str, _Tally], waiting: list[Lag], now_ms: int) -> None:
        looked_at = self.lags.largest(waiting, AGES_MAX)
        for lag in set(waiting).difference(looked_at):
            tallies[lag.group].is_unknown = True
        for lag, age_ms in zip(looked_at, self.lags.ages_ms(looked_at, now_ms), strict=True):
            tally, stored_ms = tallies[lag.group], now_ms - age_ms
            tally.oldest_ms = min(tally.oldest_ms or stored_ms, stored_ms)
            self._judge(tally, lag, stored_ms, now_ms)

    def _judge(self, tally: _Tally, lag: Lag, stored_ms: int, now_ms: int) -> None:
        """Whether a queue that has something to read should have moved by now."""
        if lag.group not in self.sessions.consumers:
            return
        queue = lag.queue
        moved_ms = self.offsets.moved_ms(lag.group, queue.topic).get(queue.queue_id)
        since_ms = max(moved_ms or self.stats.started_ms, stored_ms)
        if now_ms - since_ms < STUCK_MS:
            return
        seen = self.readers_seen.last(lag.group, queue)
        if seen is not None and seen.peer.is_open:
            tally.stuck += 1
            tally.stuck_ms = min(tally.stuck_ms or since_ms, since_ms)
        else:
            tally.unread += 1

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
            unread=tally.unread,
        )

    def _dead(self, group: str) -> tuple[int, int, int]:
        """Dead letters: all, those not replayed, and when the last one came."""
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
        """Groups by topic, that have been there or subscribe now."""
        found: dict[str, set[str]] = {}
        for group, topic, _ in self.offsets.rows():
            found.setdefault(topic, set()).add(group)
        for group, members in self.sessions.consumers.items():
            for topic in members.subscriptions:
                found.setdefault(topic, set()).add(group)
        return found

    def of_topic(self, topic: str, now_ms: int) -> Iterator[ReaderLook]:
        groups = self.readers().get(topic, set())
        waiting: dict[str, list[Lag]] = {group: [] for group in groups}
        for lag in self.lags.all():
            if lag.queue.topic == topic and lag.group in waiting and lag.messages:
                waiting[lag.group].append(lag)
        for group in sorted(groups):
            ages = self.lags.ages_ms(waiting[group], now_ms)
            flow = self.stats.group_gets.get((topic, group))
            members = self.sessions.consumers.get(group)
            yield ReaderLook(
                get_per_second=flow.growth(MINUTE, now_ms).per_second if flow else 0.0,
                group=group,
                lag=sum(lag.messages for lag in waiting[group]),
                members=len(members.clients) if members else 0,
                oldest_ms=now_ms - max(ages) if ages else 0,
            )

    # One of them

    def one(self, name: str, now_ms: int) -> GroupLook | None:
        config = self.groups.get(name)
        if config is None:
            return None
        row = next(row for row in self.all(now_ms) if row.name == name)
        members = self.sessions.consumers.get(name)
        described = members.described if members else None
        return GroupLook(
            config=config,
            consume_type=described.consume_type.value if described else "",
            is_ordered=self.is_ordered(name),
            members=tuple(self._members(members, now_ms)) if members else (),
            message_model=described.message_model.value if described else "",
            now_ms=now_ms,
            queues=tuple(self._queues(name, members, now_ms)),
            row=row,
            started_ms=self.stats.started_ms,
        )

    def _members(self, members: ConsumerGroup, now_ms: int) -> Iterator[Member]:
        uptime_ms = round(self.clock.monotonic_s() * 1000)
        for peer, client in sorted(members.clients.items(), key=lambda row: row[1].client_id):
            told = sorted(members.told_by.get(peer, ()))
            yield Member(
                address=peer.remote,
                client_id=client.client_id,
                heard_ms=now_ms - (uptime_ms - client.heard_ms),
                language=client.language.name,
                wants=tuple(
                    Wanted(topic=topic, kind=kind, expression=expression)
                    for topic, kind, expression in told
                    if not _is_derived(topic)
                ),
            )

    def _queues(
        self, group: str, members: ConsumerGroup | None, now_ms: int
    ) -> Iterator[HeldQueue]:
        confirmed = {lag.queue: lag for lag in self._lags() if lag.group == group}
        for topic in members.subscriptions if members else ():
            config = self.topics.get(topic)
            for queue_id in range(config.read_queue_nums if config else 0):
                key = queue_key(topic, queue_id)
                first, end = self.store.min_offset(key), self.store.max_offset(key)
                confirmed.setdefault(key, Lag(end - first, group, key, first))
        rows = [confirmed[key] for key in sorted(confirmed)]
        waiting = [lag for lag in rows if lag.messages]
        ages = dict(zip(waiting, self.lags.ages_ms(waiting, now_ms), strict=True))
        seen = self.readers_seen.of(group)
        for lag in rows:
            stored_ms = now_ms - ages[lag] if lag in ages else 0
            yield self._queue(lag, members, seen.get(lag.queue), stored_ms, now_ms)

    def _queue(
        self,
        lag: Lag,
        members: ConsumerGroup | None,
        seen: Pulled | None,
        stored_ms: int,
        now_ms: int,
    ) -> HeldQueue:
        key = lag.queue
        committed = self.offsets.get(lag.group, key.topic, key.queue_id)
        client = members.clients.get(seen.peer) if members and seen else None
        age_ms = round((self.clock.monotonic_s() - seen.at_s) * 1000) if seen else 0
        return HeldQueue(
            committed=-1 if committed is None else committed,
            end=self.store.max_offset(key),
            first=self.store.min_offset(key),
            moved_ms=self.offsets.moved_ms(lag.group, key.topic).get(key.queue_id, 0),
            oldest_ms=stored_ms,
            owner=client.client_id if client else seen.peer.remote if seen else "",
            pulled_ms=now_ms - age_ms if seen else 0,
            queue_id=key.queue_id,
            topic=key.topic,
        )


def _is_derived(topic: str) -> bool:
    return topic.startswith((names.RETRY_PREFIX, names.DEAD_PREFIX))
