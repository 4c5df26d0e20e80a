"""Findings about a cluster, computed from views alone, without further requests.

`tianzhou doctor` and the dashboard both show this list, so that they cannot disagree; the doctor
only adds findings that need probing or a second sample. Problems that a broker detects itself are
its alarms, which `/metrics` and `tianzhou broker status` show too.

There is at most one finding for each group, however many of its queues are stuck. Sentences that
both this module and the doctor's probes may find are defined once, here: see `Sentence`.
"""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tianzhou.client.core.admin_results import BrokerPlace
from tianzhou.client.core.replicas import replica_findings
from tianzhou.client.core.routing import MASTER
from tianzhou.client.core.subscription import is_internal_group
from tianzhou.client.core.views import (
    ClusterView,
    forecast,
    groups_together,
    is_job,
    marks_text,
    size_text,
    skew_text,
    span_text,
)
from tianzhou.wire.names import PERM_WRITE
from tianzhou.wire.nameserver_bodies import MissingBroker, RefusedBroker
from tianzhou.wire.view_bodies import AlarmRow, BrokerView, Disk, Event, GroupRow

SKEW_MAX_MS: Final = 5_000
"""The clock difference is an error in timed messages, retention and lag in seconds."""
DAY_S: Final = 86_400
UNREACHABLE: Final = "unreachable"
VERSIONS: Final = "versions"
MISSING: Final = "broker_missing"
NAME_TAKEN: Final = "name_taken"
"""Also the kinds of the alarms that brokers raise for these conditions."""
RAFT_PAIR: Final = "raft_pair"
"""The kind of the alarm that every member of a Raft group of two voters raises."""
LISTED_MAX: Final = 5
"""Names listed in one sentence."""
DRAINING: Final = "draining"
"""The kind of the alarm of a broker that is being drained."""
DIFFER: Final = "subscriptions_differ"
UNOWNED: Final = "unowned"
"""Kinds of the watchdog's events."""
STUCK: Final = "stuck"
NO_PROGRESS: Final = frozenset({UNOWNED, "not_pulled", "blocked", "frozen", STUCK})
"""Kinds of findings about queues that a group does not consume."""


class Level(enum.Enum):
    PROBLEM = "problem"
    """Something does not work."""
    WARNING = "warning"
    """Everything works, but may soon fail or behave unexpectedly."""
    FINE = "fine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    level: Level
    kinds: tuple[str, ...]
    """Stable identifiers, such as `no_master`; that of the alarm, where a broker raised one.
    A group has one for each sentence."""
    about: str
    """`broker`, `group`, `NameServer` or `cluster`: what `name` is the name of."""
    name: str
    said: str
    remedy: str = ""
    since_ms: int = 0


def findings(view: ClusterView, now_ms: int) -> list[Finding]:
    """All findings, problems first; `now_ms` is the clock of this machine."""
    found = [finding for place in view.places for finding in _place_findings(view, place, now_ms)]
    if not any(broker_view.permission & PERM_WRITE for broker_view in view.brokers.found.values()):
        found = [_worse(finding) if DRAINING in finding.kinds else finding for finding in found]
    found += _vanished_findings(view, now_ms, found)
    found += _nameserver_findings(view)
    found += _version_findings(view)
    found += _group_findings(view, now_ms)
    return sorted(found, key=lambda finding: finding.level is not Level.PROBLEM)


def _worse(finding: Finding) -> Finding:
    """Draining is a warning while producers can send to another broker."""
    return replace(finding, level=Level.PROBLEM)


# Brokers


def _place_findings(view: ClusterView, place: BrokerPlace, now_ms: int) -> Iterator[Finding]:
    broker_view = view.brokers.found.get(place.name)
    if MASTER not in place.addresses and (broker_view is None or broker_view.raft is None):
        yield _problem(
            "no_master",
            place.name,
            "its group has no master: its messages can be read, but it accepts no writes",
            "start its master (brokerId 0): tianzhou broker -n NAMESERVER -c ITS-SETTINGS, "
            f"or: tianzhou broker promote {place.name}",
        )
    for broker_id, address in sorted(place.addresses.items()):
        if address in view.missing:
            said = f"{_replica(place, broker_id)}it does not respond: {view.missing[address]}"
            yield _problem(UNREACHABLE, place.name, said, "is it running?")
        member = view.members.get(address)
        if member is not None:
            yield from _member_findings(member, place, broker_id, now_ms)
    if broker_view is not None:
        for finding in replica_findings(broker_view, place):
            level = Level.PROBLEM if finding.is_problem else Level.WARNING
            yield Finding(
                level=level,
                kinds=("replication",),
                about="broker",
                name=place.name,
                said=finding.said,
                remedy=finding.remedy,
            )


