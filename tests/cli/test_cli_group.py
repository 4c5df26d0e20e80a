"""`tianzhou group`: lag, members, and groups that are moved."""

import asyncio

import pytest

from cli.conftest import Run
from tianzhou.broker.config import BrokerConfig
from tianzhou.client import PushConsumer
from tianzhou.client import sync as blocking
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.sync import Message, Producer
from tianzhou.testing import RunningBroker


@pytest.fixture
def billing(run: Run, mq: RunningBroker) -> None:
    """A group that has 8 messages of a topic with 2 queues to read."""
    run("topic", "create", "orders", "-q", "2")
    with Producer("shop", nameserver=mq.nameserver) as producer:
        for _ in range(8):
            producer.send(Message("orders", b"two apples", tags="a"))
    run("group", "create", "billing")
    run("group", "reset", "billing", "orders", "--to-earliest", "-y")


def test_group_create_of_an_existing_group_fails(run: Run, mq: RunningBroker) -> None:
    """Creating it again would discard its settings; only a broker that lacks the group creates
    it."""
    assert run("group", "create", "billing", "--retries", "3").code == 0
    assert run("group", "update", "billing", "--no-consume").code == 0
    said = run("group", "create", "billing")
    assert (said.code, "tianzhou group update billing" in said.err) == (1, True)
    with RunningBroker(config=BrokerConfig(name="broker-b"), nameserver=mq):
        assert run("group", "create", "billing").code == 0
        settings = run("group", "show", "billing", "--json").json["settings"]
    assert settings["broker-a"]["retry_max_times"] == 3
    assert settings["broker-a"]["consume_enabled"] is False
    assert settings["broker-b"]["retry_max_times"] == 16


@pytest.mark.usefixtures("billing")
def test_group_list_and_show_have_the_lag(run: Run) -> None:
    (row,) = run("group", "list", "--json").json
    assert (row["group"], row["members"], row["lag"]) == ("billing", 0, 8)
    assert len(run("group", "list", "--internal", "--json").json) > 1
    shown = run("group", "show", "billing", "--json").json
    assert sum(queue["lag"] for queue in shown["queues"]) == 8
    assert "no member is connected" in run("group", "show", "billing").out
    assert "billing" in run("group", "list").out


def read(_message: ReceivedMessage) -> None:
    """A listener that has nothing to do."""


@pytest.mark.usefixtures("billing")
def test_group_show_has_members_and_queue_owners(run: Run, mq: RunningBroker) -> None:
    async def play() -> None:
        consumer = PushConsumer(
            "billing",
            nameserver=mq.nameserver,
            subscribe={"orders": "a||b"},
            options=ConsumerOptions(commit_interval_s=0.1),
        )
        consumer.listen(read)
        async with consumer:
            await mq.until(lambda: mq.lag("billing", "orders") == 0, what="it is read", within_s=15)
            shown = await asyncio.to_thread(lambda: run("group", "show", "billing", "--json").json)
            text = await asyncio.to_thread(lambda: run("group", "show", "billing").out)
        assert shown["model"] == "CLUSTERING"
        assert len(shown["members"]) == 1
        told = {row["topic"]: row["expression"] for row in shown["subscriptions"]}
        assert told["orders"] == "a||b"
        owners = {row["owner"] for row in shown["queues"] if row["topic"] == "orders"}
        assert owners == {shown["members"][0]["client_id"]}
        assert shown["members"][0]["client_id"] in text

    asyncio.run(play())


@pytest.mark.usefixtures("billing")
def test_group_reset_plans_confirms_and_resets(run: Run, mq: RunningBroker) -> None:
    planned = run("group", "reset", "billing", "orders", "--to-latest", "--dry-run", "--json").json
    assert planned["dry_run"]
    assert sum(row["skipped"] for row in planned["queues"]) == 8
    assert mq.lag("billing", "orders") == 8
    refused = run("group", "reset", "billing", "orders", "--to-latest", stdin="n\n")
    assert refused.code == 1
    assert "8 messages will be skipped" in refused.err
    assert mq.lag("billing", "orders") == 8
    assert (
        "moved group billing" in run("group", "reset", "billing", "orders", "--to-latest", "-y").out
    )
    assert mq.lag("billing", "orders") == 0
    run("group", "reset", "billing", "orders", "--to-offset", "3", "--queue", "1", "-y")
    assert mq.committed("billing", "orders")[1] == 3
    run("group", "reset", "billing", "orders", "--to-time", "1h", "-y")
    assert mq.lag("billing", "orders") == 8


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], "pass exactly one of"),
        (["--to-earliest", "--to-latest"], "pass exactly one of --to-time"),
        (["--to-offset", "3"], "must be used together"),
        (["--to-earliest", "--queue", "1"], "must be used together"),
        (["--to-time", "yesterday"], "invalid time"),
        (["--to-offset", "99", "--queue", "0", "-y"], "which has 0 to 4"),
    ],
)
@pytest.mark.usefixtures("billing")
def test_group_reset_with_invalid_options_exits_with_code_2(
    run: Run, more: list[str], told: str
) -> None:
    said = run("group", "reset", "billing", "orders", *more)
    assert said.code == 2
    assert told in said.err


@pytest.mark.usefixtures("billing")
def test_group_clone_and_delete(run: Run, mq: RunningBroker) -> None:
    run("group", "reset", "billing", "orders", "--to-offset", "3", "--queue", "1", "-y")
    assert run("group", "clone", "billing", "audit", "--json").json["target"] == "audit"
    assert mq.committed("audit", "orders")[1] == 3
    itself = run("group", "clone", "billing", "billing")
    assert itself.code != 0
    assert "source and target are both group 'billing'" in itself.err
    assert run("group", "delete", "billing", stdin="n\n").code == 1
    assert run("group", "delete", "billing", "-y", "--json").json["group"] == "billing"
    gone = run("group", "show", "billing")
    assert gone.code == 4
    assert "tianzhou group list" in gone.err
    assert run("group", "clone", "billing", "audit").code == 4
    assert run("group", "delete", "billing", "-y").code == 4


def test_group_reset_of_an_unknown_group_exits_with_code_4(run: Run) -> None:
    run("topic", "create", "orders")
    run("group", "create", "billing")
    done = run("group", "reset", "biling", "orders", "--to-earliest", "--yes")
    assert done.code == 4
    assert "group biling does not exist on any broker" in done.err
    assert "did you mean billing?" in done.err
    assert [row["group"] for row in run("group", "list", "--json").json] == ["billing"]


def test_group_delete_with_members_needs_force(run: Run, mq: RunningBroker) -> None:
    run("topic", "create", "orders")
    with blocking.PushConsumer(
        "billing", nameserver=mq.nameserver, subscribe={"orders": "*"}
    ) as consumer:
        mq.wait_until(lambda: consumer.assignment, what="an assignment")
        refused = run("group", "delete", "billing", "--yes")
        assert refused.code == 1
        assert f"group billing has 1 connected members ({consumer.client_id})" in refused.err
        asked = run("group", "delete", "billing", stdin="n\n")
        assert "(1 members are connected)" in asked.err
        assert run("group", "show", "billing").code == 0
        assert run("group", "delete", "billing", "--force").code == 0
