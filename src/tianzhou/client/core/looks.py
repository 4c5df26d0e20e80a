"""What several brokers say of the same topics and groups, put together, and what it means.

A broker answers for itself. A topic has queues on several brokers, and a member of a group is
connected to all of them: numbers of messages add up, numbers of members do not.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec

from tianzhou.client.core.admin_results import BrokerPlace
from tianzhou.client.core.copies import Worry, worries
from tianzhou.client.core.routing import MASTER
from tianzhou.wire.look_bodies import BrokerLook, Disk, Event, GroupRow, TopicRow

T = TypeVar("T")

WRITE: Final = 2
SKEW_MAX_MS: Final = 5_000
"""Timed messages, retention and lag in seconds are wrong by what clocks differ."""
DISPATCH_BEHIND_MAX: Final = 64 * 1024 * 1024
DAY_S: Final = 86_400
JOB_MS: Final = 10 * 60_000
"""A job that has confirmed something within this time is taken to run."""


@dataclass(frozen=True)
class Looked(Generic[T]):
    """What brokers answered, by their names."""

    found: Mapping[str, T]
    missing: Mapping[str, str] = field(default_factory=dict[str, str])
    """Brokers that did not answer, and why."""


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
    """The earlier moment; 0 is none, -1 is not known."""
    if -1 in (one_ms, other_ms):
        return -1
    return min(one_ms or other_ms, other_ms or one_ms)


# The disk


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a disk is too full for messages if they keep coming as they do."""

    used_ratio: float
    bytes_per_second: float
    refuse_s: float | None
    """Seconds until messages are refused; None: not in sight."""


def forecast(disk: Disk) -> Forecast | None:
    """None: the broker does not know its disk. What expires is left out of account: nothing does
    before the log is as old as it is kept."""
    if not disk.total:
        return None
    used = disk.total - disk.free
    # A minute shows a burst that an hour hides, an hour what a minute can't.
    rate = max(disk.put_size_per_hour, disk.put_size_per_minute)

    left = max(disk.total * disk.refuse_ratio - used, 0.0)
    return Forecast(used / disk.total, rate, left / rate if rate else None)


# What is wrong


class Level(enum.Enum):
    PROBLEM = "problem"
    """Something does not work."""
    WARNING = "warning"
    """It works, and may not for long, or not as one thinks."""


@dataclass(frozen=True, slots=True)
class Alarm:
    level: Level
    about: str
    """`broker`, `group` or `nameserver`: what `name` is the name of."""
    name: str
    said: str
    mend: str = ""
    since_ms: int = 0
    more: int = 0
    """Other queues of the group of which the same is to be said."""


def alarms(
    looked: Looked[BrokerLook], now_ms: int, places: Iterable[BrokerPlace] = ()
) -> list[Alarm]:
    """In words, the worst first; `now_ms` is the clock of whoever looks."""
    known = {place.name: place for place in places}
    found = [
        Alarm(
            Level.PROBLEM,
            "broker",
            place.name,
            said,
            f"start it, or let another take over: tianzhou broker promote {place.name}",
        )
        for place in known.values()
        if MASTER not in place.addresses and not _elects(looked.found.get(place.name))
        for said in ("it has no master: its messages can be read, and none can be sent to it",)
    ]
    found += [
        Alarm(Level.PROBLEM, "broker", name, f"it does not answer: {why}", "is it running?")
        for name, why in looked.missing.items()
    ]
    for look in looked.found.values():
        found += _broker_alarms(look, now_ms)
        found += [
            Alarm(_level(worry), "broker", look.name, worry.said, worry.mend)
            for worry in worries(look, known.get(look.name))
        ]
    found += _event_alarms(e for look in looked.found.values() for e in look.events)
    troubled = groups_together(r for b in looked.found.values() for r in b.troubled)
    found += _group_alarms(troubled, now_ms)
    return sorted(found, key=lambda alarm: alarm.level is not Level.PROBLEM)


def _elects(look: BrokerLook | None) -> bool:
    """Whether its members find a master by themselves."""
    return look is not None and look.raft is not None


def _level(worry: Worry) -> Level:
    return Level.PROBLEM if worry.is_problem else Level.WARNING


