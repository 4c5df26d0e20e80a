"""A broker does not take the name and id of another one that is alive."""

import json

import pytest
from name_desk import Desk, body_of, identity
from registering import A, B, FakePeer, broker, topic
from route_world import World

from tianzhou.nameserver.routes import Verdict
from tianzhou.net.rpc import RequestRejected
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.nameserver_bodies import RefusedBroker, decode_nameserver_view
from tianzhou.wire.registration import EPOCH, FREE_ID, NAME_TAKEN


@pytest.fixture
def world() -> World:
    """A broker that registered through a connection of its own."""
    world = World()
    world.register(broker(A, state_version=1))
    world.connection = object()
    return world


def test_second_broker_with_the_name_of_a_live_one_is_rejected(world: World) -> None:
    assert world.register(broker(B, "X", "Y", state_version=1)) is Verdict.TAKEN
    assert world.addresses() == {0: A}
    assert world.table.route_of("X") is None
    assert not world.table.has_link(world.connection)


def test_second_slave_with_the_id_of_a_live_one_is_rejected(world: World) -> None:
    assert world.register(broker(B, broker_id=1)) is Verdict.FIRST
    world.connection = object()
    assert world.register(broker("10.0.0.3:1", broker_id=1)) is Verdict.TAKEN
    assert world.addresses() == {0: A, 1: B}


def test_name_is_free_once_the_connection_of_its_broker_closed(world: World) -> None:
    """A broker that crashed comes back at once, also with another port."""
    other = World()
    other.register(broker(A))
    other.table.closed(other.connection)
    other.connection = object()
    assert other.register(broker(B)) is Verdict.FIRST
    assert other.addresses() == {0: B}


def test_name_is_free_once_its_broker_has_expired(world: World) -> None:
    world.now_s = 120.0
    assert world.register(broker(B, state_version=1)) is Verdict.TAKEN
    world.now_s = 120.5
    assert world.register(broker(B, state_version=1)) is Verdict.AGAIN
    assert world.addresses() == {0: B}


def test_registration_with_the_same_address_or_connection_is_accepted(world: World) -> None:
    assert world.register(broker(A, state_version=1)) is Verdict.AGAIN
    assert world.register(broker(B, state_version=1)) is Verdict.AGAIN, "it changed its address"


@pytest.mark.parametrize(
    ("held", "wanted", "verdict"),
    [
        (1, 2, Verdict.AGAIN),
        (2, 1, Verdict.OUTDATED),
        (2, 2, Verdict.TAKEN),
        (0, 1, Verdict.TAKEN),
        (1, 0, Verdict.TAKEN),
        (0, 0, Verdict.TAKEN),
    ],
)
def test_name_is_taken_over_only_by_a_later_epoch_of_the_group(
    held: int, wanted: int, verdict: Verdict
) -> None:
    """A broker without an epoch, such as that of `tianzhou up`, is in no group that has them."""
    world = World()
    world.register(broker(A, state_version=held))
    world.connection = object()
    assert world.register(broker(B, state_version=wanted)) is verdict


def test_promoted_slave_replaces_a_live_master() -> None:
    world = World()
    world.register(broker(A, state_version=1))
    world.connection = object()
    world.register(broker(B, broker_id=1, state_version=1))
    assert world.register(broker(B, state_version=2)) is Verdict.AGAIN
    assert world.addresses() == {0: B}


def test_name_rejection_lists_the_live_broker_and_is_logged_once() -> None:
    desk, peer = Desk(), FakePeer(remote="10.0.0.2:4000")
    desk.register()
    with pytest.raises(RequestRejected):
        desk.register(peer=peer, brokerAddr=B)
    with pytest.raises(RequestRejected) as caught:
        desk.register(peer=peer, brokerAddr=B)
    assert caught.value.code == ResponseCode.NO_PERMISSION
    assert caught.value.ext == {NAME_TAKEN: A}
    assert f"broker broker-a with id 0 is registered at {A} and alive" in caught.value.remark
    assert desk.events == ["broker.registered", "broker.refused"]
    desk.register()  # that the other one lives changes nothing
    look = decode_nameserver_view(desk.ask(RequestCode.VIEW_NAMESERVER).body)
    assert look.refused == (
        RefusedBroker(
            address=B,
            kind="name_taken",
            name="broker-a",
            peer="10.0.0.2:4000",
            reason=f"broker broker-a with id 0 is registered at {A} and alive",
        ),
    )
    listed = desk.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "REFUSED_BROKERS"})
    assert json.loads(listed.body)["table"]["broker-a"].startswith(f"{B}, from 10.0.0.2:4000: ")
    desk.register(peer=peer, brokerAddr=B, brokerName="broker-b")
    desk.ask(RequestCode.UNREGISTER_BROKER, identity())
    desk.register(peer=peer, brokerAddr=B)
    assert decode_nameserver_view(desk.ask(RequestCode.VIEW_NAMESERVER).body).refused == ()


def test_name_rejection_of_a_slave_names_a_free_id() -> None:
    desk, peer = Desk(), FakePeer(remote="10.0.0.2:4000")
    desk.register(brokerId="1", also={EPOCH: "1"})
    with pytest.raises(RequestRejected) as caught:
        desk.register(peer=peer, brokerAddr=B, brokerId="1", also={EPOCH: "1"})
    assert caught.value.ext == {NAME_TAKEN: A, FREE_ID: "2"}
    with pytest.raises(RequestRejected) as caught:
        desk.register(peer=peer, brokerAddr=B, brokerId="1")
    assert caught.value.ext == {NAME_TAKEN: A}, "a RocketMQ broker has the id of its settings"


def test_name_rejection_is_forgotten_after_two_minutes() -> None:
    desk = Desk()
    desk.register()
    with pytest.raises(RequestRejected):
        desk.register(peer=FakePeer(), brokerAddr=B)
    desk.clock.advance(seconds=119)
    desk.register(body=body_of(topic("T"), topic("U")))
    assert len(decode_nameserver_view(desk.ask(RequestCode.VIEW_NAMESERVER).body).refused) == 1
    desk.clock.advance(seconds=2)
    assert decode_nameserver_view(desk.ask(RequestCode.VIEW_NAMESERVER).body).refused == ()
