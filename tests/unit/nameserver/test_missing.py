"""Brokers that vanished are remembered until they come back, or an operator forgets them."""

import msgspec
import pytest
from name_desk import Desk, identity
from registering import A, B, C, FakePeer, broker, topic
from route_world import World

from tianzhou.nameserver.config import NameServerConfig
from tianzhou.nameserver.missing import RETURN_MS, MissingBrokers
from tianzhou.nameserver.server import NameServer
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.nameserver_bodies import MissingBroker, MissingTopic, decode_nameserver_view
from tianzhou.wire.registration import read_missing

NOW = 1_700_000_000_000


def lost(missing: MissingBrokers, *topics: str, name: str = "broker-a", address: str = A) -> None:
    world = World()
    world.register(broker(address, *(topics or ("T", "U")), name=name))
    (gone,) = world.table.closed(world.connection)
    missing.lost(gone, "disconnected", NOW)


def rows(missing: MissingBrokers) -> list[tuple[str, int, str]]:
    return [(row.name, row.broker_id, row.address) for row in missing.all()]


def test_missing_broker_keeps_its_topics_queues_and_groups() -> None:
    missing = MissingBrokers()
    internal = ("TBW102", "broker-a", "c", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "%DLQ%g")
    lost(missing, "orders", "%RETRY%billing", "c_REPLY_TOPIC", *internal)
    assert [*missing.all()] == [
        MissingBroker(
            address=A,
            broker_id=0,
            cluster="c",
            groups=("billing",),
            name="broker-a",
            reason="disconnected",
            since_ms=NOW,
            topics=(MissingTopic(name="orders", read_queues=4, write_queues=4),),
        )
    ]


def test_missing_broker_returns_with_its_address_or_its_id() -> None:
    missing = MissingBrokers()
    lost(missing)
    missing.registered("broker-b", 0, A, was_known=False, has_master=False)
    missing.registered("broker-a", 1, B, was_known=False, has_master=False)
    assert rows(missing) == [("broker-a", 0, A)]
    missing.registered("broker-a", 1, A, was_known=False, has_master=False)
    assert rows(missing) == [], "the old master came back as a slave"
    lost(missing)
    missing.registered("broker-a", 0, B, was_known=False, has_master=False)
    assert rows(missing) == [], "it was started elsewhere"


def expected(missing: MissingBrokers, *addresses: str) -> None:
    """The master, then slaves, of broker-a were there before the NameServer restarted."""
    here = MissingBroker(
        address="", broker_id=0, cluster="c", name="broker-a", reason="not_back", since_ms=0
    )
    told = [
        msgspec.structs.replace(here, address=address, broker_id=number)
        for number, address in enumerate(addresses)
    ]
    missing.expect(told, NOW)


def test_expected_broker_that_does_not_register_is_missing_since_restart() -> None:
    missing = MissingBrokers()
    expected(missing, A, B)
    assert missing.overdue(NOW + RETURN_MS - 1) == rows(missing) == []
    missing.registered("broker-a", 1, B, was_known=False, has_master=False)
    (late,) = missing.overdue(NOW + RETURN_MS)
    assert (late.address, late.since_ms, rows(missing)) == (A, NOW, [("broker-a", 0, A)])
    assert missing.overdue(NOW + 2 * RETURN_MS) == []


@pytest.mark.parametrize("what", ["back", "back elsewhere", "stopped", "forgotten"])
def test_expected_broker_is_dropped_once_it_returns_or_unregisters(what: str) -> None:
    missing = MissingBrokers()
    expected(missing, A)
    if what == "stopped":
        missing.unregistered("broker-a", A)
    elif what == "forgotten":
        assert missing.forget("broker-a") == 1
    else:
        address = A if what == "back" else C
        missing.registered("broker-a", 0, address, was_known=False, has_master=True)
    assert missing.overdue(NOW + RETURN_MS) == []


