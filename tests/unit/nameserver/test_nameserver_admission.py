"""With a pair of the cluster, only who signs with it changes anything."""

import json

import pytest
from name_desk import Desk, body_of, identity
from registering import FakePeer, topic

from tianzhou.base.errors import UsageError
from tianzhou.nameserver.config import NameServerConfig
from tianzhou.nameserver.handlers import CHANGES, READS
from tianzhou.nameserver.refusals import REMEMBERED_S
from tianzhou.wire._generated_codes import SERVED_BY_NAMESERVER, RequestCode
from tianzhou.wire.registration import REFUSED_BROKERS
from tianzhou.wire.signing import Credentials

PAIR = '{"accessKey":"cluster","secretKey":"hush"}'
OURS = Credentials(access_key="cluster", secret_key="hush")
BODY = body_of(topic("T"), topic("U"))
NAMED = identity(haServerAddr="10.0.0.1:10912")

LOOKING = {
    RequestCode.GET_KV_CONFIG,
    RequestCode.GET_KVLIST_BY_NAMESPACE,
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_TOPICS_BY_CLUSTER,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    RequestCode.GET_UNIT_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    RequestCode.GET_NAMESRV_CONFIG,
    RequestCode.GET_BROKER_MEMBER_GROUP,
    RequestCode.VIEW_NAMESERVER,
}
"""Repeated here, so that moving a code between the two sets is a deliberate change."""


@pytest.fixture
def desk() -> Desk:
    return Desk(NameServerConfig(cluster_credentials=PAIR))


def refused(desk: Desk) -> dict[str, str]:
    reply = desk.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": REFUSED_BROKERS})
    return json.loads(reply.body)["table"]


def test_every_nameserver_request_is_either_a_read_or_a_change() -> None:
    assert READS.keys() == LOOKING
    assert CHANGES.keys() == SERVED_BY_NAMESERVER - LOOKING


@pytest.mark.parametrize("code", sorted(CHANGES))
def test_change_without_a_valid_signature_is_rejected(desk: Desk, code: RequestCode) -> None:
    assert desk.refusal(code, {}) == 16
    assert desk.refusal(code, Credentials(access_key="cluster", secret_key="other").sign({})) == 16


@pytest.mark.parametrize(
    ("ext", "body", "reason"),
    [
        (NAMED, BODY, "it is not signed"),
        (NAMED | {"AccessKey": "", "Signature": ""}, BODY, "it is not signed"),
        (Credentials(access_key="x", secret_key="hush").sign(NAMED, BODY), BODY, "by 'x'"),
        (Credentials(access_key="cluster", secret_key="y").sign(NAMED, BODY), BODY, "wrong"),
        (OURS.sign(NAMED, BODY), BODY + b" ", "wrong"),
        (OURS.sign(NAMED, BODY) | {"brokerAddr": "10.6.6.6:1"}, BODY, "wrong"),
        (OURS.sign(NAMED, BODY) | {"Signature": "é"}, BODY, "wrong"),
    ],
    ids=["bare", "cpp", "stranger", "secret", "body", "field", "letters"],
)
def test_registration_without_a_valid_signature_is_rejected(
    desk: Desk, ext: dict[str, str], body: bytes, reason: str
) -> None:
    assert desk.refusal(RequestCode.REGISTER_BROKER, ext, body) == 16
    assert desk.state.routes.broker_count == 0
    assert reason in refused(desk)["broker-a"]
    assert desk.events == ["request.refused"]


def test_registration_signed_is_accepted_and_clears_the_rejection(desk: Desk) -> None:
    assert desk.refusal(RequestCode.REGISTER_BROKER, NAMED, BODY) == 16
    desk.ask(RequestCode.REGISTER_BROKER, OURS.sign(NAMED, BODY), BODY)
    assert desk.route()["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911"}
    assert desk.refusal(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": REFUSED_BROKERS}) == 22
    assert desk.events == ["request.refused", "broker.registered"]


def test_repeated_rejection_is_logged_once_and_forgotten_later(desk: Desk) -> None:
    for _ in range(3):
        assert desk.refusal(RequestCode.REGISTER_BROKER, NAMED, BODY) == 16
    assert desk.events == ["request.refused"]
    assert refused(desk) == {"broker-a": "10.0.0.1:10911, from 10.0.0.9:5000: it is not signed"}
    desk.clock.advance(seconds=REMEMBERED_S)
    assert desk.refusal(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": REFUSED_BROKERS}) == 22


def test_rejected_registrations_are_bounded_in_number_and_length(desk: Desk) -> None:
    for number in range(100):
        name = f"{number:03}" + "x" * 10_000
        assert desk.refusal(RequestCode.REGISTER_BROKER, identity(brokerName=name)) == 16
    names = list(refused(desk))
    assert [name[:3] for name in names] == [f"{number:03}" for number in range(84, 100)]
    assert max(map(len, names)) == 128


def test_rejected_registrations_cannot_be_forged(desk: Desk) -> None:
    put = OURS.sign({"namespace": REFUSED_BROKERS, "key": "k", "value": "v"})
    assert desk.refusal(RequestCode.PUT_KV_CONFIG, put) == 29


def test_credentials_are_masked_and_cannot_be_changed(desk: Desk) -> None:
    shown = desk.ask(RequestCode.GET_NAMESRV_CONFIG).body
    assert b"innerClientAuthenticationCredentials=******\n" in shown
    assert b"hush" not in shown
    for name in (b"cluster_credentials", b"innerClientAuthenticationCredentials"):
        body = name + b"="
        assert desk.refusal(RequestCode.UPDATE_NAMESRV_CONFIG, OURS.sign({}, body), body) == 16
    body = b"enableTopicList=false"
    desk.ask(RequestCode.UPDATE_NAMESRV_CONFIG, OURS.sign({}, body), body)
    assert desk.refusal(RequestCode.UPDATE_NAMESRV_CONFIG, {}, body) == 16


def test_registration_without_credentials_is_open() -> None:
    desk = Desk()
    desk.ask(RequestCode.REGISTER_BROKER, NAMED, BODY, peer=FakePeer())
    assert desk.state.routes.broker_count == 1


def test_nameserver_with_invalid_credentials_fails_to_start() -> None:
    with pytest.raises(UsageError, match="credentials are written"):
        Desk(NameServerConfig(cluster_credentials="cluster:hush"))
