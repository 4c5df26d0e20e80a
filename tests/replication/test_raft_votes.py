"""Real processes: which changes of the members of a group are rejected."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from raft_cluster import TOPIC, Cluster, Member, wait_for

from tianzhou.client import Message
from tianzhou.client.sync import Producer
from tianzhou.net.blocking import BlockingPeer
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.codec import Header
from tianzhou.wire.signing import Credentials

PAIR = '{"accessKey":"cluster","secretKey":"secret"}'
NOWHERE = "127.0.0.1:9"
"""No process listens on this address."""


def change(leader: Member, action: str, member: str, address: str = "", pair: str = "") -> Header:
    ext = {"action": action, "member": member, "address": address}
    credentials = Credentials.read(pair)
    if credentials is not None:
        ext = credentials.sign(ext)
    with BlockingPeer(leader.address, timeout_s=10) as peer:
        return peer.call(RequestCode.CHANGE_RAFT, ext)[0]


def voters(leader: Member) -> set[str]:
    return {peer["name"] for peer in leader.raft()["peers"] if peer["isVoter"]}


def test_voters_that_do_not_exist_never_join(cluster: Cluster) -> None:
    leader = cluster.wait_leader()
    for number in range(5, 9):
        name, address = f"n{number}", f"127.0.0.1:{number}"
        answer = change(leader, "voter", name, address)
        assert answer.code == ResponseCode.INVALID_PARAMETER, answer
        assert "only after it joined as a learner" in (answer.remark or "")
        assert change(leader, "learner", name, address).code == ResponseCode.SUCCESS
        answer = change(leader, "voter", name)
        assert answer.code == ResponseCode.SYSTEM_BUSY, answer
        assert "has not caught up" in (answer.remark or "")
    assert voters(leader) == {"n0", "n1", "n2"}
    with Producer("makers", nameserver=cluster.nameserver) as producer:
        producer.send(Message(TOPIC, b"still committed"))
    for number in range(5, 9):
        assert change(leader, "remove", f"n{number}").code == ResponseCode.SUCCESS
    assert {peer["name"] for peer in leader.raft()["peers"]} == {"n0", "n1", "n2"}


def test_change_that_leaves_too_few_live_voters_is_rejected(cluster: Cluster) -> None:
    leader, (one, other) = cluster.wait_leader(), cluster.followers()
    one.server.kill()
    wait_for("the leader notices the dead member", lambda: not is_connected(leader, one.name))

    def refusal() -> str:
        return change(leader, "remove", other.name).remark or ""

    # Two voters would remain, one of them dead; it still counts as alive for a short time.
    wait_for("the change is rejected", lambda: "voters of which no majority responds" in refusal())
    assert voters(leader) == {"n0", "n1", "n2"}
    assert change(leader, "remove", one.name).code == ResponseCode.SUCCESS


def is_connected(leader: Member, name: str) -> bool:
    return any(peer["isConnected"] for peer in leader.raft()["peers"] if peer["name"] == name)


@pytest.fixture
def signed(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as made:
        made.settings |= {"innerClientAuthenticationCredentials": PAIR}
        made.start()
        yield made


def test_change_without_the_cluster_signature_is_rejected(signed: Cluster) -> None:
    leader = signed.wait_leader()
    forged = '{"accessKey":"cluster","secretKey":"guessed"}'
    for pair in ("", forged):
        for action, member in (("learner", "n9"), ("remove", "n0"), ("transfer", "n1")):
            answer = change(leader, action, member, NOWHERE, pair)
            assert answer.code == ResponseCode.NO_PERMISSION, answer
            assert "TIANZHOU_CREDENTIALS" in (answer.remark or "")
    assert {peer["name"] for peer in leader.raft()["peers"]} == {"n0", "n1", "n2"}
    assert change(leader, "learner", "n9", NOWHERE, PAIR).code == ResponseCode.SUCCESS
    assert "n9" in {peer["name"] for peer in leader.raft()["peers"]}
