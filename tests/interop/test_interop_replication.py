"""A RocketMQ slave follows our master, and our slave follows a RocketMQ master."""

from collections.abc import Iterator
from pathlib import Path

import java_servers
import pytest

from clients.waiting import wait_until
from tianzhou.client.sync import Admin, Producer
from tianzhou.net.blocking import BlockingPeer
from tianzhou.record.message import Message
from tianzhou.testing.chaos.processes import HOST, Server, spare_ports
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.replication_bodies import decode_replication_view
from tianzhou.wire.tables import decode_topic_table

TOPIC = "replicated"
FILE_BYTES = 16 * 1024 * 1024
"""The same as in the settings of the RocketMQ broker."""
WAIT_S = 60
SENT = 3_000


@pytest.fixture(params=[java_servers.FIVE, java_servers.FOUR])
def version(request: pytest.FixtureRequest) -> str:
    return request.param


class Ours:
    """One of our brokers as a process."""

    def __init__(self, directory: Path, nameserver: str, **settings: str) -> None:
        port = spare_ports(2)
        self.address, self.data = f"{HOST}:{port}", directory / "data"
        lines = {
            "listenPort": str(port),
            "mappedFileSizeCommitLog": str(FILE_BYTES),
            "vip_port": "false",
            "registerNameServerPeriod": "1000",
            "metadata_ms": "500",
            "brokerName": "broker-java",
            **settings,
        }
        directory.mkdir(parents=True)
        conf = directory / "broker.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        arguments = [
            "broker",
            "-n",
            nameserver,
            "-c",
            str(conf),
            "--data",
            str(self.data),
            "--no-http",
        ]
        self.server = Server("broker", arguments, directory)
        self.server.start()
        self.server.wait_ready()

    def slaves(self) -> list[int]:
        """The offsets that the slaves have confirmed."""
        with BlockingPeer(self.address) as peer:
            _, body = peer.call(RequestCode.VIEW_REPLICATION)
        return [slave.acked for slave in decode_replication_view(body).slaves]

    def replica_count(self) -> int:
        """How many slaves count as replicas."""
        with BlockingPeer(self.address) as peer:
            _, body = peer.call(RequestCode.VIEW_REPLICATION)
        return sum(slave.is_in_sync for slave in decode_replication_view(body).slaves)

    def log_end(self) -> int:
        with BlockingPeer(self.address) as peer:
            _, body = peer.call(RequestCode.VIEW_REPLICATION)
        return decode_replication_view(body).end


@pytest.fixture
def nameserver(tmp_path: Path) -> Iterator[str]:
    """Our NameServer."""
    port = spare_ports(1)
    server = Server("nameserver", ["nameserver", "-p", str(port)], tmp_path / "names")
    server.start()
    server.wait_ready()
    yield f"{HOST}:{port}"
    server.end()


def files(directory: Path) -> dict[str, bytes]:
    """Log files with content: RocketMQ creates the next one in advance."""
    found = {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
    return {name: data for name, data in found.items() if any(data[:4096])}


def send(nameserver: str, count: int) -> None:
    with Producer("producers", nameserver=nameserver) as producer:
        for number in range(count):
            producer.send(Message(TOPIC, b"%d " % number + b"x" * 400, keys=f"k{number}"))


def test_rocketmq_slave_follows_our_master(version: str, nameserver: str, tmp_path: Path) -> None:
    master = Ours(tmp_path / "master", nameserver, ha_plain_peers=HOST)
    try:
        with java_servers.broker(
            version, tmp_path / "slave", namesrvAddr=nameserver, brokerId="1", brokerRole="SLAVE"
        ):
            with Admin(nameserver=nameserver) as admin:
                admin.topics.create(TOPIC, queues=4)
            send(nameserver, SENT)
            wait_until(
                lambda: master.slaves() == [master.log_end()],
                within_s=WAIT_S,
                what="the slave confirms everything",
            )
            assert files(tmp_path / "slave/store/commitlog") == files(master.data / "commitlog")
            assert master.replica_count() == 0, (
                "a slave that cannot prove its log does not count as a replica"
            )
            # Not only the bytes agree: the slave dispatches the messages and knows the topic.
            queues = tmp_path / "slave/store/consumequeue" / TOPIC
            wait_until(queues.exists, within_s=WAIT_S, what="the slave dispatches")
            send(nameserver, 100)
            wait_until(
                lambda: master.slaves() == [master.log_end()],
                within_s=WAIT_S,
                what="the slave confirms the rest",
            )
    finally:
        master.server.end()


def test_our_slave_follows_rocketmq_master(version: str, tmp_path: Path) -> None:
    with java_servers.rocketmq(version, tmp_path / "java") as nameserver:
        slave = Ours(
            tmp_path / "slave", nameserver, brokerId="1", brokerRole="SLAVE", ha_plain_peers=HOST
        )
        try:
            send(nameserver, SENT)
            java_log = tmp_path / "java/store/commitlog"
            wait_until(
                lambda: files(slave.data / "commitlog") == files(java_log),
                within_s=WAIT_S,
                what="the logs are equal",
            )
            wait_until(
                lambda: TOPIC in topics_at(slave.address),
                within_s=WAIT_S,
                what="the slave knows the topic",
            )
            slave.server.kill()
            send(nameserver, 500)
            slave.server.start()
            slave.server.wait_ready()
            wait_until(
                lambda: files(slave.data / "commitlog") == files(java_log),
                within_s=WAIT_S,
                what="the logs are equal again",
            )
        finally:
            slave.server.end()


def topics_at(address: str) -> set[str]:
    with BlockingPeer(address) as peer:
        _, body = peer.call(RequestCode.GET_ALL_TOPIC_CONFIG)
    return set(decode_topic_table(body).topic_config_table)