def test_expected_slave_promoted_does_not_replace_the_expected_master() -> None:
    missing = MissingBrokers()
    expected(missing, A, B)
    missing.registered("broker-a", 0, B, was_known=False, has_master=True)
    assert [row.address for row in missing.overdue(NOW + RETURN_MS)] == [A]


def test_expected_brokers_are_bounded() -> None:
    missing = MissingBrokers(brokers_max=2)
    expected(missing, A, B, C)
    assert len(missing.overdue(NOW + RETURN_MS)) == 2


def test_promoted_slave_does_not_replace_the_missing_master() -> None:
    missing = MissingBrokers()
    lost(missing)
    missing.registered("broker-a", 0, B, was_known=True, has_master=True)
    assert rows(missing) == [("broker-a", 0, A)]


def test_old_master_with_a_new_address_returns_as_a_slave() -> None:
    missing = MissingBrokers()
    lost(missing)
    missing.registered("broker-a", 0, B, was_known=True, has_master=True)
    missing.registered("broker-a", 1, C, was_known=False, has_master=True)
    assert rows(missing) == []


def test_forget_removes_every_member_of_a_broker() -> None:
    missing = MissingBrokers()
    lost(missing)
    lost(missing, address=B)
    lost(missing, name="broker-b", address=C)
    assert missing.forget("broker-a") == 2
    assert missing.forget("broker-a") == 0
    assert rows(missing) == [("broker-b", 0, C)]


def test_missing_brokers_are_bounded_in_number_and_names() -> None:
    missing = MissingBrokers(brokers_max=3, names_max=2)
    for number in range(5):
        lost(missing, name=f"broker-{number}", address=f"10.0.0.{number}:1")
    assert [row.name for row in missing.all()] == ["broker-2", "broker-3", "broker-4"]
    lost(missing, "a", "b", "d", "%RETRY%x", "%RETRY%y", "%RETRY%z", name="broker-3", address=C)
    *_, last = missing.all()
    assert ([one.name for one in last.topics], last.groups) == (["a", "b"], ("x", "y"))
    assert last.left_out == 2


# Requests


def looked(desk: Desk) -> list[str]:
    look = decode_nameserver_view(desk.ask(RequestCode.VIEW_NAMESERVER).body)
    assert look.now_ms == desk.clock.now_ms()
    return [row.name for row in look.missing]


def vanish(desk: Desk, peer: FakePeer) -> None:
    for gone in desk.state.routes.closed(peer):
        desk.state.missing.lost(gone, "disconnected", desk.clock.now_ms())


def test_broker_that_unregisters_is_not_missing() -> None:
    desk = Desk()
    desk.register()
    desk.ask(RequestCode.UNREGISTER_BROKER, identity())
    vanish(desk, desk.peer)
    assert looked(desk) == []


def test_registration_response_lists_missing_brokers() -> None:
    desk, peer = Desk(), FakePeer()
    assert read_missing(desk.register(peer=peer).ext) == {}
    vanish(desk, peer)
    assert looked(desk) == ["broker-a"]
    reply = desk.register(topic("T"), topic("U"), brokerName="broker-b", brokerAddr=B)
    assert read_missing(reply.ext) == {"broker-a": desk.clock.now_ms()}
    desk.ask(RequestCode.FORGET_BROKER, {"brokerName": "broker-a"})
    assert looked(desk) == []
    assert desk.events[-1] == "broker.forgotten"
    code = desk.refusal(RequestCode.FORGET_BROKER, {"brokerName": "broker-a"})
    assert code == ResponseCode.QUERY_NOT_FOUND


def test_silent_broker_is_missing_as_expired(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    server = NameServer(NameServerConfig(), clock)
    server.routes.register(broker(A), connection=object(), now_s=clock.monotonic_s())
    clock.advance(seconds=121)
    server.scan()
    (row,) = server.missing.all()
    assert (row.name, row.reason, row.since_ms) == ("broker-a", "expired", clock.now_ms())
    (line,) = [line for line in caplog.records if line.message == "broker.expired"]
    assert "tianzhou broker forget broker-a" in vars(line)["remedy"]
