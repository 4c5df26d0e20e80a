"""Real processes: offsets that consumers commit at a follower reach the group."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from raft_cluster import TOPIC, Cluster, Member, wait_for

from tianzhou.client import Message
from tianzhou.client.sync import Producer
from tianzhou.net.blocking import BlockingPeer
from tianzhou.testing.chaos import looking
from tianzhou.wire._generated_codes import RequestCode, ResponseCode

SENT = 200
"""50 messages in each queue."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as made:
        made.start()
        made.create_topic()
        with Producer("makers", nameserver=made.nameserver) as producer:
            for number in range(SENT):
                producer.send(Message(TOPIC, b"%d" % number))
        made.wait_equal()
        yield made


def ask(at: Member, code: RequestCode, /, **ext: str) -> None:
    with BlockingPeer(at.address) as peer:
        answer, _ = peer.call(code, ext)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def commit(member: Member, group: str, offset: int) -> None:
    ask(
        member,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        consumerGroup=group,
        topic=TOPIC,
        queueId="0",
        commitOffset=str(offset),
    )


def offset_at(member: Member, group: str) -> int | None:
    return looking.committed(member.address, group, TOPIC, 0)


def wait_all(cluster: Cluster, group: str, offset: int) -> None:
    for member in cluster.members:
        wait_for(
            f"{group} is at {offset} at {member.name}",
            lambda at=member: offset_at(at, group) == offset,
        )


def transfer_leadership(cluster: Cluster, member: Member) -> None:
    leader = cluster.wait_leader()
    ask(leader, RequestCode.CHANGE_RAFT, action="transfer", member=member.name)
    wait_for(f"{member.name} leads", lambda: cluster.leader() is member)


def test_offset_committed_at_a_follower_reaches_every_member(cluster: Cluster) -> None:
    leader, (follower, third) = cluster.wait_leader(), cluster.followers()
    commit(leader, "readers", 20)
    wait_all(cluster, "readers", 20)
    commit(follower, "readers", 40)
    commit(follower, "fresh", 30)
    wait_all(cluster, "readers", 40)
    wait_all(cluster, "fresh", 30)
    commit(leader, "readers", 45)
    commit(follower, "readers", 44)  # late: the group is already further
    wait_all(cluster, "readers", 45)
    transfer_leadership(cluster, third)
    wait_all(cluster, "readers", 45)
    wait_all(cluster, "fresh", 30)


def test_offset_committed_without_a_leader_survives_and_reaches_the_next_leader(
    cluster: Cluster,
) -> None:
    """The other two are killed; the third serves consumers, is killed, and returns last."""
    leader, (follower, third) = cluster.wait_leader(), cluster.followers()
    commit(leader, "readers", 20)
    wait_all(cluster, "readers", 20)
    leader.server.kill()
    third.server.kill()
    commit(follower, "readers", 40)
    saved = follower.data / "config" / "acceptedOffset.json"
    wait_for("the offset is saved", lambda: saved.exists() and "40" in saved.read_text())
    follower.server.kill()
    for member in (leader, third):
        member.start()
        member.server.wait_ready()
    cluster.wait_leader()
    follower.start()
    follower.server.wait_ready()
    wait_all(cluster, "readers", 40)


def test_reset_and_deletion_are_not_undone_by_offsets_of_a_follower(cluster: Cluster) -> None:
    leader, (follower, third) = cluster.wait_leader(), cluster.followers()
    for group in ("reset", "deleted"):
        commit(leader, group, 0)
        wait_all(cluster, group, 0)
    third.server.pause()  # the group continues without it
    try:
        commit(follower, "reset", 40)
        commit(follower, "deleted", 40)
        wait_for("the offset is handed over", lambda: offset_at(leader, "deleted") == 40)
        ask(
            leader,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            topic=TOPIC,
            group="reset",
            timestamp="0",
            isForce="true",
        )
        ask(leader, RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="deleted", cleanOffset="true")
    finally:
        third.server.resume()
    wait_all(cluster, "reset", 0)
    wait_all(cluster, "deleted", 0)
    cluster.wait_equal()
    transfer_leadership(cluster, follower)
    for member in cluster.members:
        assert offset_at(member, "reset") == 0
        assert offset_at(member, "deleted") == 0, "a new group of that name would skip 40"
