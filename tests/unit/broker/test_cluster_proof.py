"""Proof that a request comes from the cluster itself."""

import pytest

from tianzhou.broker.access.cluster_proof import ClusterProof
from tianzhou.net.rpc import Request, RequestRejected
from tianzhou.testing.small_broker import RecordingPeer
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.codec import Header
from tianzhou.wire.signing import Credentials

PAIR = '{"accessKey":"cluster","secretKey":"12345678"}'


def promotion(ext: dict[str, str], body: bytes = b"") -> Request:
    header = Header(code=RequestCode.PROMOTE_BROKER, opaque=1, ext=ext)
    return Request(header, body, RecordingPeer())


def test_cluster_request_without_configured_credentials_is_accepted() -> None:
    ClusterProof().check(promotion({"aboveEpoch": "0"}))


def test_cluster_request_without_a_valid_signature_is_rejected() -> None:
    proof, ext = ClusterProof(PAIR), {"aboveEpoch": "0"}
    right = Credentials(access_key="cluster", secret_key="12345678")
    proof.check(promotion(right.sign(ext)))
    wrong = Credentials(access_key="cluster", secret_key="87654321")
    for bad in (ext, wrong.sign(ext), right.sign(ext) | {"aboveEpoch": "9"}):
        with pytest.raises(RequestRejected, match="PROMOTE_BROKER needs the signature") as caught:
            proof.check(promotion(bad))
        assert caught.value.code == ResponseCode.NO_PERMISSION
    with pytest.raises(RequestRejected):
        proof.check(promotion(right.sign(ext), body=b"changed"))


def change_from(address: str, ext: dict[str, str]) -> Request:
    peer = RecordingPeer()
    peer.remote = f"{address}:4711"
    return Request(Header(code=RequestCode.CHANGE_RAFT, opaque=1, ext=ext), b"", peer)


def test_member_change_unsigned_from_this_machine_is_rejected() -> None:
    proof, ext = ClusterProof(PAIR), {"action": "remove", "member": "n2"}
    pair = Credentials(access_key="cluster", secret_key="12345678")
    proof.check_members(change_from("10.1.1.1", pair.sign(ext)))
    for address in ("10.1.1.1", "127.0.0.1"):
        for bad in (ext, pair.sign(ext) | {"member": "n1"}):
            with pytest.raises(RequestRejected, match="CHANGE_RAFT needs the signature"):
                proof.check_members(change_from(address, bad))


@pytest.mark.parametrize("address", ["127.0.0.1", "127.3.2.1", "[::1]", "[::ffff:127.0.0.1]"])
def test_member_change_without_credentials_is_accepted_from_this_machine(
    address: str,
) -> None:
    ClusterProof().check_members(change_from(address, {}))


@pytest.mark.parametrize("address", ["10.1.1.1", "[fe80::1%eth0]", "[::ffff:10.1.1.1]", "unknown"])
def test_member_change_without_credentials_is_rejected_from_elsewhere(
    address: str,
) -> None:
    with pytest.raises(RequestRejected, match="own machine only") as caught:
        ClusterProof().check_members(change_from(address, {}))
    assert caught.value.code == ResponseCode.NO_PERMISSION
