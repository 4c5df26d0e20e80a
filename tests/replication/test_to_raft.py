"""A lone broker, and a master with its slave, become a Raft group: real processes and kills."""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from raft_cluster import GROUP, QUEUES, TOPIC, Cluster, Load, Member, wait_for

from clients.cpp_client import Clients, installed
from tianzhou.client import Message
from tianzhou.client.sync import Producer
from tianzhou.net.blocking import BlockingPeer
from tianzhou.testing.chaos import looking
from tianzhou.testing.chaos.processes import FILE_BYTES, TIANZHOU, Server
from tianzhou.wire._generated_codes import RequestCode

READERS: Final = "readers"
BUYERS: Final = "buyers"
SENT: Final = 400
LATER: Final = "delivered later"
HALF: Final = "half, committed later"
COMMIT: Final = "8"


class Half(NamedTuple):
    """A message whose transaction is open, as its producer knows it."""

    queue_offset: int
    physical_offset: int


def tianzhou(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [TIANZHOU, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A NameServer, and one member that is not started yet."""
    with Cluster(tmp_path, size=1) as made:
        made.start_names()
        yield made


def run_plain(cluster: Cluster, member: Member, **settings: str) -> Server:
    """A broker without a group on the directory and the port of a member."""
    member.configure(settings)
    server = Server("plain", member.plain_arguments(), member.directory / "plain")
    server.start()
    server.wait_ready()
    return server


def send(cluster: Cluster, member: Member) -> list[str]:
    with Producer("p", nameserver=cluster.nameserver) as producer:
        values = [f"old-{number}" for number in range(SENT)]
        for value in values:
            producer.send(Message(TOPIC, value.encode().ljust(1000, b" ")))
        producer.send(Message(TOPIC, LATER.encode(), delay_level=4))
    return values


def send_half(member: Member) -> Half:
    properties = f"TRAN_MSG\x01true\x02PGROUP\x01{BUYERS}\x02UNIQ_KEY\x01U1\x02"
    ext = {
        "producerGroup": BUYERS,
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "1",
        "sysFlag": "4",
        "bornTimestamp": str(int(time.time() * 1000)),
        "flag": "0",
        "properties": properties,
        "reconsumeTimes": "0",
    }
    with BlockingPeer(member.address) as peer:
        answer, _ = peer.call(RequestCode.SEND_MESSAGE, ext, HALF.encode())
    assert answer.code == 0, answer.remark
    return Half(int(answer.ext["queueOffset"]), int(answer.ext["msgId"][-16:], 16))


def commit_half(member: Member, half: Half) -> None:
    ext = {
        "producerGroup": BUYERS,
        "tranStateTableOffset": str(half.queue_offset),
        "commitLogOffset": str(half.physical_offset),
        "commitOrRollback": COMMIT,
        "msgId": "U1",
    }
    with BlockingPeer(member.address) as peer:
        answer, _ = peer.call(RequestCode.END_TRANSACTION, ext)
    assert answer.code == 0, answer.remark


def commit_offsets(member: Member) -> dict[int, int]:
    """Let a group have consumed some messages of every queue."""
    offsets = {queue: 20 + queue for queue in range(QUEUES)}
    for queue, offset in offsets.items():
        ext = {
            "consumerGroup": READERS,
            "topic": TOPIC,
            "queueId": str(queue),
            "commitOffset": str(offset),
        }
        with BlockingPeer(member.address) as peer:
            answer, _ = peer.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        assert answer.code == 0, answer.remark
    return offsets


def committed(member: Member) -> dict[int, int | None]:
    found = (looking.committed(member.address, READERS, TOPIC, n) for n in range(QUEUES))
    return dict(enumerate(found))


def values(member: Member) -> Counter[str]:
    shown = looking.shown(member.address, TOPIC, QUEUES)
    return Counter(view.body.decode().strip() for view in shown)


def convert(member: Member, *more: str) -> dict[str, object]:
    peers = f"{member.name}={member.raft_address}"
    return json.loads(
        tianzhou(
            "store",
            "to-raft",
            str(member.data),
            "--raft-group",
            GROUP,
            "--raft-id",
            member.name,
            "--raft-peers",
            peers,
            "--yes",
            "--json",
            *more,
        )
    )


def add(cluster: Cluster, member: Member) -> None:
    member.start()
    member.server.wait_ready()
    address = f"{member.name}={member.raft_address}"
    tianzhou("raft", "add", GROUP, address, "-n", cluster.nameserver)


def offset_row(member: Member) -> dict[str, dict[str, int]]:
    path = member.data / "config/consumerOffset.json"
    return json.loads(path.read_text())["offsetTable"] if path.exists() else {}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_lone_broker_becomes_a_group_of_three(cluster: Cluster, tmp_path: Path) -> None:
    """Killed while it has delayed and half messages; afterwards the leader dies, and nothing is
    missing or there twice."""
    (first,) = cluster.members
    lone = run_plain(cluster, first)
    cluster.create_topic()
    old = send(cluster, first)
    half = send_half(first)
    offsets = commit_offsets(first)
    wait_for("offsets are saved", lambda: f"{TOPIC}@{READERS}" in offset_row(first))
    lone.kill()

    done = convert(first)
    assert not done["already"]
    assert int(str(done["entries"])) > 1
    assert convert(first)["already"], "running it again changes nothing"
    refused = Server("refused", first.plain_arguments(), first.directory / "refused")
    refused.start()
    wait_for("the plain broker is refused", lambda: not refused.is_alive)
    assert f"belongs to n0 of the Raft group {GROUP}" in refused.last_words()

    first.start()
    first.server.wait_ready()
    cluster.wait_leader()
    assert values(first) == Counter(old)
    assert committed(first) == offsets
    for name in ("n1", "n2"):
        add(cluster, cluster.add(name))
    cluster.wait_equal()
    with Load(cluster) as load:
        leader = cluster.wait_leader()
        leader.server.kill()
        load.wait_progress()
        heir = cluster.wait_leader()
        assert heir is not first
        assert committed(heir) == offsets
        commit_half(heir, half)
        leader.start()
        leader.server.wait_ready()
        load.wait_progress()
        wait_for("the delayed message", lambda: LATER in values(heir), timeout_s=90)
    cluster.wait_equal()
    wanted = Counter([*old, LATER, HALF])
    for member in cluster.members:
        found = values(member)
        assert {value: found[value] for value in wanted} == wanted
        assert not [value for value in load.acked if value not in found]
    consume_all(cluster, tmp_path, {*wanted, *load.acked})
    cluster.check_identical()


def consume_all(cluster: Cluster, place: Path, wanted: set[str]) -> None:
    """RocketMQ's C++ client reads everything, old and new."""
    clients = Clients(installed(), place / "cpp", cluster.nameserver)
    try:
        consumer = clients.push("cpp-readers", TOPIC)
        wait_for(
            "the C++ client has read all",
            lambda: {str(row["body"]).strip() for row in consumer.lines("got")} >= wanted,
        )
    finally:
        clients.end()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_master_and_slave_become_members_with_their_logs(cluster: Cluster) -> None:
    """The slave keeps its log, compared by digests; it receives only what it lacks."""
    (first,) = cluster.members
    master = run_plain(cluster, first, brokerRole="ASYNC_MASTER", brokerName="pair")
    second = cluster.add("n1")
    slave = run_plain(cluster, second, brokerRole="SLAVE", brokerName="pair", brokerId="1")
    cluster.create_topic()
    old = send(cluster, first)
    wait_for("the slave has all", lambda: _log_end(second) == _log_end(first))
    slave.stop()
    with Producer("p", nameserver=cluster.nameserver) as producer:
        producer.send(Message(TOPIC, b"only at the master"))
    master.stop()
    first.configure({"brokerRole": "ASYNC_MASTER", "brokerName": GROUP, "brokerId": "0"})
    second.configure({"brokerRole": "ASYNC_MASTER", "brokerName": GROUP, "brokerId": "0"})

    convert(first)
    before = second.log_bytes()
    both = f"{first.name}={first.raft_address};{second.name}={second.raft_address}"
    done = convert(second, "--raft-peers", both, "--like", str(first.data / "raft/plain"))
    kept = int(str(done["end"]))
    assert kept > FILE_BYTES - 5000, "whole files, and what is complete of the last one"
    assert second.log_bytes()[:kept] == before[:kept]
    first.start()
    first.server.wait_ready()
    cluster.wait_leader()
    add(cluster, second)
    cluster.wait_equal()
    for member in cluster.members:
        found = values(member)
        assert {value: found[value] for value in old} == Counter(old)
        assert found["only at the master"] == 1
    cluster.check_identical()


def _log_end(member: Member) -> int:
    return looking.log_end(member.address)
