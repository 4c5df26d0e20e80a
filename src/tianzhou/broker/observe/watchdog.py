"""The watchdog: finds queues without a reader, owners that hang, and offsets that do not advance.

Clients assign queues among themselves, and when that goes wrong, no error occurs: messages wait,
and a restart fixes it. The broker sees which clients pull and commit. If messages wait in a queue
and its group has committed nothing for a while, the watchdog reports one of four causes.

A round covers all queues of groups that have members, a slice in each tick, so that a tick takes no
longer with many queues.
"""

import enum
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
from tianzhou.broker.fetch.pull import PendingPull
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import ConsumerGroup, Readers, Sessions
from tianzhou.broker.groups.locks import Locks
from tianzhou.broker.topics.topics import Topics
from tianzhou.record.message import MessageView
from tianzhou.store.protocols import QueueReader
from tianzhou.store.read import ReadLimit
from tianzhou.wire.heartbeat import MessageModel
from tianzhou.wire.queues import MessageQueue

WHOLE_GROUP: Final = -1
"""Queue id of a finding about all queues of a group."""
TEXT_CHARS_MAX: Final = 256
"""Length of texts that clients choose, such as ids and keys, so that one of them cannot fill a page
or the log."""
_WHERE: Final = "queue {it.queue_id} of {it.topic}"
_SKIP: Final = "tianzhou group reset {it.group} {it.topic} --queue {it.queue_id} --to-offset "
log: Final = logging.getLogger("tianzhou.broker")
ROWS_PER_TICK: Final = 250
"""Queues that are checked in one tick; that takes less than a millisecond."""
ROUNDS: Final = 8
"""Rounds within `consumer_stuck_after_ms`."""
FINDINGS_MAX: Final = 1_000
"""Findings at a time; more are only counted."""
ENDED_KEPT: Final = 100
LINES_MAX: Final = 20
"""Log lines in one round. If everything is stuck, twenty examples are enough."""
_Place = tuple[str, QueueKey]
_ONE: Final = ReadLimit(count=1)


class Kind(enum.Enum):
    UNOWNED = "unowned"
    """The group has members, and none of them reads the queue."""
    NOT_PULLED = "not_pulled"
    """The owner of the queue is connected and does not pull."""
    BLOCKED = "blocked"
    """The queue is consumed in order, and one message is not completed."""
    FROZEN = "frozen"
    """The owner pulls and commits nothing, while messages arrive."""
    SUBSCRIPTIONS_DIFFER = "subscriptions_differ"
    """Members have different subscriptions, so that each gets messages meant for others."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A queue or group without progress, until `ended_ms` if that is set."""

    kind: Kind
    group: str
    topic: str = ""
    queue_id: int = WHOLE_GROUP
    offset: int = 0
    """The committed offset: that of the first waiting message."""
    waiting: int = 0
    """Waiting messages at the last check."""
    client_id: str = ""
    """The owner of the queue; empty if there is none."""
    message_id: str = ""
    keys: str = ""
    """Of the first waiting message."""
    since_ms: int
    """When the group last made progress, as far as the broker knows."""
    seen_ms: int
    """The last check that found it without progress."""
    ended_ms: int = 0

    @property
    def stuck_s(self) -> int:
        """How long there has been no progress."""
        return max(0, (self.ended_ms or self.seen_ms) - self.since_ms) // 1000

    @property
    def text(self) -> str:
        """The finding as one sentence."""
        return _TEXTS[self.kind].format(it=self)

    @property
    def remedy(self) -> str:
        """What to do about it, with the command."""
        return _REMEDIES[self.kind].format(it=self, behind=self.offset + 1)


_TEXTS: Final = {
    Kind.UNOWNED: "group {it.group} has members, but for {it.stuck_s} s no member has read "
    + _WHERE
    + ", where {it.waiting} messages wait",
    Kind.NOT_PULLED: "{it.client_id} of group {it.group} has "
    + _WHERE
    + " and for {it.stuck_s} s has neither committed nor pulled; {it.waiting} messages wait",
    Kind.BLOCKED: "group {it.group} reads "
    + _WHERE
    + " in order, and for {it.stuck_s} s has not got beyond message {it.message_id} at offset "
    "{it.offset}; {it.waiting} messages wait",
    Kind.FROZEN: "{it.client_id} of group {it.group} reads "
    + _WHERE
    + ", but for {it.stuck_s} s has committed nothing beyond offset {it.offset}, while its lag "
    "grew to {it.waiting}",
    Kind.SUBSCRIPTIONS_DIFFER: "for {it.stuck_s} s members of group {it.group} have had different "
    "subscriptions, so that messages get lost",
}
_REMEDIES: Final = {
    Kind.UNOWNED: "restart its consumers; to list its members: tianzhou group show {it.group}",
    Kind.NOT_PULLED: "its listener may hang; check the client, or restart it: "
    "tianzhou group show {it.group}",
    Kind.BLOCKED: "inspect the message: tianzhou message show {it.topic} {it.message_id}; "
    "to skip it: " + _SKIP + "{behind}",
    Kind.FROZEN: "inspect the first waiting message: "
    "tianzhou message show {it.topic} {it.message_id}; to skip it: " + _SKIP + "{behind}",
    Kind.SUBSCRIPTIONS_DIFFER: "use the same subscription in all members, or another group for "
    "some: tianzhou group show {it.group}",
}