def _replica(place: BrokerPlace, broker_id: int) -> str:
    """The start of a sentence about one replica; empty for the one that represents the broker."""
    if broker_id == min(place.addresses):
        return ""
    return f"its replica {broker_id} at {place.addresses[broker_id]}: "


def _member_findings(
    broker_view: BrokerView, place: BrokerPlace, broker_id: int, now_ms: int
) -> Iterator[Finding]:
    prefix = _replica(place, broker_id)
    for alarm in broker_view.alarms:
        # NameServers know more about missing brokers, and one member speaks for its group.
        if alarm.kind != MISSING and not (alarm.kind == RAFT_PAIR and prefix):
            yield _from_alarm(alarm, place.name, prefix)
    if abs(broker_view.now_ms - now_ms) > SKEW_MAX_MS:
        said = prefix + skew_text((broker_view.now_ms - now_ms) / 1000)
        remedy = "timedatectl set-ntp true, on both machines"
        yield _warning("clock_skew", place.name, said, remedy)
    if not broker_view.refusal:
        yield from _disk_findings(place.name, prefix, broker_view.disk)


# Missing brokers


def _vanished_findings(view: ClusterView, now_ms: int, known: list[Finding]) -> Iterator[Finding]:
    """Missing brokers that NameServers remember; findings in `known` are not repeated."""
    gone: dict[str, list[MissingBroker]] = {}
    for row in view.vanished:
        gone.setdefault(row.name, []).append(row)
    places = {place.name for place in view.places}
    for name, rows in gone.items():
        if name not in places:
            yield _whole_broker(view, min(rows, key=lambda row: row.broker_id), now_ms)
            continue
        broker_view = view.brokers.found.get(name)
        if broker_view is not None and broker_view.raft is not None:
            continue  # its members report which of them are down
        said = " ".join(finding.said for finding in known if finding.name == name)
        for row in rows:
            if f"slave {row.broker_id} at" not in said:
                yield _one_replica(row, now_ms)


def _whole_broker(view: ClusterView, row: MissingBroker, now_ms: int) -> Finding:
    said = (
        f"it has been missing for {_since(row, now_ms)}, and was at {row.address}; "
        f"{_affected(view, row)}"
    )
    remedy = f"start it; if it was retired: tianzhou broker forget {row.name}"
    return replace(_problem(MISSING, row.name, said, remedy), since_ms=row.since_ms)


def _one_replica(row: MissingBroker, now_ms: int) -> Finding:
    what = "its master" if row.broker_id == MASTER else f"its replica {row.broker_id}"
    said = f"{what} at {row.address} has been missing for {_since(row, now_ms)}"
    remedy = f"start it; if it was retired: tianzhou broker forget {row.name}"
    return replace(_warning(MISSING, row.name, said, remedy), since_ms=row.since_ms)


def _since(row: MissingBroker, now_ms: int) -> str:
    return span_text(max(0, now_ms - row.since_ms) / 1000)


def _affected(view: ClusterView, row: MissingBroker) -> str:
    topics = {topic.name for topic in row.topics}
    readers = {group.name for group in view.groups if topics.intersection(group.topics)}
    queues = sum(max(topic.read_queues, topic.write_queues) for topic in row.topics)
    said = "it had no topics of users"
    if topics:
        said = f"its {queues} queues of {_listed(topics, 'topic')} can be neither read nor written"
    groups = {group for group in {*row.groups, *readers} if not is_internal_group(group)}
    if groups:
        said += f", which {_listed(groups, 'group')} may be waiting for"
    return said + (f"; {row.left_out} more topics and groups are not listed" * bool(row.left_out))


def _listed(names: set[str], noun: str) -> str:
    shown = sorted(names)[:LISTED_MAX]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'} ({', '.join(shown)}{more})"


