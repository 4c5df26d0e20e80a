"""`tianzhou topic` against a real broker."""

import pytest

from cli.conftest import Run, run_command
from tianzhou.client.sync import Message, Producer
from tianzhou.testing import RunningBroker


def test_topic_create_list_and_show(run: Run, mq: RunningBroker) -> None:
    made = run("topic", "create", "orders", "-q", "3", "--json").json
    assert made == {"topic": "orders", "queues": 3, "brokers": ["broker-a"]}
    run("produce", "orders", stdin="two apples\n")
    (row,) = run("topic", "list", "--json").json
    assert (row["topic"], row["queues"], row["messages"]) == ("orders", 3, 1)
    shown = run("topic", "show", "orders", "--json").json
    assert [queue["messages"] for queue in shown["queues"]].count(1) == 1
    assert shown["brokers"][0]["permission"] == "rw"
    for said in (run("topic", "list"), run("topic", "show", "orders")):
        assert said.code == 0
        assert "orders" in said.out
    assert len(run("topic", "list", "--internal", "--json").json) > 1


def test_topic_list_without_topics_suggests_topic_create(run: Run) -> None:
    assert "topic create" in run("topic", "list").out
    assert run("topic", "list", "--json").json == []


def test_topic_create_of_an_existing_topic_fails(run: Run) -> None:
    assert run("topic", "create", "orders").code == 0
    again = run("topic", "create", "orders", "-q", "2")
    assert again.code == 1
    assert "topic update orders" in again.err
    assert len(run("topic", "show", "orders", "--json").json["queues"]) == 8


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("create", "no spaces"), "letters, digits"),
        (("create", "orders", "-q", "0"), "at least 1"),
        (("create", "orders", "--type", "LOUD"), "LOUD"),
        (("update", "orders"), "nothing to change"),
        (("update", "orders", "--permission", "x"), "rw"),
        (("shrink", "orders", "-q", "0"), "delete it instead"),
        (("list", "--every", "0"), "0.1"),
    ],
)
def test_topic_misuse_exits_with_code_2(run: Run, arguments: tuple[str, ...], told: str) -> None:
    said = run("topic", *arguments)
    assert said.code == 2, said.out
    assert told in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("verb", ["show", "delete", "update", "shrink"])
def test_topic_commands_on_an_unknown_topic_exit_with_code_4(run: Run, verb: str) -> None:
    more = {"delete": ["-y"], "update": ["--read-queues", "2"], "shrink": ["-q", "1"]}
    said = run("topic", verb, "nope", *more.get(verb, []))
    assert said.code == 4
    assert said.err.startswith("tianzhou: topic 'nope' is not known")
    assert "tianzhou topic list" in said.err


def test_topic_update_and_shrink_change_the_topic(run: Run, mq: RunningBroker) -> None:
    run("topic", "create", "orders", "-q", "4")
    found = run("topic", "update", "orders", "--permission", "r", "--json").json
    assert found["brokers"][0]["permission"] == "r"
    run("topic", "update", "orders", "--permission", "rw")
    with Producer("shop", nameserver=mq.nameserver) as producer:
        for _ in range(8):
            producer.send(Message("orders", b"two apples"))
    run("group", "create", "billing")
    run("group", "reset", "billing", "orders", "--to-earliest", "-y")
    late = run("topic", "shrink", "orders", "-q", "2", "--json")
    assert late.code == 1
    assert '"done": false' in late.out
    assert "billing" in run("topic", "shrink", "orders", "-q", "2").out
    run("group", "reset", "billing", "orders", "--to-latest", "-y")
    assert run("topic", "shrink", "orders", "-q", "2", "--wait", "5", "--json").json["done"]
    assert len(run("topic", "show", "orders", "--json").json["queues"]) == 2
    more = run("topic", "shrink", "orders", "-q", "9")
    assert more.code == 2
    assert "tianzhou topic update orders --write-queues 9 --read-queues 9" in more.err


def test_topic_delete_asks_for_confirmation(run: Run) -> None:
    run("topic", "create", "orders")
    refused = run("topic", "delete", "orders", stdin="n\n")
    assert refused.code == 1
    assert "Delete topic orders with 0 messages?" in refused.err
    assert run("topic", "show", "orders").code == 0
    assert run("topic", "delete", "orders", stdin="y\n").code == 0
    assert run("topic", "show", "orders").code == 4


def test_topic_list_without_a_nameserver_exits_with_code_3() -> None:
    said = run_command("topic", "list", "-n", "127.0.0.1:1")
    assert said.code == 3
    assert said.err.startswith(
        "tianzhou: no NameServer answers: 127.0.0.1:1 can't be reached: Connection refused; "
    )
    assert "tianzhou up" in said.err
    assert run_command("topic", "list", "-n", "nonsense:").code == 2
    copied = run_command("topic", "list", "-n", "http://127.0.0.1:9876")
    assert copied.code == 2
    assert "omit http://" in copied.err


def test_topic_list_at_the_port_of_a_broker_exits_with_code_5(mq: RunningBroker) -> None:
    said = run_command("topic", "list", "-n", mq.broker)
    assert said.code == 5
    assert "check that the address is that of a NameServer" in said.err


def test_misspelled_command_gets_a_suggestion() -> None:
    said = run_command("tpoic", "list")
    assert said.code == 2
    assert "did you mean 'topic'?" in said.err
    assert run_command("xyzzy").code == 2
