"""Our clients and RocketMQ's Java client in one namespace, and with one broadcast offset file."""

from collections.abc import Iterator
from pathlib import Path

import client_probe
import client_servers
import pytest
from client_build import FIVE, FOUR, build
from client_probe import ClientProbe

from clients.server_process import ServerProcess
from clients.waiting import wait_until
from tianzhou.client.sync import (
    Admin,
    ClientOptions,
    ConsumerOptions,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartPosition,
)

TENANT = ClientOptions(namespace="shop1")
FIRST = ConsumerOptions(start_from=StartPosition.FIRST)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("namespace")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[ServerProcess]:
    with client_servers.up(home / "up") as running:
        yield running


@pytest.fixture(scope="module", params=[FIVE, FOUR])
def java(
    request: pytest.FixtureRequest, home: Path, server: ServerProcess
) -> Iterator[ClientProbe]:
    version = request.param
    with client_probe.running(build(version), server.nameserver, home / version) as probe:
        yield probe


def consumer_of(
    server: ServerProcess, group: str, topic: str, got: list[ReceivedMessage]
) -> PushConsumer:
    consumer = PushConsumer(
        group, nameserver=server.nameserver, subscribe={topic: "*"}, options=FIRST, client=TENANT
    )

    @consumer.listen
    def take(message: ReceivedMessage) -> None:  # pyright: ignore[reportUnusedFunction] # the consumer has it
        got.append(message)

    return consumer


def test_java_and_python_exchange_messages_in_one_namespace(
    server: ServerProcess, java: ClientProbe, request: pytest.FixtureRequest
) -> None:
    topic = f"orders-{request.node.callspec.params['java'].replace('.', '-')}"
    got: list[ReceivedMessage] = []
    java.ask("producer", "maker", namespace="shop1")
    java.send("maker", topic, "from Java")
    java.ask("consumer", "stock", group="java-stock", topic=topic, namespace="shop1")
    with (
        Producer("makers", nameserver=server.nameserver, client=TENANT) as producer,
        consumer_of(server, "stock", topic, got),
    ):
        producer.send(Message(topic, b"from Python"))
        expected = ["from Java", "from Python"]
        wait_until(lambda: len(got) == 2, within_s=40, what="both messages")
        assert sorted(message.body.decode() for message in got) == expected
        assert {message.topic for message in got} == {topic}
        java.wait_bodies(expected, "stock")
        assert {message["topic"] for message in java.events("stock")} == {topic}
    java.stop("maker", "stock")
    with Admin(nameserver=server.nameserver) as admin:
        assert f"shop1%{topic}" in admin.topics.all()
        assert topic not in admin.topics.all()
        groups = set(admin.groups.all())
    assert {"shop1%stock", "shop1%java-stock"} <= groups
    assert not {"stock", "java-stock"} & groups


def test_java_and_python_share_the_queues_of_a_group_in_a_namespace(
    server: ServerProcess, java: ClientProbe, request: pytest.FixtureRequest
) -> None:
    topic = f"shared-{request.node.callspec.params['java'].replace('.', '-')}"
    got: list[ReceivedMessage] = []
    with (
        Producer("makers", nameserver=server.nameserver, client=TENANT) as producer,
        consumer_of(server, f"g-{topic}", topic, got) as consumer,
    ):
        producer.send(Message(topic, b"0"))
        wait_until(lambda: len(got) == 1, within_s=40, what="the first message")
        java.ask("consumer", topic, group=f"g-{topic}", topic=topic, namespace="shop1")

        def share() -> bool:
            return sum(queue.topic == topic for queue in consumer.assignment) == 2

        wait_until(share, within_s=40, what="two queues each")
        for number in range(1, 21):
            producer.send(Message(topic, b"%d" % number))
        sent = {str(number) for number in range(21)}
        java.wait_for(
            lambda: {m.body.decode() for m in got} | set(java.bodies(topic)) == sent,
            what="together they have everything",
        )
    java.stop(topic)


def test_python_continues_at_the_broadcast_offsets_of_java(
    server: ServerProcess, java: ClientProbe, home: Path, request: pytest.FixtureRequest
) -> None:
    version = request.node.callspec.params["java"]
    topic, offsets = f"caches-{version.replace('.', '-')}", home / version / "offsets"
    with Producer("makers", nameserver=server.nameserver) as producer:
        for body in (b"0", b"1"):
            producer.send(Message(topic, body))
        java.ask(
            "consumer", "cache-1", group="caches", topic=topic, broadcasting=True, ip="10.0.0.9"
        )
        java.wait_bodies(["0", "1"], "cache-1")
        java.stop("cache-1")
        assert (offsets / "10.0.0.9@cache-1" / "caches" / "offsets.json").exists()
        producer.send(Message(topic, b"2"))
        options = ConsumerOptions(
            broadcasting=True, offsets_directory=offsets, start_from=StartPosition.FIRST
        )
        client = ClientOptions(client_ip="10.0.0.9", instance_name="cache-1")
        with PushConsumer(
            "caches",
            nameserver=server.nameserver,
            subscribe={topic: "*"},
            options=options,
            client=client,
        ) as consumer:
            assert next(iter(consumer)).body == b"2"
        producer.send(Message(topic, b"3"))
        java.ask(
            "consumer", "cache-1", group="caches", topic=topic, broadcasting=True, ip="10.0.0.9"
        )
        java.wait_for(lambda: "3" in java.bodies("cache-1"), what="Java continues")
        java.stop("cache-1")
        assert "2" not in java.bodies("cache-1")
