"""What a deleted topic leaves behind is removed now, or when a Raft group has committed that."""

import threading

from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.small_broker import RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode

TOPIC = "orders"
DEADLINE_S = 30


def test_removal_without_a_raft_group_is_immediate() -> None:
    broker = SmallBroker()
    broker.send(TOPIC)
    broker.slices.topics.removal.request(TOPIC)
    assert broker.bodies(TOPIC) == []
    assert not broker.slices.topics.removal.pending


def test_removal_in_a_raft_group_waits() -> None:
    broker = SmallBroker()
    broker.send(TOPIC)
    broker.slices.groups.tables.offsets.put("readers", TOPIC, 0, 1)
    broker.slices.topics.removal.is_replicated = True
    broker.slices.topics.removal.request(TOPIC)
    assert broker.bodies(TOPIC) == [b"body"]
    assert broker.slices.topics.removal.pending == {TOPIC}
    broker.slices.topics.removal.remove(TOPIC, before=broker.store.log.end)
    assert broker.bodies(TOPIC) == []
    assert broker.slices.groups.tables.offsets.get("readers", TOPIC, 0) is None
    assert not broker.slices.topics.removal.pending


def test_removal_before_an_offset_keeps_a_queue_that_continues_after_it() -> None:
    broker = SmallBroker()
    broker.send(TOPIC)
    place = broker.store.log.end
    broker.send(TOPIC, queue_id=1)
    broker.slices.topics.removal.remove(TOPIC, before=place)
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


def test_delete_topic_request_responds_when_the_deletion_is_durable() -> None:
    broker = SmallBroker()
    peer = delete(broker)
    broker.tick()
    assert peer.answers() == []
    broker.store.removals.durable += 1
    broker.tick()
    assert [answer.code for answer in peer.answers()] == [ResponseCode.SUCCESS]


def test_delete_topic_request_at_a_failed_store_returns_an_error() -> None:
    broker = SmallBroker()
    peer = delete(broker)
    broker.store._fence.fenced("syncing", OSError("the disk is gone"))
    broker.slices.topics.removal.release()
    (answer,) = peer.answers()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "delete the topic again after the restart" in (answer.remark or "")


class HangingDisk(SimDisk):
    """Syncs nothing between `hang` and `go_on`; the thread that made it must not try meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = threading.current_thread()
        self._may_go_on = threading.Event()
        self.hang, self.go_on = self._may_go_on.clear, self._may_go_on.set
        self.go_on()

    def enter(self, kind: str, path: str, at: int = 0, size: int = 0) -> int:
        if kind.startswith("sync") and not self._may_go_on.is_set():
            assert threading.current_thread() is not self._loop, f"the loop waits: {kind} {path}"
            assert self._may_go_on.wait(DEADLINE_S)
        return super().enter(kind, path, at, size)


def test_delete_topic_request_and_saved_offsets_sync_nothing_in_the_loop() -> None:
    disk, progress = HangingDisk(), threading.Event()
    broker, peer = SmallBroker(disk), RecordingPeer()
    broker.store.start(progress.set)
    broker.send(TOPIC)
    broker.slices.groups.tables.offsets.put("readers", TOPIC, 0, 1)
    disk.hang()
    broker.slices.groups.tables.offsets.save_later()
    assert broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}, peer=peer) is None
    disk.go_on()
    while not (answers := peer.answers()):
        assert progress.wait(DEADLINE_S)
        progress.clear()
        broker.slices.topics.removal.release()
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS]
    broker.store.abandon()
    broker.kill()
    assert broker.slices.topics.topics.get(TOPIC) is None
    assert broker.slices.groups.tables.offsets.get("readers", TOPIC, 0) is None
    assert broker.bodies(TOPIC) == []
