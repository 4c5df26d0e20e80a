"""Views of several brokers on the same topics and groups, merged.

Each broker reports only its own state. A topic has queues on several brokers, and a
member of a group is connected to all of them: numbers of messages add up, numbers of members do
not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Generic, TypeVar

import msgspec

from tianzhou.client.core.admin_results import BrokerPlace
from tianzhou.wire.nameserver_bodies import MissingBroker, NameServerView
from tianzhou.wire.view_bodies import BrokerView, Disk, GroupRow, LightQueueRow, TopicRow

T = TypeVar("T")

JOB_MS: Final = 10 * 60_000
"""A job that committed an offset within this time counts as running."""


@dataclass(frozen=True)
class PerBroker(Generic[T]):
    """The response of each broker, by name."""

    found: Mapping[str, T]
    missing: Mapping[str, str] = field(default_factory=dict[str, str])
    """Brokers that did not respond, and why."""


@dataclass(frozen=True)
class ClusterView:
    """Every broker that the NameServer knows, with the response of each member of its group."""

    places: tuple[BrokerPlace, ...]
    members: Mapping[str, BrokerView]
    """By address: masters, slaves and Raft followers."""
    missing: Mapping[str, str] = field(default_factory=dict[str, str])
    """Addresses that did not respond, and why."""
    nameservers: Mapping[str, NameServerView] = field(default_factory=dict[str, NameServerView])
    """Missing brokers that each NameServer reports, by address."""
    silent: Mapping[str, str] = field(default_factory=dict[str, str])
    """NameServers that did not respond, and why."""
    groups: tuple[GroupRow, ...] = ()
    """All groups, if a broker is missing: some of them may have consumed its topics."""

    @cached_property
    def brokers(self) -> PerBroker[BrokerView]:
        """The view of each broker from its master, or from a slave if it has no master."""
        nearest = {place.name: place.nearest for place in self.places}
        return PerBroker(
            {name: self.members[at] for name, at in nearest.items() if at in self.members},
            {name: self.missing[at] for name, at in nearest.items() if at in self.missing},
        )

    @cached_property
    def vanished(self) -> list[MissingBroker]:
        """Brokers that disappeared without unregistering. A broker that one NameServer misses and
        another one still knows is not missing."""
        alive = {address for place in self.places for address in place.addresses.values()}
        every = missing_together(self.nameservers.values())
        return [row for row in every if row.address not in alive]


def missing_together(views: Iterable[NameServerView]) -> list[MissingBroker]:
    """Missing brokers of several NameServers, by name: each process once, with the earliest
    time."""
    found: dict[tuple[str, str], MissingBroker] = {}
    for view in views:
        for row in view.missing:
            known = found.setdefault((row.name, row.address), row)
            if row.since_ms < known.since_ms:
                found[row.name, row.address] = row
    return [found[key] for key in sorted(found)]


# Topics and groups


def topics_together(rows: Iterable[TopicRow]) -> list[TopicRow]:
    """One row for each topic, by name."""
    found: dict[str, TopicRow] = {}
    for row in rows:
        known = found.get(row.name)
        found[row.name] = row if known is None else _both_topics(known, row)
    return [found[name] for name in sorted(found)]


def _both_topics(one: TopicRow, other: TopicRow) -> TopicRow:
    return msgspec.structs.replace(
        one,
        count=one.count + other.count,
        get_per_second=one.get_per_second + other.get_per_second,
        groups=max(one.groups, other.groups),
        put_per_second=one.put_per_second + other.put_per_second,
        put_size_per_second=one.put_size_per_second + other.put_size_per_second,
        read_queues=one.read_queues + other.read_queues,
        write_queues=one.write_queues + other.write_queues,
    )


@dataclass(frozen=True, slots=True)
class LightQueueTotal:
    """One light queue on all brokers that have it.

    queues, _ = await admin.views.light_queues("alice")
    print(queues[0].name, queues[0].count)
    """

    name: str
    count: int
    """Messages that are still there."""
    brokers: int


def light_queues_together(rows: Iterable[LightQueueRow]) -> list[LightQueueTotal]:
    """One row for each light queue, by name."""
    found: dict[str, LightQueueTotal] = {}
    for row in rows:
        known = found.get(row.name, LightQueueTotal(row.name, 0, 0))
        found[row.name] = LightQueueTotal(row.name, known.count + row.count, known.brokers + 1)
    return [found[name] for name in sorted(found)]


def groups_together(rows: Iterable[GroupRow]) -> list[GroupRow]:
    """One row for each group, by name."""
    found: dict[str, GroupRow] = {}
    for row in rows:
        known = found.get(row.name)
        found[row.name] = row if known is None else _both_groups(known, row)
    return [found[name] for name in sorted(found)]


def _both_groups(one: GroupRow, other: GroupRow) -> GroupRow:
    return msgspec.structs.replace(
        one,
        dead=one.dead + other.dead,
        dead_ms=max(one.dead_ms, other.dead_ms),
        dead_not_replayed=one.dead_not_replayed + other.dead_not_replayed,
        enabled=one.enabled and other.enabled,
        get_per_second=one.get_per_second + other.get_per_second,
        held=one.held + other.held,
        is_abandoned=one.is_abandoned or other.is_abandoned,
        is_consistent=one.is_consistent and other.is_consistent,
        lag=one.lag + other.lag,
        members=max(one.members, other.members),
        moved_ms=max(one.moved_ms, other.moved_ms),
        oldest_ms=_first(one.oldest_ms, other.oldest_ms),
        retrying=one.retrying + other.retrying,
        stuck=one.stuck + other.stuck,
        stuck_ms=_first(one.stuck_ms, other.stuck_ms),
        topics=tuple(sorted({*one.topics, *other.topics})),
    )


def _first(one_ms: int, other_ms: int) -> int:
    """Return the earlier time; 0 means none, -1 unknown."""
    if -1 in (one_ms, other_ms):
        return -1
    return min(one_ms or other_ms, other_ms or one_ms)


def is_job(row: GroupRow, now_ms: int) -> bool:
    """Whether a job commits for the group without being a member, as Spark queries do."""
    return not row.members and not row.is_abandoned and now_ms - row.moved_ms < JOB_MS


# The disk


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a disk will be full at the current rate of messages."""

    used_ratio: float
    bytes_per_second: float
    refuse_s: float | None
    """Seconds until messages are refused; None if the disk does not fill."""


