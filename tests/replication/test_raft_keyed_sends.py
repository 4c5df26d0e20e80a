"""Real processes: keyed sends while the leadership of a Raft group is handed over."""

import asyncio

import pytest
from raft_cluster import QUEUES, TOPIC, Cluster, Member, wait_for

from tianzhou.client import Message, Producer, ProducerOptions
from tianzhou.net.blocking import BlockingPeer
from tianzhou.testing.chaos import looking
from tianzhou.wire._generated_codes import RequestCode, ResponseCode

KEYS = 8
TRANSFERS = 4


@pytest.mark.slow
def test_keyed_sends_during_leader_transfers_succeed_in_order(cluster: Cluster) -> None:
    """A member that does not lead rejects with SERVICE_NOT_AVAILABLE: the message is not stored, so
    the producer may send it again. Each key has one message in flight."""
    sent = asyncio.run(send_while_leaders_change(cluster))
    assert all(sent), "a key without messages proves nothing"
    cluster.wait_equal()
    for member in cluster.members:
        bodies = [view.body.decode() for view in looking.shown(member.address, TOPIC, QUEUES)]
        for key, count in enumerate(sent):
            stored = [body for body in bodies if body.startswith(f"{key}-")]
            assert stored == [f"{key}-{number}" for number in range(count)], member.name


async def send_while_leaders_change(cluster: Cluster) -> list[int]:
    """Send during transfers; returns how many messages of each key were acknowledged."""
    sent = [0] * KEYS
    is_over = asyncio.Event()
    options = ProducerOptions(send_timeout_s=30.0)

    async def send(producer: Producer, key: int) -> None:
        while not is_over.is_set():
            body = f"{key}-{sent[key]}".encode()
            await producer.send(Message(TOPIC, body, sharding_key=str(key)))
            sent[key] += 1

    async with (
        Producer("makers", nameserver=cluster.nameserver, options=options) as producer,
        asyncio.TaskGroup() as senders,
    ):
        for key in range(KEYS):
            senders.create_task(send(producer, key))
        for _ in range(TRANSFERS):
            goals = [count + 5 for count in sent]
            follower = (await asyncio.to_thread(cluster.followers))[0]
            await asyncio.to_thread(transfer, cluster, follower)
            await asyncio.to_thread(
                wait_for,
                "progress of every key",
                lambda goals=goals: all(now > goal for now, goal in zip(sent, goals, strict=True)),
            )
        is_over.set()
    return sent


def transfer(cluster: Cluster, to: Member) -> None:
    with BlockingPeer(cluster.wait_leader().address) as peer:
        ext = {"action": "transfer", "member": to.name}
        answer, _ = peer.call(RequestCode.CHANGE_RAFT, ext)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    wait_for("the new leader", lambda: cluster.leader() is to)
