"""Proof that a request comes from the cluster itself."""

import pytest

from tianzhou.broker.cluster_proof import ClusterProof
from tianzhou.net.exchange import Refused, Request
from tianzhou.testing.small_broker import RecordingPeer
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.header import Header
from tianzhou.wire.signing import Credentials

PAIR = '{"accessKey":"cluster","secretKey":"12345678"}'


def promotion(ext: dict[str, str], body: bytes = b"") -> Request:
    header = Header(code=RequestCode.PROMOTE_BROKER, opaque=1, ext=ext)
    return Request(header, body, RecordingPeer())


def test_request_needs_no_proof_where_no_credentials_are_set() -> None:
    ClusterProof().check(promotion({"aboveEpoch": "0"}))


def test_request_is_rejected_unless_it_is_signed_with_the_right_pair() -> None:
    proof, ext = ClusterProof(PAIR), {"aboveEpoch": "0"}
    right = Credentials(access_key="cluster", secret_key="12345678")
    proof.check(promotion(right.sign(ext)))
    wrong = Credentials(access_key="cluster", secret_key="87654321")
    for bad in (ext, wrong.sign(ext), right.sign(ext) | {"aboveEpoch": "9"}):
        with pytest.raises(Refused, match="PROMOTE_BROKER needs the signature") as caught:
            proof.check(promotion(bad))
        assert caught.value.code == ResponseCode.NO_PERMISSION
    with pytest.raises(Refused):
        proof.check(promotion(right.sign(ext), body=b"changed"))
