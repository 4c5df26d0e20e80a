"""Real processes: a slave and a Raft follower execute nothing that only a master may execute."""

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from ha_cluster import Group, promote, read_all, until, until_equal
from raft_cluster import QUEUES, Cluster, wait_for

from tianzhou.client import ClientOptions, Message, TransactionState
from tianzhou.client.admin.calls import AdminCalls
from tianzhou.client.session.shared_client import SharedClient
from tianzhou.client.sync import Admin, Producer
from tianzhou.net.blocking import BlockingPeer
from tianzhou.record.ids import decode_offset_id
from tianzhou.testing.changing_requests import EXAMPLES, GROUP, TOPIC, Known
from tianzhou.testing.chaos import looking
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import TopicRequest

COUNT = 100
TABLES = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
)


def state(address: str) -> tuple[list[Any], int]:
    """The state of a broker, as far as its port shows it."""
    with BlockingPeer(address) as peer:
        tables = [json.loads(peer.call(code)[1]) for code in TABLES]
    for table in tables:
        table.pop("dataVersion", None)
    return tables, looking.log_end(address)


def queue_files(data: Path) -> set[str]:
    root = data / "consumequeue"
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def commit_offset(address: str, offset: int) -> None:
    ext = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": "0",
        "commitOffset": str(offset),
    }
    with BlockingPeer(address) as peer:
        answer, _ = peer.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def fill(nameserver: str, broker_name: str, master: str) -> tuple[Known, set[bytes]]:
    """Create acknowledged messages, an offset, a half message and a timer; returns them."""
    with Producer(
        "producers", nameserver=nameserver, check=lambda _: TransactionState.UNKNOWN
    ) as producer:
        bodies = {b"body-%d" % number for number in range(COUNT)}
        results = [producer.send(Message(TOPIC, body)) for body in sorted(bodies)]
        timed = producer.send(Message(TOPIC, b"timed", delay=timedelta(hours=1)))
        with producer.transaction(Message(TOPIC, b"undecided")) as transaction:
            half = transaction.half
            transaction.leave_undecided()
    commit_offset(master, 3)
    known = Known(
        broker_name,
        record_at=decode_offset_id(results[0].offset_id).physical_offset,
        half_at=decode_offset_id(half.offset_id).physical_offset,
        half_id=half.offset_id,
        recall_handle=timed.recall_handle or "",
    )
    return known, bodies


def check_rejections(replica: str, master: str, known: Known) -> None:
    for code, example in EXAMPLES.items():
        asked = example(known)
        with BlockingPeer(replica) as peer:
            answer, _ = peer.call(code, asked.ext, asked.body)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, (code.name, answer)
        assert master in (answer.remark or ""), code.name
        assert answer.ext.get("masterAddr") == master, code.name


def test_slave_rejects_every_change_and_loses_nothing_in_a_promotion(tmp_path: Path) -> None:
    with Group(tmp_path) as group:
        master, slave = group.master, group.add(1)
        master.start()
        slave.start()
        group.create_topic()
        known, bodies = fill(group.nameserver, "broker-a", master.address)
        until_equal(master, slave)
        until(lambda: state(slave.address) == state(master.address), "the tables are equal")
        before, files = state(slave.address), queue_files(slave.data)
        check_rejections(slave.address, master.address, known)
        assert state(slave.address) == before
        assert queue_files(slave.data) >= files
        promote(group, "--switch")
        assert bodies <= {body.encode() for body in read_all(group)}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as made:
        made.start()
        with Admin(nameserver=made.nameserver) as admin:
            admin.topics.create(TOPIC, queues=QUEUES)
        yield made


def test_follower_rejects_every_change_and_loses_nothing_in_a_transfer(cluster: Cluster) -> None:
    leader = cluster.wait_leader()
    known, bodies = fill(cluster.nameserver, "broker-a", leader.address)
    follower = cluster.followers()[0]
    wait_for(
        "the tables are equal",
        lambda: state(follower.address)[0] == state(leader.address)[0],
    )
    before, files = state(follower.address), queue_files(follower.data)
    check_rejections(follower.address, leader.address, known)
    assert state(follower.address) == before
    assert queue_files(follower.data) >= files
    with BlockingPeer(leader.address) as peer:
        ext = {"action": "transfer", "member": follower.name}
        answer, _ = peer.call(RequestCode.CHANGE_RAFT, ext)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    wait_for("the follower leads", lambda: cluster.leader() is follower)
    for member in cluster.members:
        shown = {bytes(view.body) for view in looking.shown(member.address, TOPIC, QUEUES)}
        assert bodies <= shown, member.name


def test_admin_client_follows_a_replica_to_the_leader(cluster: Cluster) -> None:
    """It asks the masters that the NameServer lists; one may have been deposed just now."""
    follower, code = cluster.followers()[0], RequestCode.DELETE_TOPIC_IN_BROKER

    async def ask() -> None:
        shared = SharedClient.join(cluster.nameserver, ClientOptions())
        try:
            await AdminCalls(shared).ask(follower.address, code, TopicRequest(topic=TOPIC))
        finally:
            await shared.leave()

    asyncio.run(ask())
    for member in cluster.members:
        wait_for(
            f"the topic is gone at {member.name}", lambda at=member.address: TOPIC not in topics(at)
        )


def topics(address: str) -> set[str]:
    return set(state(address)[0][0]["topicConfigTable"])


def test_deleted_topic_stays_deleted_when_its_leader_dies(cluster: Cluster) -> None:
    """The response confirms that the deletion is committed; messages of the first topic do not
    reappear in a second one of the same name."""
    leader = cluster.wait_leader()
    fill(cluster.nameserver, "broker-a", leader.address)
    with BlockingPeer(leader.address) as peer:
        answer, _ = peer.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    leader.server.kill()
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    wait_for("another leader", lambda: cluster.leader() not in (None, leader))
    assert TOPIC not in topics(cluster.wait_leader().address)
    leader.start()
    leader.server.wait_ready()
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.topics.create(TOPIC, queues=QUEUES)
    with Producer("producers", nameserver=cluster.nameserver) as producer:
        result = producer.send(Message(TOPIC, b"second"))
    assert result.queue_offset == 0
    cluster.wait_equal()
    for member in cluster.members:
        shown = [bytes(view.body) for view in looking.shown(member.address, TOPIC, QUEUES)]
        assert shown == [b"second"], member.name


def test_change_without_a_majority_has_an_unknown_outcome(cluster: Cluster) -> None:
    leader, followers = cluster.wait_leader(), cluster.followers()
    for follower in followers:
        follower.server.pause()
    try:
        with BlockingPeer(leader.address, timeout_s=10) as peer:
            answer, _ = peer.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    finally:
        for follower in followers:
            follower.server.resume()
    assert answer.code == ResponseCode.SYSTEM_ERROR, answer
    assert "unknown" in (answer.remark or "")
    cluster.wait_leader()
    cluster.wait_equal()
    wait_for(
        "all know the same",
        lambda: len({frozenset(topics(m.address)) for m in cluster.members}) == 1,
    )
