"""Each bug planted in what an operator sees of a cluster must be caught by the checks below.

The checks state directly what must hold for names, missing brokers, findings, lag and alarms.
"""

import dataclasses
import logging
from collections.abc import Callable
from typing import Final

import msgspec
import pytest
from cluster_bugs import CLUSTER_BUGS
from planting import Bug, planted

from tianzhou.broker.alarms import Alarm, AlarmLog, Alarms
from tianzhou.broker.groups.lags import Lags
from tianzhou.client.core.admin_results import BrokerPlace
from tianzhou.client.core.findings import findings
from tianzhou.client.core.views import ClusterView
from tianzhou.nameserver.brokers import Registration
from tianzhou.nameserver.missing import RETURN_MS, MissingBrokers
from tianzhou.nameserver.routes import RouteTable, Verdict
from tianzhou.testing.small_broker import SmallBroker
from tianzhou.wire.nameserver_bodies import MissingBroker, NameServerView
from tianzhou.wire.tables import DataVersion, TopicConfig
from tianzhou.wire.view_bodies import (
    AlarmRow,
    BrokerView,
    Disk,
    Event,
    GroupRow,
    History,
    Totals,
)

A, B = "10.0.0.1:10911", "10.0.0.2:10911"
PLANTED_BADLY = (NameError, TypeError, AttributeError, SyntaxError, ImportError)


def registration(address: str, *, epoch: int = 0, broker_id: int = 0) -> Registration:
    return Registration(
        cluster="c",
        broker_name="broker-a",
        broker_id=broker_id,
        address=address,
        data_version=DataVersion(state_version=epoch),
        topics=tuple(TopicConfig(topic_name=name) for name in ("T", "U")),
    )


def verdict(held: int, wanted: int, *, after_s: float = 0.0, address: str = B) -> Verdict:
    """The result of a second registration through another connection, with these epochs."""
    table = RouteTable()
    table.register(registration(A, epoch=held), connection=object(), now_s=0.0)
    second = registration(address, epoch=wanted)
    return table.register(second, connection=object(), now_s=after_s)


def check_names() -> None:
    epochs = ((0, 0), (0, 1), (1, 0), (1, 1), (2, 1), (1, 2))
    expected = [Verdict.TAKEN] * 4 + [Verdict.OUTDATED, Verdict.AGAIN]
    assert [verdict(*pair) for pair in epochs] == expected
    assert verdict(0, 0, after_s=121.0) is Verdict.AGAIN
    assert verdict(1, 1, address=A) is Verdict.AGAIN


def check_missing() -> None:
    table, connection, missing = RouteTable(), object(), MissingBrokers(brokers_max=2)
    table.register(registration(A), connection=connection, now_s=0.0)
    (lost,) = table.closed(connection)
    missing.lost(lost, "disconnected", 1)
    assert [[topic.name for topic in row.topics] for row in missing.all()] == [["T", "U"]]
    missing.registered("broker-a", 0, B, was_known=True, has_master=True)
    assert len(missing) == 1
    missing.registered("broker-a", 1, A, was_known=False, has_master=False)
    assert len(missing) == 0
    here = [
        missing.row_of(dataclasses.replace(lost, broker_id=number, member=member), "not_back", 1)
        for number, member in ((0, lost.member), (1, dataclasses.replace(lost.member, address=B)))
    ]
    missing.expect(here, 1)
    missing.registered("broker-a", 0, B, was_known=False, has_master=True)
    missing.overdue(1 + RETURN_MS)
    assert [row.address for row in missing.all()] == [A]
    for name in ("x", "y", "z"):
        missing.lost(dataclasses.replace(lost, name=f"broker-{name}"), "expired", 2)
    assert [row.name for row in missing.all()] == ["broker-y", "broker-z"]


NOW = 1_700_000_000_000
LOOK = BrokerView(
    busiest=(), cluster="c", damaged=0, dispatch_behind=0, events=(), flush_behind=0,
    disk=Disk(clean_ratio=0.75, free=0, log_size=0, put_size_per_hour=0.0, put_size_per_minute=0.0,
              refuse_ratio=0.9, retention_hours=72, total=0),
    get_per_second=0.0, history=History(step_s=5), is_broken=False, name="broker-a", now_ms=NOW,
    permission=6, put_longest_ms=0.0, put_p99_ms=0.0, put_per_second=0.0, put_today=0, refusal="",
    started_ms=0,
    totals=Totals(consumers=0, dead=0, groups=0, halves=0, held_pulls=0, lag=0, producers=0,
                  timers=0, topics=0),
    troubled=(), version="1",
)  # fmt: skip
"""A broker without findings."""


