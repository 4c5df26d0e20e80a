"""Alarms that every broker has, as its views and metrics give them."""

import pytest
from administrator import Administrator
from test_admin_views import look_at_broker
from test_metrics import scraped, value

from tianzhou.store.errors import StoreFenced
from tianzhou.store.incidents import LOG_DAMAGED, QUEUES_REBUILT, Incident
from tianzhou.testing.small_broker import SmallBroker
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.admin_bodies import decode_acknowledged


def kinds(broker: SmallBroker) -> list[str]:
    return [row.kind for row in look_at_broker(broker).alarms]


def test_view_and_metrics_of_a_healthy_broker_have_no_alarm() -> None:
    broker = SmallBroker()
    assert kinds(broker) == []
    assert not [name for name, _ in scraped(broker) if name == "tianzhou_alarms"]


def test_store_alarms_report_a_removed_permission_until_it_returns() -> None:
    broker = SmallBroker()
    begun_ms = broker.clock.now_ms()
    broker.slices.topics.permission.set(4)
    (row,) = look_at_broker(broker).alarms
    assert (row.kind, row.is_problem, row.since_ms) == ("draining", False, begun_ms)
    assert "tianzhou broker drain broker-a --undo" in row.remedy
    broker.clock.advance(seconds=60)
    assert look_at_broker(broker).alarms[0].since_ms == begun_ms
    broker.slices.topics.permission.set(0)
    assert kinds(broker) == ["reads_refused", "draining"], "problems come first"
    broker.slices.topics.permission.set(6)
    assert kinds(broker) == []


def test_store_alarms_report_a_full_disk_until_there_is_room() -> None:
    broker = SmallBroker()
    room = broker.disk.capacity
    broker.disk.capacity = 1
    broker.store.clean()
    (row,) = look_at_broker(broker).alarms
    assert (row.kind, row.is_problem) == ("writes_refused", True)
    assert broker.store.refusal in row.text
    assert value(scraped(broker), "alarms", kind="writes_refused") == 1
    broker.disk.capacity = room
    broker.store.clean()
    assert kinds(broker) == []


def test_store_alarms_report_a_broken_store() -> None:
    broker = SmallBroker()

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker.store.log, "sync", broken)
        broker.send("orders")
        with pytest.raises(StoreFenced):
            broker.store.flush()
    (alarm,) = look_at_broker(broker).alarms
    assert alarm.kind == "store_broken"
    assert "Input/output error" in alarm.text, "it says what failed"


def test_store_alarms_report_damaged_records() -> None:
    broker = SmallBroker()
    broker.store.damaged.add(4096)
    assert kinds(broker) == ["records_damaged"]


def test_store_alarms_name_damaged_index_files() -> None:
    broker = SmallBroker()
    assert broker.store.index is not None
    broker.store.index.damaged["20261116"] = "was shortened to 40 bytes"
    (alarm,) = look_at_broker(broker).alarms
    assert alarm.kind == "index_damaged"
    assert "20261116 was shortened to 40 bytes" in alarm.text


def test_store_alarms_report_start_incidents_until_acknowledged() -> None:
    broker = SmallBroker()
    broker.store.incidents.report(
        [
            *(
                Incident(kind=LOG_DAMAGED, text=f"range {n}", found_ms=n, place=str(n))
                for n in range(1, 6)
            ),
            Incident(kind=QUEUES_REBUILT, text="made again", found_ms=9, is_loss=False),
        ]
    )
    damaged, rebuilt = look_at_broker(broker).alarms
    assert (damaged.kind, damaged.is_problem, damaged.since_ms) == (LOG_DAMAGED, True, 1)
    assert damaged.text == "at a start: range 1; range 2; range 3; and 2 more"
    assert (rebuilt.kind, rebuilt.is_problem) == (QUEUES_REBUILT, False)
    tool = Administrator(broker)
    reply = tool.ask(RequestCode.ACKNOWLEDGE_INCIDENTS)
    assert len(decode_acknowledged(reply.body)) == 6
    assert kinds(broker) == []
    broker.restart()
    assert kinds(broker) == []
