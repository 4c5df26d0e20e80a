"""Run all checks, in the order of their dependencies."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import sleep
from typing import Final

from tianzhou.admin.doctor.brokers import broker_findings, version_findings
from tianzhou.admin.doctor.findings import Finding, from_view, merged, problem
from tianzhou.admin.doctor.groups import Asked, Look, group_findings, look_at
from tianzhou.admin.doctor.reach import (
    Reached,
    broker_finding,
    each_nameserver,
    listing_findings,
    nameserver_findings,
    probe_brokers,
)
from tianzhou.admin.doctor.routes import placement_findings, topic_findings
from tianzhou.base.errors import TianzhouError
from tianzhou.client.core import findings as core
from tianzhou.client.core.admin_results import BrokerStatus
from tianzhou.client.core.findings import UNREACHABLE, Level, findings
from tianzhou.client.core.subscription import is_internal_group
from tianzhou.client.core.views import ClusterView
from tianzhou.client.options import parse_nameservers
from tianzhou.client.sync.admin import Admin
from tianzhou.wire.names import MASTER_ID

GROUPS_MAX: Final = 100
"""Groups to examine if the user names none."""
MASTER: Final = MASTER_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """What the user reports as not working."""

    nameserver: str
    topic: str | None = None
    group: str | None = None
    observe_s: float = 6.0
    """Seconds between two samples of a group. Consumers commit every five seconds."""


def examine(complaint: Complaint, now_ms: Callable[[], int]) -> Iterator[Finding]:
    servers = nameserver_findings(each_nameserver(parse_nameservers(complaint.nameserver)))
    yield from servers.values()
    answering = [address for address, found in servers.items() if found.level is Level.FINE]
    if not answering:
        return
    yield from listing_findings(answering)
    with Admin(nameserver=";".join(answering)) as admin:
        yield from _examine(admin, complaint, answering[0], now_ms)


def _examine(
    admin: Admin, complaint: Complaint, nameserver: str, now_ms: Callable[[], int]
) -> Iterator[Finding]:
    places = admin.brokers.all()
    if not places:
        said = "no broker is registered: none is running, or they register elsewhere"
        yield problem(f"NameServer {nameserver}", said, f"tianzhou broker -n {nameserver}")
        yield from map(from_view, findings(admin.views.cluster(), now_ms()))
        return
    probes = probe_brokers(places)
    for place in places:
        for _, address in sorted(place.addresses.items()):
            yield broker_finding(place, address, nameserver, probes[address])
    silent = {at for at, probe in probes.items() if probe.reached is not Reached.SERVES}
    view = admin.views.cluster(skip=silent)
    seen = [finding for finding in findings(view, now_ms()) if UNREACHABLE not in finding.kinds]
    yield from (from_view(finding) for finding in seen if finding.about != "group")
    masters = {place.name: place.addresses.get(MASTER) for place in places}
    reached = {
        name: address
        for name, address in masters.items()
        if address is not None and address not in silent
    }
    # Requests to all brokers skip those that do not respond.
    admin.leave_out(*(masters.keys() - reached.keys()))
    if not reached:
        return
    configs: dict[str, dict[str, str]] = {}
    yield from _brokers(admin, reached, configs, view, now_ms=now_ms)
    if not reached:
        return
    looks = _groups(admin, complaint)
    topics = {complaint.topic} if complaint.topic else set[str]()
    topics |= {topic for look in looks for topic in look.queues}
    for topic in sorted(topics):
        yield from topic_findings(admin, topic, reached, configs)
    clusters = {place.name: place.cluster for place in places if place.name in reached}
    if len(clusters) > 1:
        yield from placement_findings(admin, clusters, only=complaint.topic)
    known = {finding.name: finding for finding in seen if finding.about == "group"}
    yield from _group_lines(admin, complaint, looks, known)


def _brokers(
    admin: Admin,
    reached: dict[str, str],
    configs: dict[str, dict[str, str]],
    view: ClusterView,
    *,
    now_ms: Callable[[], int],
) -> Iterator[Finding]:
    """Findings that brokers report about themselves. Adds their settings to `configs` and removes
    brokers that do not respond from `reached`. Findings of a broker's view are not repeated;
    RocketMQ's brokers have no view."""
    statuses: list[BrokerStatus] = []
    for name, address in tuple(reached.items()):
        try:
            status, config = admin.brokers.status(name), admin.brokers.config(name)
        except TianzhouError as error:
            said = f"it responds, but does not report its status: {error}"
            yield problem(
                f"broker {name}", said, f"check its log; then: tianzhou broker status {name}"
            )
            admin.leave_out(name)
            del reached[name]
            continue
        statuses.append(status)
        configs[name] = config
        if address not in view.members:
            yield from broker_findings(status, config, now_ms())
    if any(address not in view.members for address in reached.values()):
        yield from version_findings(statuses)


def _groups(admin: Admin, complaint: Complaint) -> list[Look]:
    if complaint.group is not None:
        return [look_at(admin, complaint.group)]
    names = [name for name in admin.groups.all() if not is_internal_group(name)][:GROUPS_MAX]
    return [look_at(admin, name) for name in names]


def _group_lines(
    admin: Admin, complaint: Complaint, looks: list[Look], known: Mapping[str, core.Finding]
) -> Iterator[Finding]:
    """One line for each group: the findings of its brokers, plus those of a second sample."""
    if any(look.lag or look.connected for look in looks):
        sleep(complaint.observe_s)
    is_named = complaint.group is not None
    asked = Asked(
        topic=complaint.topic if is_named else None,
        is_named=is_named,
        observed_s=complaint.observe_s,
    )
    for before in looks:
        later = look_at(admin, before.name)
        yield from merged(group_findings(before, later, asked, known.get(before.name)))
    if not is_named:
        others = known.keys() - {look.name for look in looks}
        yield from (from_view(known[name]) for name in sorted(others))