def _broker_alarms(look: BrokerLook, now_ms: int) -> Iterator[Alarm]:
    def problem(said: str, mend: str) -> Alarm:
        return Alarm(Level.PROBLEM, "broker", look.name, said, mend)

    def warning(said: str, mend: str) -> Alarm:
        return Alarm(Level.WARNING, "broker", look.name, said, mend)

    if look.is_broken:
        yield problem(
            "its store is broken, it serves nothing", "stop it; tianzhou store verify DIR"
        )
    if look.refusal:
        yield problem(f"it takes no messages: {look.refusal}", "make room on its disk")
    if look.damaged:
        yield problem(
            f"{look.damaged} records are damaged and not delivered", "tianzhou store verify DIR"
        )
    if not look.permission & WRITE:
        yield warning(
            "it is being drained: producers send elsewhere",
            f"when that is over: tianzhou broker drain {look.name} --undo",
        )
    if look.dispatch_behind > DISPATCH_BEHIND_MAX:
        yield warning(
            f"{look.dispatch_behind >> 20} MiB are stored and not visible to consumers yet",
            "it catches up when less is sent",
        )
    if abs(look.now_ms - now_ms) > SKEW_MAX_MS:
        said = skew_text((look.now_ms - now_ms) / 1000)
        yield warning(said, "timedatectl set-ntp true, on both machines")
    if not look.refusal:
        yield from _disk_alarms(look.name, look.disk)


def _disk_alarms(name: str, disk: Disk) -> Iterator[Alarm]:
    seen = forecast(disk)
    if seen is None:
        return
    mend = f"make room, or keep messages shorter: tianzhou broker config {name} --like disk"
    if seen.used_ratio > disk.clean_ratio:
        said = marks_text(seen.used_ratio, clean=disk.clean_ratio, refuse=disk.refuse_ratio)
        yield Alarm(Level.WARNING, "broker", name, said, mend)
    # What is kept for less than that expires before.
    elif seen.refuse_s is not None and seen.refuse_s < min(DAY_S, disk.retention_hours * 3600):
        said = (
            f"its disk is full in {span_text(seen.refuse_s)} if messages keep coming as now, "
            f"{size_text(seen.bytes_per_second)} a second"
        )
        yield Alarm(Level.WARNING, "broker", name, said, mend)


def _event_alarms(events: Iterable[Event]) -> list[Alarm]:
    """One for each thing that is the matter with a group: twenty queues that hang are one fault."""
    alike: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        if not event.ended_ms:
            alike.setdefault((event.group, event.kind), []).append(event)
    firsts = [(min(some, key=lambda e: e.since_ms), len(some) - 1) for some in alike.values()]
    return [
        Alarm(Level.PROBLEM, "group", e.group, e.said, e.mend, e.since_ms, more)
        for e, more in firsts
    ]


def is_job(row: GroupRow, now_ms: int) -> bool:
    """Whether somebody confirms for the group without being a member, as queries of Spark do."""
    return not row.members and not row.is_abandoned and now_ms - row.moved_ms < JOB_MS


def _group_alarms(rows: Iterable[GroupRow], now_ms: int) -> Iterator[Alarm]:
    """What the watchdog does not look at: groups whose members are all gone, or switched off."""
    for row in rows:
        if not row.enabled:
            said = f"it is switched off: brokers give it nothing; {row.lag:,} messages wait"
            mend = f"tianzhou group update {row.name} --consume"
            yield Alarm(Level.WARNING, "group", row.name, said, mend)
        elif row.lag and not row.members and not is_job(row, now_ms):
            said = f"nobody reads for it, and {row.lag:,} messages wait"
            yield Alarm(Level.WARNING, "group", row.name, said, "start its consumers")


# Numbers for people


def marks_text(used: float, *, clean: float, refuse: float) -> str:
    """How full a disk is, and what that means; all of them are shares."""
    if used > refuse:
        return f"its disk is {used:.0%} full; over {refuse:.0%} messages are refused"
    return (
        f"its disk is {used:.0%} full: over {clean:.0%} expired files go at any hour, "
        f"over {refuse:.0%} messages are refused"
    )


def skew_text(seconds: float) -> str:
    """How far a broker's clock is ahead."""
    way = "ahead of" if seconds > 0 else "behind"
    return f"its clock is {abs(seconds):,.0f} s {way} this machine's; timed messages are off"


_SPANS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def span_text(seconds: float) -> str:
    """The two largest units: 3 d 4 h, 12 min 5 s; 1.3 s, 250 ms."""
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
