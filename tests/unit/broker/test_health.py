"""What a supervisor is told."""

import json
from typing import Any

import pytest

from tianzhou.broker.observe.health import Health
from tianzhou.store.errors import StoreFenced
from tianzhou.store.incidents import LOG_DAMAGED, Incident
from tianzhou.testing.small_broker import SmallBroker

NAMES = ["ns1:9876", "ns2:9876"]


def health(broker: SmallBroker, *, missing: list[str]) -> Health:
    told = dict.fromkeys(missing, "no answer")
    return Health(
        "broker-a", broker.store, broker.slices.topics.permission, lambda: told, lambda: len(NAMES)
    )


def read(answer: tuple[int, bytes]) -> tuple[int, Any]:
    return answer[0], json.loads(answer[1])


def test_health_of_a_sound_broker_is_ready() -> None:
    found = health(SmallBroker(), missing=[])
    assert read(found.live()) == (200, {"status": "alive", "reasons": []})
    assert read(found.ready()) == (200, {"status": "ready", "reasons": []})


def test_health_with_losses_at_start_reports_them_and_stays_ready() -> None:
    broker = SmallBroker()
    lost = Incident(kind=LOG_DAMAGED, text="the log is damaged from 5 to 9", found_ms=1)
    broker.store.incidents.report([lost])
    found = Health(
        "broker-a",
        broker.store,
        broker.slices.topics.permission,
        dict,
        lambda: 1,
        broker.slices.base.alarms.current,
    )
    status, said = read(found.ready())
    assert (status, said["status"], said["reasons"]) == (200, "ready", [])
    assert "the log is damaged from 5 to 9" in said["alarms"][0]
    assert "tianzhou broker acknowledge broker-a" in said["alarms"][0]


def test_health_with_one_reachable_nameserver_is_ready() -> None:
    broker = SmallBroker()
    assert health(broker, missing=NAMES[:1]).ready()[0] == 200
    code, said = read(health(broker, missing=NAMES).ready())
    assert code == 503
    assert said["status"] == "not ready"
    assert "ns1:9876: no answer; ns2:9876: no answer; check" in said["reasons"][0]
    assert "tianzhou doctor" in said["reasons"][0]


def test_health_of_a_drained_broker_is_alive_but_not_ready() -> None:
    broker = SmallBroker()
    broker.slices.topics.permission.set(4)
    found = health(broker, missing=[])
    assert found.live()[0] == 200
    (reason,) = read(found.ready())[1]["reasons"]
    assert reason.endswith("tianzhou broker drain broker-a --undo")


def test_health_of_a_broken_store_is_not_alive() -> None:
    broker = SmallBroker()

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker.store.log, "sync", broken)
        broker.send("orders")
        with pytest.raises(StoreFenced):
            broker.store.flush()
    found = health(broker, missing=[])
    for code, said in (read(found.live()), read(found.ready())):
        assert code == 503
        assert "tianzhou store verify" in said["reasons"][0]


def test_health_of_a_full_disk_names_it() -> None:
    broker = SmallBroker()
    broker.disk.capacity = 1
    broker.store.clean()
    code, said = read(health(broker, missing=[]).ready())
    assert code == 503
    assert "writes are rejected" in said["reasons"][0]
