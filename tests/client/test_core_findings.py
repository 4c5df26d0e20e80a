"""What is wrong with a cluster, computed from views."""

from typing import Any

import msgspec
import pytest
from test_core_replicas import group, peer
from test_core_views import BROKER, DISK, GIB, GROUP, NOW

from tianzhou.admin.doctor.findings import merged, problem
from tianzhou.broker.observe.watchdog import Kind
from tianzhou.client.core.admin_results import BrokerPlace
from tianzhou.client.core.findings import (
    DIFFER,
    NO_PROGRESS,
    STUCK,
    Finding,
    Level,
    differing,
    findings,
)
from tianzhou.client.core.views import ClusterView
from tianzhou.wire.nameserver_bodies import (
    MissingBroker,
    MissingTopic,
    NameServerView,
    RefusedBroker,
)
from tianzhou.wire.view_bodies import AlarmRow, BrokerView, Event, GroupRow

MASTER, SLAVE = "10.0.0.1:1", "10.0.0.2:1"
ALARM = AlarmRow(
    is_problem=True,
    kind="store_broken",
    remedy="restart it",
    since_ms=7,
    text="its store is broken",
)


def changed(**values: Any) -> BrokerView:
    return msgspec.structs.replace(BROKER, **values)


def row(**values: Any) -> GroupRow:
    return msgspec.structs.replace(GROUP, **values)


def found(look: BrokerView, *, missing: dict[str, str] | None = None) -> list[Finding]:
    place = BrokerPlace("c", look.name, {0: MASTER})
    others = tuple(BrokerPlace("c", name, {0: name}) for name in missing or {})
    return findings(ClusterView((place, *others), {MASTER: look}, missing or {}), NOW)


def event(queue_id: int, since_ms: int, *, ended_ms: int = 0, kind: str = "frozen") -> Event:
    return Event(
        ended_ms=ended_ms,
        group="billing",
        kind=kind,
        remedy=f"remedy {kind}",
        queue_id=queue_id,
        said=f"queue {queue_id} stays",
        since_ms=since_ms,
        topic="orders",
    )


# Brokers


def test_healthy_broker_has_no_findings() -> None:
    assert found(BROKER) == []


def test_filling_disk_is_a_warning_before_it_is_full() -> None:
    filling = msgspec.structs.replace(DISK, put_size_per_minute=GIB / 100)
    (warning,) = found(changed(disk=filling))
    assert (warning.level, warning.name, warning.kinds) == (Level.WARNING, "a", ("disk_filling",))
    assert warning.said == (
        "its disk will be full in 1 h 23 min at the current rate, 10.2 MiB a second"
    )
    # What is kept for an hour never fills it.
    short = msgspec.structs.replace(filling, retention_hours=1)
    assert found(changed(disk=short)) == []


def test_disk_over_its_threshold_is_a_warning() -> None:
    (warning,) = found(changed(disk=msgspec.structs.replace(DISK, free=20 * GIB)))
    assert "80% full" in warning.said


def test_clock_that_is_ahead_is_a_warning() -> None:
    (warning,) = found(changed(now_ms=NOW + 90_000))
    assert "90 s ahead of" in warning.said


def test_alarms_of_a_broker_are_findings_with_their_kind_time_and_remedy() -> None:
    (problem,) = found(changed(alarms=(ALARM,)))
    assert problem == Finding(
        level=Level.PROBLEM,
        kinds=("store_broken",),
        about="broker",
        name="a",
        said="its store is broken",
        remedy="restart it",
        since_ms=7,
    )
    (warning,) = found(changed(alarms=(msgspec.structs.replace(ALARM, is_problem=False),)))
    assert warning.level is Level.WARNING


def test_alarms_of_a_slave_are_findings_that_name_it() -> None:
    place = BrokerPlace("c", "a", {0: MASTER, 1: SLAVE})
    view = ClusterView((place,), {MASTER: BROKER, SLAVE: changed(alarms=(ALARM,))})
    (problem,) = findings(view, NOW)
    assert problem.name == "a"
    assert problem.said == f"its replica 1 at {SLAVE}: its store is broken"


def test_findings_list_problems_first_with_unreachable_brokers() -> None:
    warning = msgspec.structs.replace(ALARM, is_problem=False)
    both = found(changed(alarms=(warning,)), missing={"b": "it can't be reached"})
    assert [finding.level for finding in both] == [Level.PROBLEM, Level.WARNING]
    assert (both[0].name, both[0].kinds) == ("b", ("unreachable",))
    assert "it can't be reached" in both[0].said


