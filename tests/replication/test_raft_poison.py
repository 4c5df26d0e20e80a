"""A Raft group whose members all have a poisoned record, as an earlier version replicated it."""

import shutil
from pathlib import Path

import pytest
from raft_cluster import QUEUES, TOPIC, Cluster, Member

from tianzhou.base.kinds import queue_key
from tianzhou.client import Message
from tianzhou.client.sync import Producer
from tianzhou.net.blocking import BlockingPeer
from tianzhou.record.message import MessageView, decode_all
from tianzhou.record.walk import walk
from tianzhou.testing.poisoned_record import poisoned_record
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest

VICTIM = b"replaced by poison" + 40 * b"."
FRAME_BYTES = 88 + 1 + len(TOPIC) + 2 + 20
"""A poisoned record without its body."""


def poison(member: Member) -> tuple[int, int]:
    """Replace the victim's record in the log of a stopped member; returns its start and end.

    The queues are deleted too: the earlier version never got past the poison.
    """
    (path,) = (member.data / "commitlog").iterdir()
    data = bytearray(path.read_bytes())
    for start in walk(data, 0, len(data)).starts:
        record = MessageView(data, start)
        if bytes(record.stored_body) == VICTIM:
            size = record.total_size
            data[start : start + size] = poisoned_record(
                queue_key(TOPIC, record.queue_id),
                b"x" * (size - FRAME_BYTES),
                sys_flag=0x10,
                queue_offset=record.queue_offset,
                physical_offset=start,
                store_ms=record.store_timestamp,
            )
            path.write_bytes(data)
            shutil.rmtree(member.data / "consumequeue")
            return start, start + size
    raise AssertionError(f"{member.name} does not hold the message")


def served(member: Member) -> list[str]:
    """The body of every message that a member serves; the poison leaves a gap in its queue."""
    found: list[str] = []
    with BlockingPeer(member.address) as peer:
        for queue_id in range(QUEUES):
            at = 0
            while True:
                answer, body = peer.call(RequestCode.PULL_MESSAGE, pull_of(queue_id, at))
                if answer.code == ResponseCode.PULL_NOT_FOUND:
                    break
                assert answer.code in (0, ResponseCode.PULL_RETRY_IMMEDIATELY), answer
                found += [view.body.decode() for view in decode_all(body)]
                at = int(answer.ext["nextBeginOffset"])
    return sorted(found)


def pull_of(queue_id: int, offset: int) -> dict[str, str]:
    return PullMessageRequest(
        consumer_group="readers",
        topic=TOPIC,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_ms=0,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
    ).to_ext()


def send(cluster: Cluster, bodies: list[bytes]) -> None:
    with Producer("p", nameserver=cluster.nameserver) as producer:
        for body in bodies:
            producer.send(Message(TOPIC, body))


@pytest.mark.slow
def test_raft_group_with_a_poisoned_record_elects_and_serves_the_rest(tmp_path: Path) -> None:
    before, after = [b"before %d" % n for n in range(20)], [b"after %d" % n for n in range(20)]
    with Cluster(tmp_path) as cluster:
        cluster.start()
        cluster.create_topic()
        send(cluster, [*before, VICTIM, *after])
        cluster.wait_equal()
        for member in cluster.members:
            member.server.stop()
        (place,) = {poison(member) for member in cluster.members}
        for member in cluster.members:
            member.start()
        for member in cluster.members:
            member.server.wait_ready()
        cluster.wait_leader()
        send(cluster, [b"new"])
        cluster.wait_equal()
        wanted = sorted(body.decode() for body in (*before, *after, b"new"))
        for member in cluster.members:
            assert served(member) == wanted
        for member in cluster.members:
            member.server.stop()
        for member in cluster.members:
            found = member.verified()
            assert [(one.start, one.end) for one in found.damage] == [place]
            assert "malformed" in found.damage[0].reason