def _nameserver_findings(view: ClusterView) -> Iterator[Finding]:
    for address, why in view.silent.items():
        yield Finding(
            level=Level.WARNING,
            kinds=("nameserver_unreachable",),
            about="NameServer",
            name=address,
            said=f"it does not respond: {why}",
            remedy="is it running?",
        )
    names = {place.name for place in view.places}
    for server, nameserver in view.nameservers.items():
        for refused in nameserver.refused:
            yield _refused_finding(server, refused, is_known=refused.name in names)


def _refused_finding(server: str, refused: RefusedBroker, *, is_known: bool) -> Finding:
    """A broker that does not sign may be an impostor that only claims this name."""
    at = f"at {refused.address}, from {refused.peer}: {refused.reason}"
    if refused.kind == NAME_TAKEN:
        remedy = "two brokers have the same name: give the second another brokerName, or stop it"
        said = f"NameServer {server} refuses a second broker of this name {at}"
        return _problem(NAME_TAKEN, refused.name, said, remedy)
    said = f"NameServer {server} refuses its registration {at}"
    remedy = (
        f"innerClientAuthenticationCredentials of {refused.name} as cluster_credentials of the "
        "NameServer, and start it again"
    )
    return (_warning if is_known else _problem)("refused", refused.name, said, remedy)


def _from_alarm(alarm: AlarmRow, name: str, prefix: str) -> Finding:
    return Finding(
        level=Level.PROBLEM if alarm.is_problem else Level.WARNING,
        kinds=(alarm.kind,),
        about="broker",
        name=name,
        said=prefix + alarm.text,
        remedy=alarm.remedy,
        since_ms=alarm.since_ms,
    )


def _disk_findings(name: str, prefix: str, disk: Disk) -> Iterator[Finding]:
    seen = forecast(disk)
    if seen is None:
        return
    remedy = f"free disk space, or shorten the retention: tianzhou broker config {name} --like disk"
    if seen.used_ratio > disk.clean_ratio:
        said = marks_text(seen.used_ratio, clean=disk.clean_ratio, refuse=disk.refuse_ratio)
        yield _warning("disk_filling", name, prefix + said, remedy)
    # With a shorter retention the messages expire before the disk is full.
    elif seen.refuse_s is not None and seen.refuse_s < min(DAY_S, disk.retention_hours * 3600):
        said = (
            f"its disk will be full in {span_text(seen.refuse_s)} at the current rate, "
            f"{size_text(seen.bytes_per_second)} a second"
        )
        yield _warning("disk_filling", name, prefix + said, remedy)


def _version_findings(view: ClusterView) -> Iterator[Finding]:
    versions: dict[str, set[str]] = {}
    for broker_view in view.members.values():
        versions.setdefault(broker_view.version, set()).add(broker_view.name)
    if len(versions) > 1:
        brokers = "; ".join(
            f"Tianzhou {version}: {', '.join(sorted(names))}"
            for version, names in sorted(versions.items())
        )
        yield Finding(
            level=Level.WARNING,
            kinds=(VERSIONS,),
            about="cluster",
            name="versions",
            said=f"brokers differ: {brokers}",
            remedy="finish the upgrade: tianzhou cluster",
        )


def _problem(kind: str, name: str, said: str, remedy: str) -> Finding:
    return Finding(
        level=Level.PROBLEM, kinds=(kind,), about="broker", name=name, said=said, remedy=remedy
    )


def _warning(kind: str, name: str, said: str, remedy: str) -> Finding:
    return Finding(
        level=Level.WARNING, kinds=(kind,), about="broker", name=name, said=said, remedy=remedy
    )


# Groups


def _group_findings(view: ClusterView, now_ms: int) -> Iterator[Finding]:
    """One finding for each group with problems, and one for the groups left out of the views."""
    broker_views = view.brokers.found.values()
    events: dict[str, list[Event]] = {}
    for broker_view in broker_views:
        for event in broker_view.events:
            if not event.ended_ms:
                events.setdefault(event.group, []).append(event)
    troubled = (row for broker_view in broker_views for row in broker_view.troubled)
    rows = {row.name: row for row in groups_together(troubled)}
    for name in sorted(events.keys() | rows.keys()):
        if not is_internal_group(name) and not (name in rows and rows[name].is_system):
            yield from _group_finding(name, events.get(name, []), rows.get(name), now_ms)
    yield from _left_out(broker_views, now_ms)


