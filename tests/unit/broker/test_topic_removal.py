"""What a deleted topic leaves behind is removed now, or when a Raft group has committed that."""

from tianzhou.testing.small_broker import RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode

TOPIC = "orders"


def test_removal_without_a_raft_group_is_immediate() -> None:
    broker = SmallBroker()
    broker.send(TOPIC)
    broker.parts.removal.request(TOPIC)
    assert broker.bodies(TOPIC) == []
    assert not broker.parts.removal.pending


def test_removal_in_a_raft_group_waits() -> None:
    broker = SmallBroker()
    broker.send(TOPIC)
    broker.parts.offsets.put("readers", TOPIC, 0, 1)
    broker.parts.removal.is_replicated = True
    broker.parts.removal.request(TOPIC)
    assert broker.bodies(TOPIC) == [b"body"]
    assert broker.parts.removal.pending == {TOPIC}
    broker.parts.removal.remove(TOPIC, before=broker.store.log.end)
    assert broker.bodies(TOPIC) == []
    assert broker.parts.offsets.get("readers", TOPIC, 0) is None
    assert not broker.parts.removal.pending


def test_removal_before_a_place_keeps_a_queue_that_goes_on_behind_it() -> None:
    broker = SmallBroker()
    broker.send(TOPIC)
    place = broker.store.log.end
    broker.send(TOPIC, queue_id=1)
    broker.parts.removal.remove(TOPIC, before=place)
    assert broker.bodies(TOPIC) == []
    assert broker.bodies(TOPIC, 1) == [b"body"]
    assert broker.send(TOPIC, queue_id=1).ext["queueOffset"] == "1"
    assert broker.send(TOPIC).ext["queueOffset"] == "0"


def delete(broker: SmallBroker) -> RecordingPeer:
    """A request to delete the topic while the flush thread has yet to record another deletion."""
    broker.send(TOPIC)
    broker.store.removals.begun += 1
    peer = RecordingPeer()
    assert broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}, peer=peer) is None
    assert broker.bodies(TOPIC) == []
    return peer


def test_delete_topic_request_is_answered_when_the_deletion_is_durable() -> None:
    broker = SmallBroker()
    peer = delete(broker)
    broker.tick()
    assert peer.answers() == []
    broker.store.removals.durable += 1
    broker.tick()
    assert [answer.code for answer in peer.answers()] == [ResponseCode.SUCCESS]


def test_delete_topic_request_at_a_store_that_fails_is_answered_with_an_error() -> None:
    broker = SmallBroker()
    peer = delete(broker)
    broker.store._fence("syncing", OSError("the disk is gone"))
    broker.parts.removal.release()
    (answer,) = peer.answers()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "delete the topic again after the restart" in (answer.remark or "")
