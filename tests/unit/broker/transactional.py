"""A producer of transactional messages, for tests."""

from tianzhou.broker import names
from tianzhou.record.message import MessageView
from tianzhou.testing.small_broker import RecordingPeer, SmallBroker, Told
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.codec import Header

GROUP = "buyers"
COMMIT, ROLLBACK, UNKNOWN = "8", "12", "0"


def send_half(broker: SmallBroker, body: bytes = b"half", **named: str) -> MessageView:
    """Send a half message; the half as it is stored."""
    named = {"TRAN_MSG": "true", "PGROUP": GROUP, "TAGS": "a"} | named
    answer = broker.send("orders", body, named, queue_id=2, sys_flag=4)
    assert answer.code == 0
    half = broker.messages(names.HALF_TOPIC)[-1]
    assert answer.ext["queueOffset"] == str(half.queue_offset)
    assert answer.ext["transactionId"] == half.unique_id
    return half


def decide(
    broker: SmallBroker, half: MessageView, decision: str, *, oneway: bool = False, **more: str
) -> Header | None:
    ext = {
        "producerGroup": GROUP,
        "tranStateTableOffset": str(half.queue_offset),
        "commitLogOffset": str(half.physical_offset),
        "commitOrRollback": decision,
        "msgId": half.unique_id or "",
    } | more
    return broker.ask(RequestCode.END_TRANSACTION, ext, oneway=oneway)


def code_of(answer: Header | None) -> int:
    assert answer is not None
    return answer.code


def visible(broker: SmallBroker) -> list[bytes]:
    return broker.bodies("orders", 2)


def ops(broker: SmallBroker) -> list[bytes]:
    return broker.bodies(names.OP_TOPIC)


def producer(broker: SmallBroker, port: int = 1000) -> RecordingPeer:
    peer = RecordingPeer("10.2.2.2", port)
    broker.heartbeat(peer, f"producer-{port}", producers=(GROUP,))
    return peer


def checks(peer: RecordingPeer) -> list[Told]:
    told = peer.take_told()
    assert all(one.code == RequestCode.CHECK_TRANSACTION_STATE for one in told)
    return told