class Sentence(NamedTuple):
    """A sentence of a finding about a group. The doctor leaves out a sentence that another one
    repeats, or starts with."""

    kind: str
    said: str
    remedy: str
    is_problem: bool = True


def disabled(group: str, lag: int) -> Sentence:
    said = f"it is disabled: brokers deliver nothing to it; {lag:,} messages wait"
    remedy = f"tianzhou group update {group} --consume"
    return Sentence("switched_off", said, remedy, is_problem=False)


def without_consumers(group: str, lag: int) -> Sentence:
    said = f"none of its consumers is connected; {lag:,} messages wait"
    remedy = f"start a consumer; then: tianzhou group show {group}"
    return Sentence("no_consumers", said, remedy, is_problem=False)


def differing(group: str, members: str = "") -> Sentence:
    """Members with different subscriptions each receive only a part of the messages. `members`
    lists their subscriptions, if they are known."""
    said = "its members have different subscriptions, so messages get lost"
    remedy = (
        "use the same subscription in all members, or another group for some: "
        f"tianzhou group show {group}"
    )
    return Sentence(DIFFER, f"{said}: {members}" if members else said, remedy)


def _group_finding(
    name: str, events: list[Event], row: GroupRow | None, now_ms: int
) -> Iterator[Finding]:
    sentences = [*_event_sentences(events)]
    if row is not None:
        sentences += _row_sentences(row, {sentence.kind for sentence in sentences})
        sentences += _idle_sentences(row, now_ms)
    if not sentences:
        return
    stuck_ms = row.stuck_ms if row is not None else 0
    yield Finding(
        level=Level.PROBLEM if any(one.is_problem for one in sentences) else Level.WARNING,
        kinds=tuple(one.kind for one in sentences),
        about="group",
        name=name,
        said="; ".join(one.said for one in sentences),
        remedy=sentences[0].remedy,
        since_ms=min((event.since_ms for event in events), default=stuck_ms),
    )


def _event_sentences(events: list[Event]) -> Iterator[Sentence]:
    """One sentence for each kind: twenty queues stuck in the same way are one problem."""
    alike: dict[str, list[Event]] = {}
    for event in sorted(events, key=lambda event: event.since_ms):
        alike.setdefault(event.kind, []).append(event)
    for kind, (first, *more) in alike.items():
        others = f"; and {len(more)} more {_queues_word(len(more))}" if more else ""
        yield Sentence(kind, first.said + others, first.remedy)


def _row_sentences(row: GroupRow, reported: set[str]) -> Iterator[Sentence]:
    """Findings that the watchdog had no room to report, or has not observed for long enough."""
    if row.stuck and not reported:
        said = f"{row.stuck} {_queues_word(row.stuck)} are stuck; {row.lag:,} messages wait"
        yield Sentence(STUCK, said, f"tianzhou group show {row.name}")
    if not row.is_consistent and DIFFER not in reported:
        yield differing(row.name)


def _idle_sentences(row: GroupRow, now_ms: int) -> Iterator[Sentence]:
    """Groups that the watchdog does not check: disabled ones, and those without members."""
    if not row.enabled:
        yield disabled(row.name, row.lag)
    elif row.lag and not row.members and not is_job(row, now_ms):
        yield without_consumers(row.name, row.lag)


def _left_out(broker_views: Iterable[BrokerView], now_ms: int) -> Iterator[Finding]:
    """A view lists only the worst groups: if the last of them has problems, others may too."""
    for broker_view in broker_views:
        more = broker_view.troubled_count - len(broker_view.troubled)
        if more > 0 and broker_view.troubled and _is_in_trouble(broker_view.troubled[-1], now_ms):
            said = f"{more:,} more of its groups have lag or problems"
            yield _warning("more_groups", broker_view.name, said, "tianzhou group list")


def _is_in_trouble(row: GroupRow, now_ms: int) -> bool:
    return bool(row.stuck or not row.is_consistent or [*_idle_sentences(row, now_ms)])


def _queues_word(count: int) -> str:
    return "queue" if count == 1 else "queues"