def forecast(disk: Disk) -> Forecast | None:
    """Return None if the broker does not know its disk. Expiry is ignored: nothing expires before
    the log is as old as its retention."""
    if not disk.total:
        return None
    used = disk.total - disk.free
    # The rate per minute shows bursts, the rate per hour the trend.
    rate = max(disk.put_size_per_hour, disk.put_size_per_minute)

    left = max(disk.total * disk.refuse_ratio - used, 0.0)
    return Forecast(used / disk.total, rate, left / rate if rate else None)


# Text


def marks_text(used: float, *, clean: float, refuse: float) -> str:
    """Describe how full a disk is, and the effect; the arguments are ratios."""
    if used > refuse:
        return f"its disk is {used:.0%} full; over {refuse:.0%} messages are refused"
    return (
        f"its disk is {used:.0%} full: over {clean:.0%} expired files are deleted at any hour, "
        f"over {refuse:.0%} messages are refused"
    )


def skew_text(seconds: float) -> str:
    """Describe how far a broker's clock is ahead."""
    way = "ahead of" if seconds > 0 else "behind"
    return f"its clock is {abs(seconds):,.0f} s {way} this machine's; timed messages are off"


_SPANS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def span_text(seconds: float) -> str:
    """Return a duration in its two largest units: 3 d 4 h, 12 min 5 s; 1.3 s, 250 ms."""
    if seconds < 0.9995:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    left, words = round(seconds), list[str]()
    for length, unit in _SPANS:
        count, left = divmod(left, length)
        if count or words:
            words.append(f"{count} {unit}")
        if len(words) == 2:
            break
    return " ".join(word for word in words if not word.startswith("0 "))


def size_text(size: float) -> str:
    for unit in _SIZES[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_SIZES[-1]}"