def check_findings() -> None:
    alarm = AlarmRow(is_problem=True, kind="k", remedy="r", since_ms=1, text="broken")
    events = tuple(
        Event(
            ended_ms=0,
            group=group,
            kind="frozen",
            remedy="m",
            queue_id=number,
            said=f"{group} {number}",
            since_ms=number + 1,
            topic="t",
        )
        for group in ("slow", "CID_RMQ_SYS_TRANS")
        for number in range(3)
    )
    stuck = GroupRow(
        dead=0,
        dead_ms=0,
        dead_not_replayed=0,
        enabled=True,
        get_per_second=0.0,
        is_abandoned=False,
        is_consistent=True,
        is_system=False,
        lag=9,
        members=1,
        moved_ms=0,
        name="stuck",
        oldest_ms=0,
        retrying=0,
        stuck=2,
        stuck_ms=5,
        topics=("t",),
    )
    master = msgspec.structs.replace(LOOK, events=events, troubled=(stuck,))
    slave = msgspec.structs.replace(LOOK, alarms=(alarm,))
    nameserver_view = NameServerView(
        missing=tuple(
            MissingBroker(
                address=address, broker_id=0, cluster="c", name=name, reason="expired", since_ms=1
            )
            for name, address in (("broker-a", A), ("gone", "10.0.0.9:1"))
        ),
        now_ms=NOW,
        version="1",
    )
    place = BrokerPlace("c", "broker-a", {0: A, 1: B})
    view = ClusterView((place,), {A: master, B: slave}, nameservers={"ns": nameserver_view})
    found = {(one.about, one.name, one.kinds): one.said for one in findings(view, NOW)}
    assert found.keys() == {
        ("broker", "broker-a", ("k",)),
        ("broker", "gone", ("broker_missing",)),
        ("group", "slow", ("frozen",)),
        ("group", "stuck", ("stuck",)),
    }
    assert found["group", "slow", ("frozen",)] == "slow 0; and 2 more queues"


def check_lag() -> None:
    broker = SmallBroker()
    for topic in ("orders", "%DLQ%billing"):
        broker.send(topic)
        broker.slices.groups.tables.offsets.put("billing", topic, 0, 0)
    broker.slices.groups.tables.offsets.put("CID_RMQ_SYS_TRANS", "orders", 0, 0)
    lags = Lags(
        broker.store,
        broker.slices.topics.topics,
        broker.slices.groups.tables.offsets,
        broker.slices.groups.tables.sessions,
    )
    found = {(lag.group, lag.queue.topic) for lag in lags.all()}
    assert found == {("billing", "orders")}


def check_alarms() -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    log = logging.getLogger("tianzhou.broker")
    alarms, holds = Alarms(), [Alarm(kind="k", text="t", remedy="r", since_ms=1)]
    alarms.add(lambda: holds)
    watched = AlarmLog(alarms)
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        watched.check()
        watched.check()
        holds.clear()
        watched.check()
        watched.check()
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
    assert lines == ["alarm.began", "alarm.ended"]


CHECKS: Final[dict[str, Callable[[], None]]] = {
    "names": check_names,
    "missing": check_missing,
    "findings": check_findings,
    "lag": check_lag,
    "alarms": check_alarms,
}


@pytest.mark.parametrize("check", CHECKS)
def test_cluster_check_passes_without_a_bug(check: str) -> None:
    CHECKS[check]()


@pytest.mark.parametrize("bug", CLUSTER_BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_planted_cluster_bug_is_caught(bug: Bug) -> None:
    caught: Exception | None = None
    with planted(bug):
        try:
            CHECKS[bug.suite]()
        except Exception as error:
            caught = error
    assert caught is not None, f"{bug.name} survived"
    assert not isinstance(caught, PLANTED_BADLY), f"{bug.name} is planted badly: {caught!r}"