class _Still(NamedTuple):
    """A group that has committed nothing in a queue since `since_s`."""

    offset: int
    since_s: float
    end: int
    """Of the queue, at that time."""


@dataclass(slots=True, kw_only=True)
class WatchdogInputs:
    """What the watchdog reads. Everything belongs to other parts of the broker."""

    store: QueueReader
    topics: Topics
    offsets: ConsumerOffsets
    sessions: Sessions
    readers: Readers
    waiters: LongPolls[PendingPull]
    locks: Locks
    broker_name: str


@dataclass(slots=True)
class _Round:
    """One pass over all queues."""

    begun_s: float
    lines: int = 0
    """Lines written to the log, or suppressed."""
    left_out: int = 0
    rebalanced: set[str] = field(default_factory=set[str])
    """Groups whose members were notified."""


@dataclass(slots=True)
class Watchdog:
    """A service of the broker. Owner: the broker loop."""

    inputs: WatchdogInputs
    clock: Clock
    stuck_after_ms: int
    rebalance: Callable[[str], None] = lambda _group: None
    """Makes the members of a group reassign their queues."""
    found_counts: Counter[Kind] = field(default_factory=Counter[Kind])
    """All findings since the start."""
    _still: dict[_Place, _Still] = field(default_factory=dict[_Place, _Still])
    _found: dict[_Place, Finding] = field(default_factory=dict[_Place, Finding])
    _ended: deque[Finding] = field(default_factory=lambda: deque[Finding](maxlen=ENDED_KEPT))
    _steps: Iterator[None] | None = None
    """The rest of the current round; None between two rounds."""
    _round: _Round = field(default_factory=lambda: _Round(0.0))

    # The service

    def adopt(self, config: BrokerConfig) -> None:
        """Apply settings that changed while the broker runs."""
        self.stuck_after_ms = config.consumer_stuck_after_ms

    def tick(self) -> bool:
        now_s = self.clock.monotonic_s()
        if self._steps is None:
            if (now_s - self._round.begun_s) * 1000 < self.stuck_after_ms / ROUNDS:
                return False
            self._round = _Round(now_s)
            self._steps = self._check_all(now_s)
        for count, _ in enumerate(self._steps, 1):
            if count >= ROWS_PER_TICK:
                return True
        self._steps = None
        return False

    def finish(self) -> None:
        """Nothing is kept: the next start begins with a new round."""

    @property
    def left_out(self) -> int:
        """Findings of the last round that exceed `FINDINGS_MAX`."""
        return self._round.left_out

    # Findings, for the dashboard and metrics

    def events(self) -> list[Finding]:
        """Current findings, the longest first; then those that have ended."""
        now = sorted(self._found.values(), key=lambda found: found.since_ms)
        return [*now, *reversed(self._ended)]

    def counts(self) -> Counter[Kind]:
        """The number of current findings of each kind."""
        return Counter(found.kind for found in self._found.values())

    # One round

    def _check_all(self, now_s: float) -> Iterator[None]:
        """Check one queue after another; the caller decides how many at a time."""
        met: set[_Place] = set()
        for group in list(self.inputs.sessions.consumers):
            members = self.inputs.sessions.consumers.get(group)
            if members is None or _is_broadcast(members) or names.is_system_group(group):
                continue
            whole = (group, queue_key("", WHOLE_GROUP))
            if not members.is_consistent:
                met.add(whole)
                self._check_group(whole, now_s)
            for key in self._queues_of(members):
                if self._check_queue(group, key, members, now_s):
                    met.add((group, key))
                yield
        for place in self._still.keys() - met:
            del self._still[place]
        for place in self._found.keys() - met:
            self._end(place)
        left_out, lines = self._round.left_out, self._round.lines
        if left_out or lines > LINES_MAX:
            log.warning("watchdog.more", extra={"count": left_out + lines - LINES_MAX})

    def _queues_of(self, members: ConsumerGroup) -> list[QueueKey]:
        topics = [self.inputs.topics.get(name) for name in members.subscriptions]
        return [
            queue_key(topic.topic_name, queue_id)
            for topic in topics
            if topic is not None and not topic.topic_name.startswith(names.DEAD_PREFIX)
            for queue_id in range(topic.read_queue_nums)
        ]

    def _check_group(self, place: _Place, now_s: float) -> None:
        still = self._still.setdefault(place, _Still(0, now_s, 0))
        if (now_s - still.since_s) * 1000 >= self.stuck_after_ms:
            self._record_finding(place, Kind.SUBSCRIPTIONS_DIFFER, still, now_s)

    def _check_queue(self, group: str, key: QueueKey, members: ConsumerGroup, now_s: float) -> bool:
        """Check one queue of a group; returns whether it must be checked again in the next
        round."""
        place, end = (group, key), self.inputs.store.max_offset(key)
        still = self._still.get(place)
        offset = self._offset_of(place)
        if offset is None:
            # Messages stored before the group was created do not wait for it; later ones do.
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
                self._record_finding(
                    place, kind, still, now_s, client_id=client_id, waiting=end - offset
                )
            elif place in self._found:
                self._end(place)
        return True

    def _offset_of(self, place: _Place) -> int | None:
        """The offset of the group. A group without commits starts with the first message of a queue
        that still has it; otherwise the offset is unknown, and this is None."""
        group, key = place
        committed = self.inputs.offsets.get(group, key.topic, key.queue_id)
        first = self.inputs.store.min_offset(key)
        if committed is not None:
            return max(committed, first)
        return 0 if first == 0 else None

    def _judge(
        self, place: _Place, members: ConsumerGroup, still: _Still, now_s: float
    ) -> tuple[Kind | None, str]:
        """The cause for a queue without progress, and the owner of the queue."""
        group, key = place
        pulled = self.inputs.readers.last(group, key)
        idle_ms = (now_s - (pulled.at_s if pulled is not None else still.since_s)) * 1000
        if pulled is None or not pulled.peer.is_open:
            # Its owner may have left just now, and another may be about to take over.
            return (Kind.UNOWNED if idle_ms >= self.stuck_after_ms / 2 else None), ""
        member = members.clients.get(pulled.peer)
        owner = member.client_id if member is not None else pulled.peer.remote
        queue = MessageQueue(
            broker_name=self.inputs.broker_name, queue_id=key.queue_id, topic=key.topic
        )
        if self.inputs.locks.holder(group, queue, int(now_s * 1000)) is not None:
            return Kind.BLOCKED, owner
        is_waiting = self.inputs.waiters.is_waiting(key, group)
        if not is_waiting and idle_ms >= self.stuck_after_ms:
            return Kind.NOT_PULLED, owner
        # A slow consumer is reported only if messages arrive faster than it commits.
        grew = self.inputs.store.max_offset(key) > still.end
        return (Kind.FROZEN if grew else None), owner

    # Findings

    def _record_finding(
        self,
        place: _Place,
        kind: Kind,
        still: _Still,
        now_s: float,
        *,
        client_id: str = "",
        waiting: int = 0,
    ) -> None:
        known, now_ms = self._found.get(place), self.clock.now_ms()
        if known is not None and known.kind is kind:
            self._found[place] = msgspec.structs.replace(known, waiting=waiting, seen_ms=now_ms)
            return
        if known is not None:
            self._end(place)
        if len(self._found) >= FINDINGS_MAX:
            self._round.left_out += 1
            return
        group, key = place
        message_id, keys = self._message(key, still.offset)
        found = self._found[place] = Finding(
            kind=kind,
            group=group,
            topic=key.topic,
            queue_id=key.queue_id,
            offset=still.offset,
            waiting=waiting,
            client_id=client_id[:TEXT_CHARS_MAX],
            message_id=message_id,
            keys=keys,
            since_ms=now_ms - round((now_s - still.since_s) * 1000),
            seen_ms=now_ms,
        )
        self.found_counts[kind] += 1
        self._log_finding(logging.WARNING, f"group.{kind.value}", found)
        if kind is Kind.UNOWNED and group not in self._round.rebalanced:
            # Members that missed a change reassign their queues now; the others change nothing.
            self._round.rebalanced.add(group)
            self.rebalance(group)

    def _message(self, key: QueueKey, offset: int) -> tuple[str, str]:
        """Id and keys of the first waiting message; empty if it cannot be read."""
        with self.inputs.store.read(key, QueueOffset(offset), _ONE) as read:
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
        self._log_finding(logging.INFO, "group.goes_on", ended)

    def _log_finding(self, level: int, event: str, found: Finding) -> None:
        self._round.lines += 1
        if self._round.lines <= LINES_MAX:
            log.log(level, event, extra={"said": found.text, "remedy": found.remedy})


def _is_broadcast(members: ConsumerGroup) -> bool:
    described = members.described
    return described is not None and described.message_model is MessageModel.BROADCASTING
