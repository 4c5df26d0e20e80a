"""RocketMQ's C++ consumers, in every mode, receive what they subscribed to."""

import pytest

from clients.cpp_client import ClientProcess, Clients, Facts
from clients.waiting import wait_until

TAKE_OVER_S = 30.0
"""The other members are notified at once that a member left, and fetch the list of members."""


def bodies(rows: list[Facts]) -> list[str]:
    return sorted(row["body"] for row in rows)


def numbered(count: int, first: int = 0) -> list[str]:
    return [f"{n:04}" for n in range(first, first + count)]


def send_all(clients: Clients, topic: str, wanted: list[str]) -> None:
    """Send to all four queues in turn."""
    producer = clients.producer()
    for rank, body in enumerate(wanted):
        producer.send("orderly", topic, body, shard=rank)


def test_push_consumer_gets_waiting_and_new_messages(clients: Clients) -> None:
    send_all(clients, "cpp-push", numbered(20))
    consumer = clients.push("cpp-push-readers", "cpp-push")
    assert bodies(consumer.wait_lines("got", 20)) == numbered(20)
    send_all(clients, "cpp-push", numbered(20, first=20))
    rows = consumer.wait_lines("got", 40)
    assert bodies(rows) == numbered(40)
    # A waiting pull gets the message long before its timeout.
    assert max(row["got_ms"] - row["stored_ms"] for row in rows[20:]) < 3_000


def test_orderly_consumer_keeps_the_order_of_each_queue(clients: Clients) -> None:
    send_all(clients, "cpp-orderly", numbered(40))
    consumer = clients.push("cpp-orderly-readers", "cpp-orderly", model="orderly")
    consumer.wait_lines("got", 40)
    send_all(clients, "cpp-orderly", numbered(40, first=40))
    rows = consumer.wait_lines("got", 80)
    assert bodies(rows) == numbered(80)
    for queue in range(4):
        assert [row["offset"] for row in rows if row["queue"] == queue] == list(range(20))


def test_orderly_consumer_retries_a_failed_message_before_the_next(
    clients: Clients,
) -> None:
    producer = clients.producer()
    for body in numbered(3):
        producer.send("orderly", "cpp-stubborn", body, shard=0)
    consumer = clients.push("cpp-stubborn-readers", "cpp-stubborn", model="orderly", failures=1)
    rows = consumer.wait_lines("got", 6)
    assert [row["body"] for row in rows] == [body for body in numbered(3) for _ in range(2)]


def test_consumer_with_tags_gets_only_matching_messages(clients: Clients) -> None:
    producer = clients.producer()
    for n, body in enumerate(numbered(30)):
        producer.send("sync", "cpp-tags", body, tags="abc"[n % 3])
    consumer = clients.push("cpp-tags-readers", "cpp-tags", expression="a || c")
    wanted = [body for n, body in enumerate(numbered(30)) if n % 3 != 1]
    assert bodies(consumer.wait_lines("got", len(wanted))) == wanted
    for tag in "bca":
        producer.send("sync", "cpp-tags", f"last {tag}", tags=tag)
    rows = consumer.wait_lines("got", len(wanted) + 2)
    assert bodies(rows) == [*wanted, "last a", "last c"]


def test_broadcast_reaches_every_consumer(clients: Clients) -> None:
    send_all(clients, "cpp-broadcast", numbered(4))
    both = [clients.push("cpp-listeners", "cpp-broadcast", model="broadcast") for _ in range(2)]
    # A listener starts at the end; once it receives one of these, it receives all later ones.
    wanted = numbered(40, first=4)
    producer = clients.producer()
    wait_until_all_listen(clients, both)
    for rank, body in enumerate(wanted):
        producer.send("orderly", "cpp-broadcast", body, shard=rank)
    for listener in both:
        rows = listener.wait_lines("got", 1)
        wait_until(
            lambda heard=listener: set(wanted) <= set(bodies(heard.lines("got"))),
            within_s=20,
            what="every consumer has the whole broadcast",
        )
        rows = [row["body"] for row in listener.lines("got") if row["body"] in wanted]
        assert sorted(rows) == wanted


def wait_until_all_listen(clients: Clients, listeners: list[ClientProcess]) -> None:
    """Send to every queue until each listener has received a message from each queue."""
    producer = clients.producer()

    def all_heard() -> bool:
        for queue in range(4):
            producer.send("orderly", "cpp-broadcast", "are you there?", shard=queue)
        return all(
            {row["queue"] for row in listener.lines("got")} == {0, 1, 2, 3}
            for listener in listeners
        )

    wait_until(all_heard, within_s=30, what="every consumer listens to every queue")


def test_pull_consumer_reads_a_topic_to_its_end(clients: Clients) -> None:
    producer = clients.producer()
    for n, body in enumerate(numbered(100)):
        producer.send("orderly", "cpp-pull", body, shard=n, tags="ab"[n // 50])
    rows = clients.pull("cpp-pullers", "cpp-pull")
    assert bodies(rows) == numbered(100)
    for queue in range(4):
        assert [row["offset"] for row in rows if row["queue"] == queue] == list(range(25))
    assert bodies(clients.pull("cpp-pullers-b", "cpp-pull", "b")) == numbered(50, first=50)


@pytest.mark.parametrize("model", ["concurrent", "orderly"])
def test_two_members_share_the_queues_and_one_takes_over(clients: Clients, model: str) -> None:
    """The queues of a group are divided, and the last member gets all of them."""
    topic = f"cpp-shared-{model}"
    send_all(clients, topic, numbered(4))
    members = [clients.push(f"cpp-members-{model}", topic, model=model) for _ in range(2)]
    producer = clients.producer()
    sent = 4

    def send_round() -> int:
        nonlocal sent
        for queue in range(4):
            producer.send("orderly", topic, f"{sent:04}", shard=queue)
            sent += 1
        return sent

    def heard(*asked: ClientProcess) -> set[str]:
        return {row["body"] for member in asked for row in member.lines("got")}

    def queues_of_last_round(member: ClientProcess) -> set[int]:
        last = numbered(4, first=sent - 4)
        return {row["queue"] for row in member.lines("got") if row["body"] in last}

    def is_divided() -> bool:
        send_round()
        wait_until(
            lambda: heard(*members) == set(numbered(sent)),
            within_s=20,
            what="no message is missing",
        )
        first, second = map(queues_of_last_round, members)
        return len(first) == len(second) == 2 and not first & second

    wait_until(is_divided, within_s=TAKE_OVER_S, what="two queues for each member")
    members[0].kill()

    def has_all() -> bool:
        send_round()
        return queues_of_last_round(members[1]) == {0, 1, 2, 3}

    wait_until(has_all, within_s=TAKE_OVER_S, what="the last member has all queues")
    wait_until(
        lambda: heard(*members) == set(numbered(sent)), within_s=20, what="no message is missing"
    )