def test_broker_without_a_master_is_a_problem_unless_its_members_elect_one() -> None:
    places = (BrokerPlace("c", "a", {0: MASTER}), BrokerPlace("c", "b", {1: SLAVE}))
    (problem,) = findings(ClusterView(places, {MASTER: BROKER}), NOW)
    assert (problem.name, problem.kinds) == ("b", ("no_master",))
    assert "tianzhou broker promote b" in problem.remedy
    elects = ClusterView(
        (BrokerPlace("c", "a", {1: MASTER}),), {MASTER: group(peer("n1", 50), leader="n1")}
    )
    assert findings(elects, NOW) == []


def test_drained_broker_is_a_problem_only_if_no_other_accepts_messages() -> None:
    alarm = msgspec.structs.replace(ALARM, kind="draining", is_problem=False)
    drained = changed(permission=4, alarms=(alarm,))
    places = (BrokerPlace("c", "a", {0: MASTER}), BrokerPlace("c", "b", {0: SLAVE}))
    (finding,) = findings(ClusterView(places, {MASTER: drained, SLAVE: changed(name="b")}), NOW)
    assert finding.level is Level.WARNING
    (finding,) = findings(ClusterView(places[:1], {MASTER: drained}), NOW)
    assert finding.level is Level.PROBLEM


def test_different_versions_are_one_warning() -> None:
    place = BrokerPlace("c", "a", {0: MASTER, 1: SLAVE})
    view = ClusterView((place,), {MASTER: BROKER, SLAVE: changed(version="2")})
    (warning,) = findings(view, NOW)
    assert (warning.about, warning.said) == (
        "cluster",
        "brokers differ: Tianzhou 1: a; Tianzhou 2: a",
    )


# Groups


def test_queues_stuck_for_the_same_reason_are_one_finding() -> None:
    look = changed(events=(event(0, 9), event(1, 5), event(2, 7), event(3, 1, ended_ms=8)))
    (problem,) = found(look)
    assert (problem.name, problem.said) == ("billing", "queue 1 stays; and 2 more queues")
    assert (problem.since_ms, problem.remedy) == (5, "remedy frozen")


def test_group_with_several_faults_is_one_finding() -> None:
    look = changed(
        events=(event(0, 9), event(1, 5, kind="blocked")),
        troubled=(row(stuck=2, is_consistent=False),),
    )
    (problem,) = found(look)
    assert problem.kinds == ("blocked", "frozen", "subscriptions_differ")
    assert problem.said.startswith("queue 1 stays; queue 0 stays; its members have different")
    assert problem.remedy == "remedy blocked"


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"stuck": 3}, "stuck"),
        ({"is_consistent": False}, "subscriptions_differ"),
    ],
)
def test_group_marked_red_on_a_page_is_a_problem(values: dict[str, Any], kind: str) -> None:
    """Also when the view had no room for the event, or the watchdog has not watched long enough."""
    (problem,) = found(changed(troubled=(row(**values),)))
    assert (problem.level, problem.kinds) == (Level.PROBLEM, (kind,))


def test_group_without_consumers_is_a_warning_unless_a_job_commits() -> None:
    alone = row(members=0)
    job = row(members=0, name="job", moved_ms=NOW - 5_000)
    left = row(members=0, name="left", moved_ms=NOW - 5_000, is_abandoned=True)
    off = row(members=0, name="off", enabled=False)
    look = changed(troubled=(alone, off, job, left, row(name="well")))
    said = {finding.name: finding.said for finding in found(look)}
    assert set(said) == {"billing", "left", "off"}
    assert "10 messages wait" in said["billing"]
    assert "disabled" in said["off"]


def test_internal_groups_have_no_findings() -> None:
    trouble = {"members": 0, "stuck": 1, "is_consistent": False, "enabled": False}
    rows = (
        row(name="CID_RMQ_SYS_TRANS", **trouble),
        row(name="TOOLS_CONSUMER", **trouble),
        row(name="CID_OF_THEIRS", is_system=True, **trouble),
    )
    about = msgspec.structs.replace(event(0, 1), group="CID_RMQ_SYS_TRANS")
    assert found(changed(troubled=rows, events=(about,))) == []


def test_groups_omitted_from_a_view_are_counted_if_possibly_troubled() -> None:
    unread, slow = row(members=0), row(name="slow")
    *_, more = found(changed(troubled=(unread,), troubled_count=5))
    assert (more.kinds, more.said.split()[0]) == (("more_groups",), "4")
    # Where the last group told of is read, so are those after it: they have less lag.
    quiet = found(changed(troubled=(unread, slow), troubled_count=5))
    assert [finding.name for finding in quiet] == ["billing"]


# Brokers that are not there


