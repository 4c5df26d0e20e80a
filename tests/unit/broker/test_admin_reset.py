"""Groups are moved to another time or offset, online or not."""

import pytest
from administrator import Administrator, Answer, join, make_topic

from tianzhou.testing.small_broker import RecordingPeer, SmallBroker
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.codec import Language
from tianzhou.wire.queues import decode_queue_offsets


@pytest.fixture
def broker() -> SmallBroker:
    """Topic `orders` with two queues; five messages in the first, a second apart."""
    made = SmallBroker()
    make_topic(made, "orders")
    made.slices.groups.clients.groups.obtain("readers")
    for _ in range(5):
        made.clock.advance(seconds=1)
        made.send("orders")
    made.slices.groups.tables.offsets.put("readers", "orders", 0, 3)
    return made


def reset(broker: SmallBroker, timestamp: int, *, force: str = "true", **more: str) -> Answer:
    return Administrator(broker).ask(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        **({"topic": "orders", "group": "readers", "isForce": force} | more),
        timestamp=str(timestamp),
    )


def committed(broker: SmallBroker) -> dict[int, int]:
    return broker.slices.groups.tables.offsets.of("readers", "orders")


def test_reset_by_time_moves_a_stopped_group(broker: SmallBroker) -> None:
    answer = reset(broker, broker.clock.now_ms() - 3000)
    assert answer.code == 0
    told = {queue.queue_id: offset for queue, offset in decode_queue_offsets(answer.body).items()}
    assert told == committed(broker) == {0: 1, 1: 0}
    broker.kill()
    assert committed(broker) == {0: 1, 1: 0}


def test_reset_to_minus_one_is_the_end(broker: SmallBroker) -> None:
    reset(broker, -1)
    assert committed(broker) == {0: 5, 1: 0}


def test_reset_without_force_skips_nothing(broker: SmallBroker) -> None:
    reset(broker, -1, force="false")
    assert committed(broker) == {0: 3, 1: 0}
    reset(broker, 0, force="false")
    assert committed(broker)[0] == 0


def test_reset_of_one_queue_moves_it_to_the_offset(broker: SmallBroker) -> None:
    assert reset(broker, 0, queueId="0", offset="4").code == 0
    assert committed(broker) == {0: 4}
    assert reset(broker, 0, queueId="0", offset="6").code == ResponseCode.SYSTEM_ERROR
    assert reset(broker, 0, queueId="2", offset="0").code == ResponseCode.INVALID_PARAMETER
    assert reset(broker, 0, queueId="-1", offset="-1").code == 0
    assert committed(broker) == {0: 0, 1: 0}


def test_reset_of_an_unknown_name_is_rejected(broker: SmallBroker) -> None:
    assert reset(broker, 0, topic="x").code == ResponseCode.TOPIC_NOT_EXIST
    assert reset(broker, 0, group="x").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_reset_notifies_every_live_member_in_its_own_format(broker: SmallBroker) -> None:
    java = join(broker, "readers", "orders", client_id="j", port=1)
    cpp = join(broker, "readers", "orders", client_id="c", port=2, language=Language.CPP)
    stranger = join(broker, "others", "orders", client_id="s", port=3)
    for peer in (java, cpp, stranger):
        peer.take_told()
    assert reset(broker, 0).code == 0
    (told,) = java.take_told()
    assert told.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    assert told.ext == {"topic": "orders", "group": "readers", "timestamp": "0", "isForce": "true"}
    assert {q.queue_id: o for q, o in decode_queue_offsets(told.body).items()} == {0: 0, 1: 0}
    (told,) = cpp.take_told()
    assert fastjson.parse(told.body) == {
        "offsetTable": [
            {"brokerName": "broker-a", "queueId": 0, "topic": "orders", "offset": 0},
            {"brokerName": "broker-a", "queueId": 1, "topic": "orders", "offset": 0},
        ]
    }
    assert stranger.take_told() == []


def test_reset_does_not_notify_a_disconnected_member(broker: SmallBroker) -> None:
    peer: RecordingPeer = join(broker, "readers", "orders")
    broker.slices.groups.clients.remove_client(peer)
    reset(broker, 0)
    assert peer.take_told() == []
