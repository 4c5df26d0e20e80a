"""Master and slaves as real processes, and how to look at what they hold."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tianzhou.admin.commands.replication import look_at
from tianzhou.client.sync import Admin, Producer, PullConsumer
from tianzhou.record.message import Message
from tianzhou.testing.chaos.processes import HOST, SMALL_FILES, TIANZHOU, Server, spare_ports
from tianzhou.testing.kit.patience import Patience

GROUP: Final = "broker-a"
TOPIC: Final = "orders"
WAIT_S: Final = 60.0
BATCH: Final = 20
"""Messages of one send, so that files fill quickly."""

SETTINGS: Final = {
    **SMALL_FILES,
    "registerNameServerPeriod": "1000",
    "metadata_ms": "300",
    "ha_retry_ms": "500",
    "haSendHeartbeatInterval": "500",
}
"""Short times."""


class Node:
    """One broker of the group."""

    def __init__(
        self,
        directory: Path,
        nameserver: str,
        broker_id: int,
        settings: Mapping[str, str],
        *,
        within: Sequence[str] = (),
    ) -> None:
        """`within` is a command that becomes the broker, as `env` does."""
        self.port = spare_ports(2)
        self.address = f"{HOST}:{self.port}"
        self.ha_address = f"{HOST}:{self.port + 1}"
        self.data = directory / "data"
        directory.mkdir(parents=True)
        conf = directory / "broker.conf"
        lines = {
            **SETTINGS,
            "brokerName": GROUP,
            "listenPort": str(self.port),
            "brokerId": str(broker_id),
            "brokerRole": "SLAVE" if broker_id else "ASYNC_MASTER",
            **settings,
        }
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
        self.server = Server(f"broker-{broker_id}", arguments, directory, within=within)

    def start(self) -> None:
        self.server.start()
        self.server.wait_ready()

    def log_bytes(self) -> dict[str, bytes]:
        """Every file of the log, by its name."""
        return {
            path.name: path.read_bytes() for path in sorted((self.data / "commitlog").iterdir())
        }


class Group:
    """A NameServer, a master and slaves. Ends all its processes, however a test went."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self._directory = directory
        self._settings = settings
        self.nodes: list[Node] = []
        self._count = 0
        port = spare_ports(1)
        self.nameserver = f"{HOST}:{port}"
        self.names = Server("nameserver", ["nameserver", "-p", str(port)], directory / "names")
        self.names.start()
        self.names.wait_ready()
        self.master = self.add(0)

    def add(self, broker_id: int, *, within: Sequence[str] = (), **settings: str) -> Node:
        """A node that is not started yet."""
        made = Node(
            self._directory / f"node-{self._count}",
            self.nameserver,
            broker_id,
            {**self._settings, **settings},
            within=within,
        )
        self._count += 1
        self.nodes.append(made)
        return made

    def create_topic(self, name: str = TOPIC, queues: int = 4) -> None:
        with Admin(nameserver=self.nameserver) as admin:
            admin.topics.create(name, queues=queues)

    def send(self, count: int, *, size: int = 200, first: int = 0) -> list[str]:
        """Messages whose answers came; their bodies."""
        bodies = [f"{number} ".ljust(size, "x") for number in range(first, first + count)]
        with Producer("producers", nameserver=self.nameserver) as producer:
            for first_of in range(0, count, BATCH):
                batch = bodies[first_of : first_of + BATCH]
                producer.send_batch([Message(TOPIC, body.encode()) for body in batch])
        return bodies

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for node in self.nodes:
            if kind is not None:
                said = f"--- {node.server.name} {node.address}\n{node.server.last_words()}\n"
                sys.stderr.write(said)
            node.server.end()
        self.names.end()


def promote(group: Group, *arguments: str, pair: str = "") -> dict[str, object]:
    """The command, as an operator says it."""
    done = subprocess.run(
        [
            TIANZHOU,
            "broker",
            "promote",
            GROUP,
            "-n",
            group.nameserver,
            "--yes",
            "--json",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"TIANZHOU_CREDENTIALS": pair},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def cluster_rows(group: Group) -> list[dict[str, Any]]:
    """What `tianzhou cluster` says of the brokers."""
    done = subprocess.run(
        [TIANZHOU, "cluster", "-n", group.nameserver, "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(done.stdout)


def read_all(group: Group) -> list[str]:
    """Bodies of every message that can be seen, wherever it is read from."""
    with PullConsumer("readers", nameserver=group.nameserver) as consumer:
        bodies: list[str] = []
        for queue in consumer.queues(TOPIC):
            start, end = consumer.first(queue), consumer.end(queue)
            while start < end:
                found = consumer.pull(queue, start)
                bodies += [message.body.decode() for message in found.messages]
                start = found.next_offset
        return bodies


def until(condition: Callable[[], bool], what: str, *, wait_s: float = WAIT_S) -> None:
    """Look until it is so."""
    patience = Patience(wait_s)
    while not condition():
        assert not patience.is_over(), f"not within {wait_s} s: {what}"
        time.sleep(0.02)


def until_equal(one: Node, other: Node) -> None:
    """Until both logs have the same bytes."""
    until(lambda: one.log_bytes() == other.log_bytes(), "the logs are equal")


def until_read_at_slave(group: Group) -> None:
    """Until readers of old messages are sent to the slave, and it serves the topic."""

    def is_at_slave() -> bool:
        with PullConsumer("probe", nameserver=group.nameserver) as consumer:
            (queue, *_) = consumer.queues(TOPIC)
            return [consumer.pull(queue, 0).broker_id for _ in range(2)] == [0, 1]

    until(is_at_slave, "the slave serves the topic")


def in_sync(address: str) -> int:
    """How many slaves the master at this address counts as copies."""
    look = look_at(address)
    return 0 if look is None else sum(slave.is_in_sync for slave in look.slaves)