def lost(**values: Any) -> MissingBroker:
    row = MissingBroker(
        address="10.0.0.9:1",
        broker_id=0,
        cluster="c",
        groups=("billing",),
        name="gone",
        reason="disconnected",
        since_ms=NOW - 125_000,
        topics=(
            MissingTopic(name="orders", read_queues=4, write_queues=8),
            MissingTopic(name="returns", read_queues=2, write_queues=2),
        ),
    )
    return msgspec.structs.replace(row, **values)


def missed(*rows: MissingBroker, groups: tuple[GroupRow, ...] = ()) -> list[Finding]:
    place = BrokerPlace("c", "a", {0: MASTER})
    told = NameServerView(missing=rows, now_ms=NOW, version="1")
    view = ClusterView(
        (place,), {MASTER: BROKER}, nameservers={"ns1": told, "ns2": told}, groups=groups
    )
    return findings(view, NOW)


def test_missing_broker_is_one_problem_with_time_topics_queues_and_groups() -> None:
    readers = (row(name="audit", topics=("returns",)), row(name="other", topics=("elsewhere",)))
    (problem,) = missed(lost(), groups=readers)
    assert (problem.level, problem.name, problem.kinds) == (
        Level.PROBLEM,
        "gone",
        ("broker_missing",),
    )
    assert problem.since_ms == NOW - 125_000
    assert problem.said == (
        "it has been missing for 2 min 5 s, and was at 10.0.0.9:1; its 10 queues of 2 topics "
        "(orders, returns) can be neither read nor written, which 2 groups (audit, billing) may "
        "be waiting for"
    )
    assert "tianzhou broker forget gone" in problem.remedy


def test_missing_broker_without_topics_lists_none() -> None:
    (problem,) = missed(lost(topics=(), groups=()))
    assert problem.said.endswith("was at 10.0.0.9:1; it had no topics of users")


def test_missing_members_of_one_broker_are_one_problem() -> None:
    (problem,) = missed(lost(), lost(broker_id=1, address="10.0.0.8:1"))
    assert "10.0.0.9:1" in problem.said


def test_missing_replica_of_a_live_broker_is_a_warning() -> None:
    (warning,) = missed(lost(name="a", broker_id=2))
    assert (warning.level, warning.name) == (Level.WARNING, "a")
    assert warning.said == "its replica 2 at 10.0.0.9:1 has been missing for 2 min 5 s"


def test_broker_that_only_one_nameserver_misses_is_not_missing() -> None:
    assert missed(lost(name="a", address=MASTER)) == []


def test_alarm_that_a_broker_is_missing_is_not_repeated_by_every_broker() -> None:
    alarm = msgspec.structs.replace(ALARM, kind="broker_missing")
    assert found(changed(alarms=(alarm,))) == []


@pytest.mark.parametrize(
    ("kind", "name", "level"),
    [
        ("name_taken", "a", Level.PROBLEM),
        ("signature", "a", Level.WARNING),
        ("signature", "b", Level.PROBLEM),
    ],
)
def test_rejected_brokers_are_findings(kind: str, name: str, level: Level) -> None:
    refused = RefusedBroker(address="h:1", kind=kind, name=name, peer="p:2", reason="why")
    told = NameServerView(now_ms=NOW, refused=(refused,), version="1")
    places = (BrokerPlace("c", "a", {0: MASTER}),)
    view = ClusterView(places, {MASTER: BROKER}, nameservers={"ns1": told})
    (finding,) = findings(view, NOW)
    assert (finding.level, finding.name) == (level, name)
    what = "a second broker of this name" if kind == "name_taken" else "its registration"
    assert finding.said == f"NameServer ns1 refuses {what} at h:1, from p:2: why"


def test_nameserver_that_does_not_respond_is_a_warning() -> None:
    places = (BrokerPlace("c", "a", {0: MASTER}),)
    (warning,) = findings(ClusterView(places, {MASTER: BROKER}, silent={"ns2": "refused"}), NOW)
    assert (warning.level, warning.about, warning.name) == (Level.WARNING, "NameServer", "ns2")


def test_kinds_of_groups_are_those_of_the_watchdog() -> None:
    assert NO_PROGRESS - {STUCK} == {kind.value for kind in Kind} - {DIFFER}
    assert Kind.SUBSCRIPTIONS_DIFFER.value == DIFFER


def test_doctor_keeps_only_the_longer_sentence_about_subscriptions() -> None:
    short, long = differing("g"), differing("g", "a: orders (TAG *); b: nothing")
    (finding,) = merged(problem("group g", one.said, one.remedy) for one in (short, long))
    assert (finding.said, finding.fix) == (long.said, long.remedy)
    assert finding.said.endswith(": a: orders (TAG *); b: nothing")
