"""Watches whether consumers get on: queues that nobody reads, owners that hang, offsets that stay.

Clients share out queues among themselves, and when that goes wrong nothing fails: messages wait,
and a restart cures it. The broker sees who pulls and who confirms. A queue is looked at closely
once messages wait in it and its group has confirmed nothing for a while; then one of four things is
the matter, and the watchdog says which.

Rounds go over all queues of groups that have members, a slice in each tick, so that many queues
cost no more of a tick than few.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import QueueKey, QueueOffset, queue_key
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.fetch.long_poll import LongPolls
from tianzhou.broker.fetch.pull_responses import PendingPull
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.locks import Locks
from tianzhou.broker.groups.readers import Readers
from tianzhou.broker.groups.sessions import ConsumerGroup, Sessions
from tianzhou.broker.observe.findings import TEXT_CHARS_MAX, WHOLE_GROUP, Finding, Kind
from tianzhou.broker.topics.topics import Topics
from tianzhou.record.message import MessageView
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.wire.heartbeat import MessageModel
from tianzhou.wire.queues import MessageQueue

log: Final = logging.getLogger("tianzhou.broker")

ROWS_PER_TICK: Final = 250
"""Queues that are looked at in one tick; that is below a millisecond."""
LOOKS: Final = 8
"""Rounds in the time after which something counts as stuck."""
FINDINGS_MAX: Final = 1_000
"""Findings at a time; what is beyond is only counted."""
ENDED_KEPT: Final = 100
LINES_MAX: Final = 20
"""Lines of the log in one round. When everything stops, twenty examples say it."""

_Place = tuple[str, QueueKey]
_ONE: Final = ReadLimit(count=1)


class _Still(NamedTuple):
    """A group that has not confirmed anything since then."""

    offset: int
    since_s: float
    end: int
    """Of the queue, at that time."""


@dataclass(slots=True)
class Seen:
    """What the watchdog looks at. Everything belongs to others."""

    store: MessageStore
    topics: Topics
    offsets: ConsumerOffsets
    sessions: Sessions
    readers: Readers
    waiters: LongPolls[PendingPull]
    locks: Locks
    broker_name: str


@dataclass(slots=True)
class Watchdog:
    """A service of the broker. Owner: the broker loop."""

    seen: Seen
    clock: Clock
    stuck_after_ms: int
    tell_group: Callable[[str], None] = lambda _group: None
    """Makes the members of a group share out their queues anew."""
    found_counts: Counter[Kind] = field(default_factory=Counter[Kind])
    """All findings since the start."""
    left_out: int = 0
    """Findings of the last round that there was no room for."""
    _still: dict[_Place, _Still] = field(default_factory=dict[_Place, _Still])
    _found: dict[_Place, Finding] = field(default_factory=dict[_Place, Finding])
    _ended: deque[Finding] = field(default_factory=lambda: deque[Finding](maxlen=ENDED_KEPT))
    _round: Iterator[None] | None = None
    _begun_s: float = 0.0
    _lines: int = 0
    _told: set[str] = field(default_factory=set[str])
    """Groups that were made to share out their queues in this round."""

    # The service

    def adopt(self, config: BrokerConfig) -> None:
        """Apply settings that changed while the broker runs."""
        self.stuck_after_ms = config.consumer_stuck_after_ms

    def tick(self) -> bool:
        now_s = self.clock.monotonic_s()
        if self._round is None:
            if (now_s - self._begun_s) * 1000 < self.stuck_after_ms / LOOKS:
                return False
            self._begun_s = now_s
            self._round = self._look_at_all(now_s)
        for count, _ in enumerate(self._round, 1):
            if count >= ROWS_PER_TICK:
                return True
        self._round = None
        return False

    def finish(self) -> None:
        """A new start looks anew."""

    # For whoever shows it

    def events(self) -> list[Finding]:
        """What stands still now, the longest first; then what stood and moves again."""
        now = sorted(self._found.values(), key=lambda one: one.since_ms)
        return [*now, *reversed(self._ended)]

    def counts(self) -> Counter[Kind]:
        """How many things of each kind stand still now."""
        return Counter(one.kind for one in self._found.values())

    # One round

    def _look_at_all(self, now_s: float) -> Iterator[None]:
        """Look at one place after another; the caller decides how many at a time."""
        self._lines = self.left_out = 0
        self._told = set()
        met: set[_Place] = set()
        for group in list(self.seen.sessions.consumers):
            members = self.seen.sessions.consumers.get(group)
            if members is None or _is_broadcast(members) or names.is_system_group(group):
                continue
            whole = (group, queue_key("", WHOLE_GROUP))
            if not members.is_consistent:
                met.add(whole)
                self._look_at_group(whole, now_s)
            for key in self._queues_of(members):
                if self._look_at(group, key, members, now_s):
                    met.add((group, key))
                yield
        for place in self._still.keys() - met:
            del self._still[place]
        for place in self._found.keys() - met:
            self._end(place)
        if self.left_out or self._lines > LINES_MAX:
            log.warning("watchdog.more", extra={"count": self.left_out + self._lines - LINES_MAX})

    def _queues_of(self, members: ConsumerGroup) -> list[QueueKey]:
        topics = [self.seen.topics.get(name) for name in members.subscriptions]
        return [
            queue_key(topic.topic_name, queue_id)
            for topic in topics
            if topic is not None and not topic.topic_name.startswith(names.DEAD_PREFIX)
            for queue_id in range(topic.read_queue_nums)
        ]

    def _look_at_group(self, place: _Place, now_s: float) -> None:
        still = self._still.setdefault(place, _Still(0, now_s, 0))
        if (now_s - still.since_s) * 1000 >= self.stuck_after_ms:
            self._note(place, Kind.SUBSCRIPTIONS_DIFFER, still, now_s)

    def _look_at(self, group: str, key: QueueKey, members: ConsumerGroup, now_s: float) -> bool:
        """Whether the place must be remembered: messages wait there, or may some day."""
        place, end = (group, key), self.seen.store.max_offset(key)
        still = self._still.get(place)
        offset = self._offset_of(place)
        if offset is None:
            # What was there before the group came does not wait for it; what comes next does.
            offset = still.offset if still is not None else end
            if offset >= end:
                self._still[place] = _Still(offset, now_s, end)
                return True
        if offset >= end:
            return False
        if still is None or still.offset != offset:
            self._still[place] = _Still(offset, now_s, end)
            if place in self._found:
                self._end(place)
        elif (now_s - still.since_s) * 1000 >= self.stuck_after_ms:
            kind, client_id = self._judge(place, members, still, now_s)
            if kind is not None:
                self._note(place, kind, still, now_s, client_id=client_id, waiting=end - offset)
            elif place in self._found:
                self._end(place)
        return True

    def _offset_of(self, place: _Place) -> int | None:
        """Where the group is. One that has confirmed nothing yet begins with the first message of
        a queue that still has it; elsewhere nobody can tell, and this is None."""
        group, key = place
        committed = self.seen.offsets.get(group, key.topic, key.queue_id)
        first = self.seen.store.min_offset(key)
        if committed is not None:
            return max(committed, first)
        return 0 if first == 0 else None

    def _judge(
        self, place: _Place, members: ConsumerGroup, still: _Still, now_s: float
    ) -> tuple[Kind | None, str]:
        """What is the matter with a queue that stands still, and whose it is."""
        group, key = place
        pulled = self.seen.readers.last(group, key)
        idle_ms = (now_s - (pulled.at_s if pulled is not None else still.since_s)) * 1000
        if pulled is None or not pulled.peer.is_open:
            # Its owner may have left a moment ago, and another be about to take over.
            return (Kind.UNOWNED if idle_ms >= self.stuck_after_ms / 2 else None), ""
        member = members.clients.get(pulled.peer)
        owner = member.client_id if member is not None else pulled.peer.remote
        queue = MessageQueue(
            broker_name=self.seen.broker_name, queue_id=key.queue_id, topic=key.topic
        )
        if self.seen.locks.holder(group, queue, int(now_s * 1000)) is not None:
            return Kind.BLOCKED, owner
        is_waiting = self.seen.waiters.is_waiting(key, group)
        if not is_waiting and idle_ms >= self.stuck_after_ms:
            return Kind.NOT_PULLED, owner
        # It may be slow; that is nobody's business unless more comes in than it gets done.
        grew = self.seen.store.max_offset(key) > still.end
        return (Kind.FROZEN if grew else None), owner

    # What was found

    def _note(
        self, place: _Place, kind: Kind, still: _Still, now_s: float, *,
        client_id: str = "", waiting: int = 0,
    ) -> None:  # fmt: skip
        known, now_ms = self._found.get(place), self.clock.now_ms()
        if known is not None and known.kind is kind:
            self._found[place] = msgspec.structs.replace(known, waiting=waiting, seen_ms=now_ms)
            return
        if known is not None:
            self._end(place)
        if len(self._found) >= FINDINGS_MAX:
            self.left_out += 1
            return
        group, key = place
        message_id, keys = self._message(key, still.offset)
        found = self._found[place] = Finding(
            kind=kind, group=group, topic=key.topic, queue_id=key.queue_id, offset=still.offset,
            waiting=waiting, client_id=client_id[:TEXT_CHARS_MAX], message_id=message_id, keys=keys,
            since_ms=now_ms - round((now_s - still.since_s) * 1000), seen_ms=now_ms,
        )  # fmt: skip
        self.found_counts[kind] += 1
        self._say(logging.WARNING, f"group.{kind.value}", found)
        if kind is Kind.UNOWNED and group not in self._told:
            # Members that missed a change hear of it now; those that did not find nothing to do.
            self._told.add(group)
            self.tell_group(group)

    def _message(self, key: QueueKey, offset: int) -> tuple[str, str]:
        """Id and keys of the first message that waits, if it is still there."""
        with self.seen.store.read(key, QueueOffset(offset), _ONE) as read:
            for span in read.spans:
                message = MessageView(span)
                return (
                    message.message_id[:TEXT_CHARS_MAX],
                    " ".join(message.keys)[:TEXT_CHARS_MAX],
                )
        return "", ""

    def _end(self, place: _Place) -> None:
        found = self._found.pop(place)
        ended = msgspec.structs.replace(found, ended_ms=self.clock.now_ms())
        self._ended.append(ended)
        self._say(logging.INFO, "group.goes_on", ended)

    def _say(self, level: int, event: str, found: Finding) -> None:
        self._lines += 1
        if self._lines <= LINES_MAX:
            log.log(level, event, extra={"said": found.said, "mend": found.mend})


def _is_broadcast(members: ConsumerGroup) -> bool:
    described = members.described
    return described is not None and described.message_model is MessageModel.BROADCASTING
