"""Missing brokers: they registered once and disappeared without unregistering.

The route table drops a broker as soon as its connection closes, as in RocketMQ, because clients
must not be routed to it. An operator must still see it: it may hold half of a topic. So the last
known state stays here until the broker registers again or an operator retires it.

A NameServer that restarts expects the brokers that were there before (`expect`). Those that have
not registered again after `RETURN_MS` are missing too: they died with the NameServer, or meanwhile.

Bounded in number and bytes. `memory.py` keeps this across restarts if the NameServer has a
directory.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from tianzhou.nameserver.brokers import Lost
from tianzhou.wire.names import (
    BENCHMARK_TOPIC,
    CHECKED_OUT_TOPIC,
    DEAD_LETTER_PREFIX,
    DEFAULT_TOPIC,
    OFFSET_MOVED_TOPIC,
    REPLY_TOPIC_SUFFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_PREFIX,
    SYSTEM_PREFIX_OLD,
)
from tianzhou.wire.nameserver_bodies import MissingBroker, MissingTopic
from tianzhou.wire.routes import QueueData

BROKERS_MAX: Final = 64
"""Beyond this, the broker that has been missing longest is dropped."""
NAMES_MAX: Final = 100
"""Topics, and groups, of one broker that are remembered; the rest is counted. Names have at most
255 bytes, so the total stays below 4 MiB and fits into one response."""
RETURN_MS: Final = 60_000
"""How long a restarted NameServer waits for brokers: two registrations, one of which may fail."""
_INTERNAL: Final = (
    RETRY_PREFIX,
    DEAD_LETTER_PREFIX,
    SYSTEM_PREFIX,
    SYSTEM_PREFIX_OLD,
    SCHEDULE_TOPIC,
    CHECKED_OUT_TOPIC,
    SELF_TEST_TOPIC,
    OFFSET_MOVED_TOPIC,
    BENCHMARK_TOPIC,
    DEFAULT_TOPIC,
)
"""Prefixes of the topics that brokers create for internal use."""


class MissingBrokers:
    """Owner: the event loop of the NameServer."""

    def __init__(self, *, brokers_max: int = BROKERS_MAX, names_max: int = NAMES_MAX) -> None:
        self._rows: dict[tuple[str, str], MissingBroker] = {}
        """By broker name and address, the longest missing first."""
        self._expected: dict[tuple[str, str], MissingBroker] = {}
        """Registered before this NameServer started, and not since."""
        self._brokers_max = brokers_max
        self._names_max = names_max
        self.changes = 0
        """Incremented with every change."""

    def lost(self, lost: Lost, reason: str, now_ms: int) -> None:
        """Remember a broker whose connection closed, or that was silent for too long."""
        self._add(self.row_of(lost, reason, now_ms))

    def _add(self, row: MissingBroker) -> None:
        key = (row.name, row.address)
        self.changes += 1
        self._rows.pop(key, None)
        if len(self._rows) >= self._brokers_max:
            del self._rows[next(iter(self._rows))]
        self._rows[key] = row

    def row_of(self, lost: Lost, reason: str, now_ms: int) -> MissingBroker:
        """Describe a process in bounded size."""
        topics = sorted(
            (name, row) for name, row in lost.rows.items() if not _is_internal(name, lost)
        )
        groups = sorted(
            name[len(RETRY_PREFIX) :] for name in lost.rows if name.startswith(RETRY_PREFIX)
        )
        kept_topics, kept_groups = topics[: self._names_max], groups[: self._names_max]
        return MissingBroker(
            address=lost.member.address,
            broker_id=lost.broker_id,
            cluster=lost.cluster,
            groups=tuple(kept_groups),
            left_out=len(topics) + len(groups) - len(kept_topics) - len(kept_groups),
            name=lost.name,
            reason=reason,
            since_ms=now_ms,
            topics=tuple(_topic(name, row) for name, row in kept_topics),
        )

    def expect(self, rows: Iterable[MissingBroker], now_ms: int) -> None:
        """Take these brokers for missing from now on, unless they register soon."""
        for row in rows:
            if len(self._expected) < self._brokers_max:
                since = msgspec.structs.replace(self._bounded(row), since_ms=now_ms)
                self._expected[row.name, row.address] = since

    def expected(self) -> Iterable[MissingBroker]:
        return self._expected.values()

    def overdue(self, now_ms: int) -> list[MissingBroker]:
        """Record expected brokers as missing that did not register in time; returns them."""
        rows = [row for row in self._expected.values() if now_ms - row.since_ms >= RETURN_MS]
        for row in rows:
            del self._expected[row.name, row.address]
            self._add(row)
        return rows

    def registered(
        self, name: str, broker_id: int, address: str, *, was_known: bool, has_master: bool
    ) -> None:
        """Handle a registration: the broker is back, or another one replaces a missing one.

        A member of the same group that only changes its id (`was_known`), such as a promoted slave,
        replaces nothing: the old master is still missing. The old master may rejoin with another
        address as a slave of the new one (`has_master`): a broker that joins the group then
        replaces the one that has been missing longest."""
        was_known |= self.unregistered(name, address)
        if self._rows.pop((name, address), None) is not None:
            self.changes += 1
        if was_known:
            return
        for rows in (self._expected, self._rows):
            replaced = [
                key for key, row in rows.items() if (row.name, row.broker_id) == (name, broker_id)
            ]
            if not replaced and has_master and rows is self._rows:
                replaced = [key for key in rows if key[0] == name][:1]
            for key in replaced:
                del rows[key]
                self.changes += 1

    def unregistered(self, name: str, address: str) -> bool:
        """No longer expect this broker; returns whether it was expected."""
        was_expected = self._expected.pop((name, address), None) is not None
        self.changes += was_expected
        return was_expected

    def forget(self, name: str) -> int:
        """Forget a retired broker; returns how many processes were forgotten."""
        count = 0
        for rows in (self._expected, self._rows):
            for key in [key for key in rows if key[0] == name]:
                del rows[key]
                self.changes += 1
                count += 1
        return count

    def restore(self, rows: Iterable[MissingBroker]) -> None:
        """Restore what an earlier process saved: the newest, as far as the bounds allow."""
        for row in sorted(rows, key=lambda row: row.since_ms)[-self._brokers_max :]:
            self._rows[row.name, row.address] = self._bounded(row)

    def _bounded(self, row: MissingBroker) -> MissingBroker:
        return msgspec.structs.replace(
            row, topics=row.topics[: self._names_max], groups=row.groups[: self._names_max]
        )

    def all(self) -> Iterable[MissingBroker]:
        return self._rows.values()

    def __len__(self) -> int:
        return len(self._rows)


def _is_internal(topic: str, lost: Lost) -> bool:
    return (
        topic in (lost.name, lost.cluster)
        or topic.startswith(_INTERNAL)
        or topic.endswith(REPLY_TOPIC_SUFFIX)
    )


def _topic(name: str, row: QueueData) -> MissingTopic:
    return MissingTopic(
        name=name, read_queues=row.read_queue_nums, write_queues=row.write_queue_nums
    )
