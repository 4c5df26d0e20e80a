"""Our consumers beside RocketMQ's C++ client: in one group, and behind its producer."""

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


class Notes:
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
    server: ServerProcess, group: str, topic: str, notes: Notes, **options: object
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


def held(consumer: PushConsumer, topic: str) -> int:
    return sum(queue.topic == topic for queue in consumer.assignment)


@pytest.mark.parametrize("model", ["concurrent", "orderly"])
def test_a_mixed_group_splits_the_queues(
    server: ServerProcess, clients: Clients, model: str
) -> None:
    topic, group = f"mixed-{model}", f"mixed-{model}-group"
    send_all(server, topic, ["first"])
    ours = Notes()
    with consuming(server, group, topic, ours, orderly=model == "orderly") as consumer:
        wait_until(lambda: ours.bodies() == ["first"], within_s=10, what="the first message")
        theirs = clients.push(group, topic, model=model)
        wait_until(lambda: held(consumer, topic) == 2, within_s=SHARE_S, what="two queues each")
        send_all(server, topic, numbered(200))
        wait_until(
            lambda: len(ours.messages) - 1 + len(theirs.lines("got")) >= 200,
            within_s=SHARE_S, what="200 messages for both",
        )  # fmt: skip
        both = set(ours.bodies()) | {row["body"] for row in theirs.lines("got")}
        assert both == {"first", *numbered(200)}
        # Neither has what the other has: the same rule on both sides.
        mine, other = ours.queues(), {row["queue"] for row in theirs.lines("got")}
        assert len(other) == 2
        assert {m.queue_id for m in ours.messages if m.body != b"first"} == {0, 1, 2, 3} - other
        assert len(mine) <= 3
        # They go, we take over; and what they had is not lost.
        theirs.close()
        wait_until(lambda: held(consumer, topic) == 4, within_s=SHARE_S, what="all four again")
        send_all(server, topic, numbered(40, first=1000))
        wait_until(
            lambda: set(numbered(40, first=1000)) <= set(ours.bodies()),
            within_s=SHARE_S, what="everything for us",
        )  # fmt: skip


def test_they_take_over_what_we_had(server: ServerProcess, clients: Clients) -> None:
    topic, group = "mixed-leaving", "mixed-leaving-group"
    send_all(server, topic, numbered(40))
    ours = Notes()
    theirs = clients.push(group, topic)
    with consuming(server, group, topic, ours) as consumer:
        wait_until(lambda: held(consumer, topic) == 2, within_s=SHARE_S, what="two queues each")
        send_all(server, topic, numbered(40, first=100))
        wait_until(
            lambda: len(set(ours.bodies()) | {r["body"] for r in theirs.lines("got")}) == 80,
            within_s=SHARE_S, what="80 messages for both",
        )  # fmt: skip
        before = len(theirs.lines("got"))
    send_all(server, topic, numbered(40, first=200))
    rows = theirs.wait_lines("got", before + 40, within_s=SHARE_S)
    late = [row["body"] for row in rows[before:]]
    # We committed before we left: they get what is new, and nothing of ours again.
    assert sorted(late) == numbered(40, first=200)


@pytest.mark.parametrize("how", ["sync", "async", "oneway", "orderly"])
def test_what_their_producer_sends(server: ServerProcess, clients: Clients, how: str) -> None:
    topic = f"from-cpp-{how}"
    producer = clients.producer()
    for rank, body in enumerate(numbered(20)):
        producer.send(
            how, topic, body, tags="a", keys=f"K{body}", properties={"colour": "red"}, shard=rank
        )
    notes = Notes()
    with consuming(server, f"{topic}-group", topic, notes):
        wait_until(lambda: len(notes.messages) == 20, within_s=20, what="20 messages")
    assert notes.bodies() == numbered(20)
    for message in notes.messages:
        assert message.tags == "a"
        assert message.keys == (f"K{message.body.decode()}",)
        assert message.properties["colour"] == "red"
        assert message.unique_id is not None


def test_what_they_compress(server: ServerProcess, clients: Clients) -> None:
    topic, body = "from-cpp-large", "天舟" * 100_000
    clients.producer().send("sync", topic, body)
    notes = Notes()
    with consuming(server, f"{topic}-group", topic, notes):
        wait_until(lambda: notes.messages, within_s=20, what="the message")
    (message,) = notes.messages
    assert hashlib.sha256(message.body).digest() == hashlib.sha256(body.encode()).digest()
    assert len(message.stored_body) < len(message.body) // 10


def test_what_fails_with_us_comes_to_them(server: ServerProcess, clients: Clients) -> None:
    """A message that we send back is delivered by the retry topic to whoever has it then."""
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
