"""All looks, in the order in which one thing needs the other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from time import sleep
from typing import Final

from tianzhou.admin.doctor.brokers import broker_findings, version_findings
from tianzhou.admin.doctor.findings import Finding, Level, problem, warning
from tianzhou.admin.doctor.groups import Look, group_findings, look_at
from tianzhou.admin.doctor.reach import (
    Probe,
    Reached,
    broker_finding,
    nameserver_findings,
    probe_brokers,
)
from tianzhou.admin.doctor.refusals import refusal_findings
from tianzhou.admin.doctor.routes import topic_findings
from tianzhou.base.errors import TianzhouError
from tianzhou.client.core.admin_results import BrokerPlace, BrokerStatus
from tianzhou.client.core.copies import worries
from tianzhou.client.options import parse_nameservers
from tianzhou.client.sync.admin import Admin
from tianzhou.wire.look_bodies import BrokerLook

GROUPS_MAX: Final = 100
"""How many are looked at when none is named."""
MASTER: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """What does not work, as far as one knows."""

    nameserver: str
    topic: str | None = None
    group: str | None = None
    observe_s: float = 6.0
    """Between two looks at groups. Consumers confirm every five seconds."""


def examine(
    complaint: Complaint, now_ms: Callable[[], int], is_internal: Callable[[str], bool]
) -> Iterator[Finding]:
    servers = nameserver_findings(parse_nameservers(complaint.nameserver))
    yield from servers.values()
    answering = [address for address, found in servers.items() if found.level is Level.FINE]
    if not answering:
        return
    with Admin(nameserver=";".join(answering)) as admin:
        yield from refusal_findings(answering, {place.name for place in admin.brokers.all()})
        yield from _examine(admin, complaint, answering[0], now_ms, is_internal)


def _examine(
    admin: Admin, complaint: Complaint, nameserver: str, now_ms: Callable[[], int],
    is_internal: Callable[[str], bool],
) -> Iterator[Finding]:  # fmt: skip
    places = admin.brokers.all()
    if not places:
        said = "it knows no broker: none runs, or they register elsewhere"
        yield problem(f"NameServer {nameserver}", said, f"tianzhou broker -n {nameserver}")
        return
    probes = probe_brokers(places)
    for place in places:
        yield from _place(admin, place, nameserver, probes)
    masters = {place.name: place.addresses.get(MASTER) for place in places}
    reached = {
        name: address
        for name, address in masters.items()
        if address is not None and probes[address].reached is Reached.SERVES
    }
    # What is asked of all brokers goes on with those that answer.
    admin.leave_out(*(masters.keys() - reached.keys()))
    if not reached:
        return
    configs: dict[str, dict[str, str]] = {}
    yield from _brokers(admin, reached, configs, now_ms)
    if not reached:
        return
    yield from _events(admin, complaint)
    looks = _groups(admin, complaint, is_internal)
    topics = {complaint.topic} if complaint.topic else set[str]()
    topics |= {topic for look in looks for topic in look.queues}
    for topic in sorted(topics):
        yield from topic_findings(admin, topic, reached, configs)
    if looks:
        yield from _watch(admin, complaint, looks)


def _place(
    admin: Admin, place: BrokerPlace, nameserver: str, probes: dict[str, Probe]
) -> Iterator[Finding]:
    about = f"broker {place.name}"
    for _, address in sorted(place.addresses.items()):
        yield broker_finding(place, address, nameserver, probes[address])
    look = _look(admin, place, probes)
    if look is not None:
        for worry in worries(look, place):
            yield (problem if worry.is_problem else warning)(about, worry.said, worry.mend)
    if MASTER not in place.addresses and (look is None or look.raft is None):
        said = "its group has no master: what it holds can be read, but nothing written there"
        mend = f"start its master (brokerId 0): tianzhou broker -n {nameserver} -c ITS-SETTINGS"
        yield problem(about, said, f"{mend}, or: tianzhou broker promote {place.name}")


def _look(admin: Admin, place: BrokerPlace, probes: dict[str, Probe]) -> BrokerLook | None:
    """What its master, or else a copy, knows of the copies; nothing if RocketMQ's own is asked."""
    nearest = place.addresses[min(place.addresses)]
    if probes[nearest].reached is not Reached.SERVES:
        return None
    try:
        return admin.looks.broker(place.name)[0]
    except TianzhouError:
        return None  # whether it says how it is, is looked at below


def _brokers(
    admin: Admin, reached: dict[str, str], configs: dict[str, dict[str, str]],
    now_ms: Callable[[], int],
) -> Iterator[Finding]:  # fmt: skip
    """What brokers say of themselves. `configs` gets their settings; who says nothing is taken out
    of `reached`."""
    statuses: list[BrokerStatus] = []
    for name in tuple(reached):
        try:
            status, config = admin.brokers.status(name), admin.brokers.config(name)
        except TianzhouError as error:
            said = f"it answers, and does not say how it is: {error}"
            yield problem(
                f"broker {name}", said, f"look at its log; then: tianzhou broker status {name}"
            )
            admin.leave_out(name)
            del reached[name]
            continue
        statuses.append(status)
        configs[name] = config
        yield from broker_findings(status, config, now_ms())
    yield from version_findings(statuses)


def _events(admin: Admin, complaint: Complaint) -> Iterator[Finding]:
    """What brokers have seen stand still for minutes, which a doctor's short look may miss. Those
    of RocketMQ do not watch."""
    for look in admin.looks.brokers().found.values():
        for event in look.events:
            if not event.ended_ms and complaint.group in (None, event.group):
                yield problem(f"group {event.group}", event.said, event.mend)


def _groups(admin: Admin, complaint: Complaint, is_internal: Callable[[str], bool]) -> list[Look]:
    if complaint.group is not None:
        return [look_at(admin, complaint.group)]
    names = [name for name in admin.groups.all() if not is_internal(name)][:GROUPS_MAX]
    return [look_at(admin, name) for name in names]


def _watch(admin: Admin, complaint: Complaint, looks: list[Look]) -> Iterator[Finding]:
    """A second look, where one can't tell what stands still from what is on its way."""
    if any(look.lag or look.connected for look in looks):
        sleep(complaint.observe_s)
    later = [look_at(admin, look.name) for look in looks]
    is_named = complaint.group is not None
    topic = complaint.topic if is_named else None
    pairs = zip(looks, later, strict=True)
    yield from chain.from_iterable(
        group_findings(before, now, topic=topic, is_named=is_named) for before, now in pairs
    )
