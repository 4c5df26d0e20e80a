"""The access gate: every request passes it."""

import pytest

from tianzhou.broker.router import FAST_PATH
from tianzhou.net.rpc import Peer, RequestRejected
from tianzhou.testing.small_broker import RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_effects import BROKER_EFFECTS
from tianzhou.wire.codec import Header, encode_command
from tianzhou.wire.frame import SerialiseType

CODES = sorted({*BROKER_EFFECTS, *FAST_PATH})


class AdminsOnly:
    """Admits requests of one user."""

    def __init__(self) -> None:
        self.checked: list[tuple[str, int]] = []

    def check(self, peer: Peer, code: int) -> None:
        self.checked.append((peer.identity, int(code)))
        if peer.identity != "admin":
            raise RequestRejected(ResponseCode.NO_PERMISSION, "admins only")


@pytest.fixture
def broker() -> SmallBroker:
    broker = SmallBroker()
    broker.requests.access = AdminsOnly()
    return broker


@pytest.mark.parametrize("form", list(SerialiseType))
@pytest.mark.parametrize("code", CODES, ids=lambda code: RequestCode(code).name)
def test_gate_rejects_every_request_of_an_unknown_peer(
    broker: SmallBroker, code: int, form: SerialiseType
) -> None:
    peer = RecordingPeer()
    end = broker.store.log.end
    broker.received(peer, encode_command(Header(code=code, opaque=7, serialise_type=form)))
    (answer,) = peer.answers()
    assert (answer.code, answer.opaque, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        7,
        "admins only",
    )
    assert broker.store.log.end == end


@pytest.mark.parametrize("code", sorted(FAST_PATH), ids=lambda code: RequestCode(code).name)
def test_gate_rejects_each_request_of_a_batch(broker: SmallBroker, code: int) -> None:
    peer = RecordingPeer()
    rows = b"".join(encode_command(Header(code=code, opaque=n)) for n in range(5))
    broker.received(peer, rows)
    assert [(a.opaque, a.code) for a in peer.answers()] == [
        (n, ResponseCode.NO_PERMISSION) for n in range(5)
    ]


def test_gate_checks_a_batch_of_sends_once_per_connection_identity() -> None:
    broker, gate, peer = SmallBroker(), AdminsOnly(), RecordingPeer()
    broker.send("t")  # creates the topic
    broker.requests.access = gate
    peer.identity = "admin"
    assert broker.send("t", peer=peer).code == ResponseCode.SUCCESS
    assert gate.checked == [("admin", RequestCode.SEND_MESSAGE_V2)]


def test_gate_rejects_oneway_requests_silently(broker: SmallBroker) -> None:
    assert broker.ask(RequestCode.SEND_MESSAGE_V2, {}, oneway=True) is None
