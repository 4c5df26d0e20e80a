"""`tianzhou topic` on chosen brokers, and `topic spread`, against two real brokers."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Run, Said, run_command
from clients import server_process
from e2e.admin_world import commit
from tianzhou.broker.config import BrokerConfig
from tianzhou.net.blocking import BlockingPeer
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.names import ORDER_TOPIC_CONFIG
from tianzhou.wire.routes import decode_route

EIGHT = {"read_queues": 8, "write_queues": 8, "permission": "rw"}


@pytest.fixture
def other(mq: RunningBroker, mq_factory: Callable[..., RunningBroker]) -> RunningBroker:
    return mq_factory(nameserver=mq, config=BrokerConfig(name="broker-b"))


def settings(run: Run, topic: str = "orders") -> dict[str, tuple[int, int, str]]:
    """Read queues, write queues and permission by broker."""
    shown = run("topic", "show", topic, "--json").json
    return {
        row["broker"]: (row["read_queues"], row["write_queues"], row["permission"])
        for row in shown["brokers"]
    }


def test_topic_create_takes_a_permission_and_separate_numbers(run: Run) -> None:
    made = run(
        "topic",
        "create",
        "orders",
        "--read-queues",
        "6",
        "--write-queues",
        "4",
        "--permission",
        "w",
        "--json",
    ).json
    assert made == {
        "topic": "orders",
        "queues": 4,
        "brokers": ["broker-a"],
        "read_queues": 6,
        "write_queues": 4,
        "permission": "w",
    }
    assert settings(run) == {"broker-a": (6, 4, "w")}
    said = run("topic", "create", "refunds", "-q", "3", "--permission", "none").out
    assert said == "topic refunds has 3 queues, permission none on broker-a\n"


def test_topic_update_on_a_broker_changes_it_there_alone(run: Run, other: RunningBroker) -> None:
    run("topic", "create", "orders", "-q", "4")
    said = run("topic", "update", "orders", "-b", "broker-b", "--read-queues", "8")
    assert said.out == "topic orders updated on broker-b\n"
    run("topic", "update", "orders", "-b", "broker-b", "--permission", "r")
    assert settings(run) == {"broker-a": (4, 4, "rw"), "broker-b": (8, 4, "r")}


def test_topic_update_on_a_broker_without_the_topic_adds_it(run: Run, other: RunningBroker) -> None:
    run("topic", "create", "orders", "-q", "4", "-b", "broker-a", "--type", "delay")
    assert list(settings(run)) == ["broker-a"]
    run("topic", "update", "orders", "-b", "broker-b", "--write-queues", "2")
    assert settings(run) == {"broker-a": (4, 4, "rw"), "broker-b": (4, 2, "rw")}
    shown = run("topic", "show", "orders", "--json").json
    assert [row["attributes"] for row in shown["brokers"]] == [{"message.type": "DELAY"}] * 2
    wrong = run("topic", "update", "orders", "-b", "broker-z")
    assert wrong.code == 4
    assert "broker-z" in wrong.err


def test_topic_spread_shows_a_plan_and_asks(run: Run, other: RunningBroker) -> None:
    run("topic", "create", "orders", "-b", "broker-a", "--read-queues", "10", "--write-queues", "8")
    shown = run("topic", "spread", "orders", "--dry-run")
    assert shown.code == 0
    assert re.search(r"broker-a +10 queues to read, 8 to write +10 queues to read", shown.out)
    assert re.search(r"broker-b +no queue +10 queues to read, 8 to write", shown.out)
    refused = run("topic", "spread", "orders", stdin="n\n")
    assert refused.code == 1
    assert "broker-b" in refused.out
    assert "Spread orders?" in refused.err
    assert list(settings(run)) == ["broker-a"]
    assert run("topic", "spread", "orders", stdin="y\n").code == 0
    assert settings(run) == {"broker-a": (10, 8, "rw"), "broker-b": (10, 8, "rw")}


def test_topic_spread_prints_json_and_can_be_repeated(run: Run, other: RunningBroker) -> None:
    run("topic", "create", "orders", "-b", "broker-a")
    done = run("topic", "spread", "orders", "--yes", "--json").json
    (plan,) = done["topics"]
    assert plan == {
        "topic": "orders",
        "ordered": False,
        "added": ["broker-b"],
        "groups": [],
        "brokers": [
            {"broker": "broker-a", "now": EIGHT, "then": EIGHT},
            {"broker": "broker-b", "now": None, "then": EIGHT},
        ],
    }
    version = other._do(lambda: other._running().slices.topics.topics.version)
    again = run("topic", "spread", "orders", "--json").json  # nothing to confirm
    assert again["topics"][0]["added"] == []
    assert other._do(lambda: other._running().slices.topics.topics.version) == version
    assert "nothing to do" in run("topic", "spread", "orders").out


def test_topic_spread_keeps_different_numbers_and_uses_the_largest(
    run: Run, other: RunningBroker, mq: RunningBroker, mq_factory: Callable[..., RunningBroker]
) -> None:
    mq_factory(nameserver=mq, config=BrokerConfig(name="broker-c"))
    run("topic", "create", "orders", "-b", "broker-a", "-q", "2")
    run("topic", "update", "orders", "-b", "broker-b", "--read-queues", "6", "--write-queues", "6")
    run("topic", "spread", "orders", "--yes")
    assert settings(run) == {
        "broker-a": (2, 2, "rw"),
        "broker-b": (6, 6, "rw"),
        "broker-c": (6, 6, "rw"),
    }


def test_topic_spread_stays_in_the_cluster_of_the_topic(
    run: Run, mq: RunningBroker, mq_factory: Callable[..., RunningBroker]
) -> None:
    mq_factory(nameserver=mq, config=BrokerConfig(name="broker-b", cluster="Other"))
    run("topic", "create", "orders", "-b", "broker-a")
    assert run("topic", "spread", "orders", "--yes", "--json").json["topics"][0]["added"] == []
    assert list(settings(run)) == ["broker-a"]
    assert findings(run("doctor", "--observe", "0", "--json")) == []


def test_topic_spread_takes_the_groups_along(
    run: Run, other: RunningBroker, mq: RunningBroker
) -> None:
    run("topic", "create", "orders", "-b", "broker-a")
    run("group", "create", "billing", "--retries", "3")
    run("group", "create", "audit")
    with BlockingPeer(other.broker) as peer:
        fields = {"groupName": "billing", "cleanOffset": "true"}
        peer.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
    commit(mq, "billing", "orders", offset=0)
    done = run("topic", "spread", "orders", "--yes", "--json").json
    assert done["topics"][0]["groups"] == ["billing"]
    groups = other._do(other._running().slices.groups.tables.groups.all)
    assert groups["billing"].retry_max_times == 3


def test_topic_spread_of_all_topics_leaves_ordered_ones_out(run: Run, other: RunningBroker) -> None:
    run("topic", "create", "orders", "-b", "broker-a")
    run("topic", "create", "refunds", "-b", "broker-b", "-q", "2")
    run("topic", "create", "steps", "-b", "broker-a", "--order")
    said = run("topic", "spread", "--all", "--yes")
    assert said.code == 0, said.err
    assert "left out without --reorder: steps" in said.out
    assert settings(run).keys() == settings(run, "refunds").keys() == {"broker-a", "broker-b"}
    assert list(settings(run, "steps")) == ["broker-a"]


@pytest.mark.parametrize("mark", [("--order",), ("--type", "FIFO")])
def test_topic_spread_of_an_ordered_topic_needs_consent(
    run: Run, other: RunningBroker, mark: tuple[str, ...]
) -> None:
    run("topic", "create", "orders", "-b", "broker-a", *mark)
    said = run("topic", "spread", "orders", "--yes")
    assert said.code == 2
    assert "broker-b" in said.out  # the plan is shown
    assert "out of order" in said.err
    assert "--reorder" in said.err
    added = run("topic", "update", "orders", "-b", "broker-b")
    assert added.code == 2
    assert "--reorder" in added.err
    assert list(settings(run)) == ["broker-a"]
    assert run("topic", "spread", "orders", "--yes", "--reorder").code == 0
    assert settings(run).keys() == {"broker-a", "broker-b"}


@pytest.fixture
def ordering(tmp_path: Path) -> Iterator[str]:
    """The address of a NameServer that gives order configurations to clients."""
    options = ["--set", "orderMessageEnable=true"]
    server = server_process.run(["nameserver", "-p", "0", *options], tmp_path / "names")
    yield server.nameserver
    server.end()


def order_conf(nameserver: str, value: str | None = None) -> object:
    """The order configuration of the topic in its route, after it is set."""
    with BlockingPeer(nameserver) as peer:
        if value is not None:
            fields = {"namespace": ORDER_TOPIC_CONFIG, "key": "orders", "value": value}
            answer, _ = peer.call(RequestCode.PUT_KV_CONFIG, fields)
            assert answer.code == 0
        _, body = peer.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    return decode_route(bytes(body)).order_topic_conf


@pytest.mark.slow
def test_topic_spread_with_an_order_configuration_extends_it(
    ordering: str, mq_factory: Callable[..., RunningBroker]
) -> None:
    """Producers of such a topic write only to the queues that the NameServer lists."""
    for name in ("broker-a", "broker-b"):
        mq_factory(nameserver=ordering, config=BrokerConfig(name=name))

    def tell(*arguments: str) -> Said:
        return run_command("topic", *arguments, "-n", ordering)

    tell("create", "orders", "-b", "broker-a", "-q", "4")
    order_conf(ordering, "broker-a:4")
    assert tell("spread", "orders", "--yes").code == 2
    assert order_conf(ordering) == "broker-a:4"
    said = tell("spread", "orders", "--yes", "--reorder")
    assert said.code == 0, said.err
    assert "added to the order configuration: broker-b" in said.out
    assert order_conf(ordering) == "broker-a:4;broker-b:4"
    assert "nothing to do" in tell("spread", "orders").out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("spread",), "--all"),
        (("spread", "orders", "--all"), "--all"),
        (("create", "orders", "--read-queues", "0"), "--read-queues"),
        (("create", "orders", "--permission", "x"), "none"),
    ],
)
def test_topic_misuse_of_the_new_options_exits_with_code_2(
    run: Run, arguments: tuple[str, ...], told: str
) -> None:
    said = run("topic", *arguments)
    assert said.code == 2, said.out
    assert told in said.err


def test_topic_spread_of_an_unknown_topic_exits_with_code_4(run: Run) -> None:
    assert run("topic", "spread", "nope").code == 4


def findings(said: Said) -> list[dict[str, Any]]:
    return [row for row in json.loads(said.out)["findings"] if row["level"] != "fine"]


def test_doctor_names_brokers_that_have_no_queue_of_a_topic(run: Run, other: RunningBroker) -> None:
    run("topic", "create", "orders", "-b", "broker-a")
    (found,) = findings(run("doctor", "--observe", "0", "--json"))
    assert (found["level"], found["about"]) == ("warning", "broker broker-b")
    assert found["said"] == "it has no queue of topic orders, so it gets none of their messages"
    assert found["fix"] == "tianzhou topic spread orders"
    run("topic", "create", "refunds", "-b", "broker-a")
    (found,) = findings(run("doctor", "--observe", "0", "--json"))
    assert "2 topics: orders, refunds" in found["said"]
    assert found["fix"] == "tianzhou topic spread --all"
    (found,) = findings(run("doctor", "-t", "refunds", "--observe", "0", "--json"))
    assert "topic refunds," in found["said"]
    run("topic", "spread", "--all", "--yes")
    assert findings(run("doctor", "--observe", "0", "--json")) == []
