"""Real processes: state that belongs to messages moves with them to the next leader."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from raft_cluster import TOPIC, Cluster, wait_for

from tianzhou.base.errors import TianzhouError
from tianzhou.client import Message, TransactionState
from tianzhou.client.sync import Admin, Producer
from tianzhou.net.blocking import BlockingPeer
from tianzhou.testing.chaos import looking
from tianzhou.wire._generated_codes import RequestCode, ResponseCode

GROUP = "readers"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as made:
        made.settings |= {"transactionTimeOut": "500", "transactionCheckInterval": "1000"}
        made.start()
        made.create_topic()
        yield made


def kill_leader(cluster: Cluster) -> None:
    leader = cluster.wait_leader()
    leader.server.kill()
    wait_for("another leader", lambda: cluster.leader() not in (None, leader))


def commit_offset(cluster: Cluster, offset: int) -> None:
    ext = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": "0",
        "commitOffset": str(offset),
    }
    with BlockingPeer(cluster.wait_leader().address) as peer:
        answer, _ = peer.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


@pytest.mark.slow
def test_topics_offsets_delays_and_transactions_survive_a_leader_kill(cluster: Cluster) -> None:
    checked: list[str] = []

    def check(message: object) -> TransactionState:
        checked.append(str(message))
        return TransactionState.COMMIT

    with Producer("makers", nameserver=cluster.nameserver, check=check) as producer:
        for number in range(40):
            producer.send(Message(TOPIC, b"plain-%d" % number))
        commit_offset(cluster, 7)
        producer.send(Message(TOPIC, b"delayed", delay_level=2))
        for member in cluster.members:
            wait_for(
                f"{member.name} knows how far the group is",
                lambda at=member.address: looking.committed(at, GROUP, TOPIC, 0) == 7,
            )
        with producer.transaction(Message(TOPIC, b"undecided")) as transaction:
            transaction.leave_undecided()  # the broker has to check it
        with Admin(nameserver=cluster.nameserver) as admin:
            admin.topics.create("created-just-before", queues=3)
        kill_leader(cluster)
        leader = cluster.wait_leader()
        assert looking.committed(leader.address, GROUP, TOPIC, 0) == 7
        with Admin(nameserver=cluster.nameserver) as admin:
            assert "created-just-before" in admin.topics.all()

        def shown() -> set[str]:
            try:
                return set(cluster.values(cluster.wait_leader()))
            except TianzhouError:
                return set()

        wait_for("the delayed message", lambda: "delayed" in shown())
        wait_for("the decided message", lambda: "undecided" in shown())
        assert checked
        assert {f"plain-{number}" for number in range(40)} <= shown()
