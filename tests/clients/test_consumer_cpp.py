"""Our consumers with RocketMQ's C++ client: in one group, and with messages of its producer."""

import hashlib
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from clients.cpp_client import Clients, Facts
from clients.server_process import ServerProcess
from clients.waiting import wait_until
from tianzhou.client import ConsumerOptions, Message, ReceivedMessage
from tianzhou.client.sync import Producer, PushConsumer

SHARE_S = 30.0


class Received:
    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)

    def bodies(self) -> list[str]:
        return sorted(message.body.decode() for message in list(self.messages))

    def queues(self) -> set[int]:
        return {message.queue_id for message in list(self.messages)}


@contextmanager
def consuming(
    server: ServerProcess, group: str, topic: str, notes: Received, **options: object
) -> Generator[PushConsumer]:
    made = ConsumerOptions(**options)  # pyright: ignore[reportArgumentType] # the class checks them
    consumer = PushConsumer(
        group, nameserver=server.nameserver, subscribe={topic: "*"}, options=made
    )
    consumer.listen(notes)
    with consumer:
        yield consumer


def send_all(server: ServerProcess, topic: str, bodies: list[str]) -> None:
    with Producer("our-producers", nameserver=server.nameserver) as producer:
        for body in bodies:
            producer.send(Message(topic, body.encode()))


def numbered(count: int, first: int = 0) -> list[str]:
    return [f"{n:04}" for n in range(first, first + count)]


def bodies_of(rows: list[Facts]) -> list[str]:
    return sorted(row["body"] for row in rows)


def assigned_count(consumer: PushConsumer, topic: str) -> int:
    return sum(queue.topic == topic for queue in consumer.assignment)


@pytest.mark.parametrize("model", ["concurrent", "orderly"])
def test_group_with_a_cpp_member_splits_the_queues(
    server: ServerProcess, clients: Clients, model: str
) -> None:
    topic, group = f"mixed-{model}", f"mixed-{model}-group"
    send_all(server, topic, ["first"])
    ours = Received()
    with consuming(server, group, topic, ours, orderly=model == "orderly") as consumer:
        wait_until(lambda: ours.bodies() == ["first"], within_s=10, what="the first message")
        theirs = clients.push(group, topic, model=model)
        wait_until(
            lambda: assigned_count(consumer, topic) == 2,
            within_s=SHARE_S,
            what="two queues for each member",
        )
        send_all(server, topic, numbered(200))
        wait_until(
            lambda: len(ours.messages) - 1 + len(theirs.lines("got")) >= 200,
            within_s=SHARE_S,
            what="200 messages for both",
        )
        both = set(ours.bodies()) | {row["body"] for row in theirs.lines("got")}
        assert both == {"first", *numbered(200)}
        # No queue is assigned to both: both sides use the same rule.
        mine, other = ours.queues(), {row["queue"] for row in theirs.lines("got")}
        assert len(other) == 2
        assert {m.queue_id for m in ours.messages if m.body != b"first"} == {0, 1, 2, 3} - other
        assert len(mine) <= 3
        # The C++ consumer leaves, ours takes over its queues, and nothing is lost.
        theirs.close()
        wait_until(
            lambda: assigned_count(consumer, topic) == 4, within_s=SHARE_S, what="all four again"
        )
        send_all(server, topic, numbered(40, first=1000))
        wait_until(
            lambda: set(numbered(40, first=1000)) <= set(ours.bodies()),
            within_s=SHARE_S,
            what="our consumer gets everything",
        )


def test_cpp_consumer_takes_over_from_our_consumer(server: ServerProcess, clients: Clients) -> None:
    topic, group = "mixed-leaving", "mixed-leaving-group"
    send_all(server, topic, numbered(40))
    ours = Received()
    theirs = clients.push(group, topic)
    with consuming(server, group, topic, ours) as consumer:
        wait_until(
            lambda: assigned_count(consumer, topic) == 2, within_s=SHARE_S, what="two queues each"
        )
        send_all(server, topic, numbered(40, first=100))
        wait_until(
            lambda: len(set(ours.bodies()) | {r["body"] for r in theirs.lines("got")}) == 80,
            within_s=SHARE_S,
            what="80 messages for both",
        )
        before = len(theirs.lines("got"))
    send_all(server, topic, numbered(40, first=200))
    rows = theirs.wait_lines("got", before + 40, within_s=SHARE_S)
    late = [row["body"] for row in rows[before:]]
    # Our consumer committed before it left: the C++ client gets only new messages.
    assert sorted(late) == numbered(40, first=200)


@pytest.mark.parametrize("how", ["sync", "async", "oneway", "orderly"])
def test_consumer_reads_messages_of_the_cpp_producer(
    server: ServerProcess, clients: Clients, how: str
) -> None:
    topic = f"from-cpp-{how}"
    producer = clients.producer()
    for rank, body in enumerate(numbered(20)):
        producer.send(
            how, topic, body, tags="a", keys=f"K{body}", properties={"colour": "red"}, shard=rank
        )
    notes = Received()
    with consuming(server, f"{topic}-group", topic, notes):
        wait_until(lambda: len(notes.messages) == 20, within_s=20, what="20 messages")
    assert notes.bodies() == numbered(20)
    for message in notes.messages:
        assert message.tags == "a"
        assert message.keys == (f"K{message.body.decode()}",)
        assert message.properties["colour"] == "red"
        assert message.unique_id is not None


def test_consumer_reads_bodies_compressed_by_the_cpp_producer(
    server: ServerProcess, clients: Clients
) -> None:
    topic, body = "from-cpp-large", "天舟" * 100_000
    clients.producer().send("sync", topic, body)
    notes = Received()
    with consuming(server, f"{topic}-group", topic, notes):
        wait_until(lambda: notes.messages, within_s=20, what="the message")
    (message,) = notes.messages
    assert hashlib.sha256(message.body).digest() == hashlib.sha256(body.encode()).digest()
    assert len(message.stored_body) < len(message.body) // 10


def test_message_that_our_consumer_fails_is_retried_at_the_cpp_consumer(
    server: ServerProcess, clients: Clients
) -> None:
    """A message that our consumer sends back is delivered to the current owner of its queue."""
    topic, group = "mixed-retry", "mixed-retry-group"
    send_all(server, topic, ["try me"])
    seen: list[ReceivedMessage] = []

    def fail(message: ReceivedMessage) -> None:
        seen.append(message)
        message.retry(1)  # in a second

    consumer = PushConsumer(group, nameserver=server.nameserver, subscribe={topic: "*"})
    consumer.listen(fail)
    with consumer:
        wait_until(lambda: seen, within_s=10, what="the first delivery")
    theirs = clients.push(group, topic)
    (row,) = theirs.wait_lines("got", 1, within_s=SHARE_S)
    assert (row["body"], row["topic"], row["reconsumed"]) == ("try me", topic, 1)
    assert row["id"] == seen[0].message_id
