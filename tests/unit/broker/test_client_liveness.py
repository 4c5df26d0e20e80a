"""Who lives and who holds a lock is decided by monotonic time, not by the wall clock."""

from tianzhou.net.rpc import Request
from tianzhou.testing.small_broker import RecordingPeer, SmallBroker
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.codec import Header

HOUR_MS = 3_600_000


def locked_by(broker: SmallBroker, client_id: str) -> bool:
    """Ask for the lock; whether it was granted."""
    queue = {"topic": "t", "brokerName": "broker-a", "queueId": 0}
    asked = {"consumerGroup": "g", "clientId": client_id, "mqSet": [queue]}
    header = Header(code=RequestCode.LOCK_BATCH_MQ, opaque=1)
    request = Request(header, fastjson.encode(asked), RecordingPeer())
    return b'"queueId":0' in broker.slices.groups.clients.lock(request).body


def test_clock_change_expires_no_client() -> None:
    broker, peer = SmallBroker(), RecordingPeer()
    broker.heartbeat(peer, "c1", producers=("p",))
    for jump_ms in (HOUR_MS, -2 * HOUR_MS):
        broker.clock.jump(jump_ms)
        broker.slices.groups.clients.expire()
        assert list(broker.slices.groups.tables.sessions.producers) == ["p"]
    broker.clock.advance(ms=broker.config.client_expiry_ms + 1)
    broker.slices.groups.clients.expire()
    assert broker.slices.groups.tables.sessions.producers == {}


def test_clock_change_releases_no_lock() -> None:
    broker = SmallBroker()
    assert locked_by(broker, "c1")
    broker.clock.jump(HOUR_MS)
    assert not locked_by(broker, "c2")
    broker.clock.advance(ms=broker.config.lock_lease_ms + 1)
    assert locked_by(broker, "c2")


def test_heartbeat_without_groups_succeeds() -> None:
    answer = SmallBroker().ask(RequestCode.HEART_BEAT, {}, b"{}")
    assert answer is not None
    assert answer.code == 0


def test_heartbeats_without_a_client_id_are_keyed_by_connection() -> None:
    broker = SmallBroker()
    body = b'{"producerDataSet":[{"groupName":"p"}]}'
    for port in (1, 2):
        broker.ask(RequestCode.HEART_BEAT, {}, body, peer=RecordingPeer(port=port))
    assert len(broker.slices.groups.tables.sessions.producers["p"]) == 2
