"""`tianzhou doctor`: groups that do not get their messages."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from cli.conftest import Run
from cli.test_doctor_servers import problems
from tianzhou.broker.server import Broker
from tianzhou.client import PushConsumer
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.sync import Message, Producer
from tianzhou.testing import RunningBroker

pytestmark = pytest.mark.slow

QUICK = ConsumerOptions(rebalance_interval_s=0.2, commit_interval_s=0.1, stop_timeout_s=0.2)


@pytest.fixture(autouse=True)
def orders(run: Run) -> None:
    run("topic", "create", "orders", "-q", "2")


async def read(_message: ReceivedMessage) -> None:
    """A listener that has nothing to do."""


@asynccontextmanager
async def consumers(
    mq: RunningBroker, *wanted: Mapping[str, str], listener: Any = read
) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for subscribe in wanted:
            consumer = PushConsumer(
                "billing", nameserver=mq.nameserver, subscribe=dict(subscribe), options=QUICK
            )
            consumer.listen(listener)
            await stack.enter_async_context(consumer)
        yield


async def examined(run: Run, *more: str) -> Any:
    arguments = ("doctor", "-g", "billing", "--observe", "0.5", *more)
    return await asyncio.to_thread(run, *arguments)


async def found_in(run: Run, told: str, *more: str) -> dict[str, Any]:
    """Members need some time to discover each other."""
    for _ in range(10):
        for row in problems(await examined(run, "--json", *more)):
            if told in row["said"]:
                return row
    raise AssertionError((await examined(run)).out)


def test_doctor_of_a_healthy_group_finds_nothing(run: Run, mq: RunningBroker) -> None:
    async def play() -> None:
        async with consumers(mq, {"orders": "*"}):
            said = await examined(run, "--topic", "orders")
            for _ in range(10):
                if said.code == 0:
                    break
                said = await examined(run, "--topic", "orders")
            assert said.code == 0, said.out
            assert "1 members" in said.out

    asyncio.run(play())


def test_doctor_reports_a_missing_or_disconnected_group(run: Run) -> None:
    (found,) = problems(run("doctor", "-g", "billing", "--json"))
    assert found["fix"] == "tianzhou group create billing"
    assert run(*found["fix"].split()[1:]).code == 0
    (found,) = problems(run("doctor", "-g", "billing", "--json"))
    assert "none of its consumers is connected" in found["said"]
    run("group", "update", "billing", "--no-consume")
    (off,) = problems(run("doctor", "-g", "billing", "--json"))
    assert "it is disabled" in off["said"]
    assert "none of its consumers is connected" in off["said"]
    assert off["fix"] == "tianzhou group update billing --consume"
    assert run("group", "update", "billing", "--consume", "--json").json["group"] == "billing"
    assert run("group", "update", "billing").code == 2


def test_doctor_reports_different_subscriptions_and_unread_queues(
    run: Run, mq: RunningBroker
) -> None:
    async def play() -> None:
        await asyncio.to_thread(run, "topic", "create", "returns")
        async with consumers(mq, {"orders": "*"}, {"returns": "*"}):
            found = await found_in(run, "have different subscriptions")
            assert "orders (TAG *)" in found["said"]
            assert "returns (TAG *)" in found["said"]
            assert found["said"].count("have different subscriptions") == 1
            # One line for the group, whatever is wrong with it.
            found = await found_in(run, "of returns")
            assert "no member consumes queue" in found["said"]
            assert "of orders" in found["said"]

    asyncio.run(play())


def test_doctor_reports_different_tags(run: Run, mq: RunningBroker) -> None:
    async def play() -> None:
        async with consumers(mq, {"orders": "a"}, {"orders": "b"}):
            found = await found_in(run, "have different subscriptions")
            assert "orders (TAG a)" in found["said"]

    asyncio.run(play())


def test_doctor_reports_more_consumers_than_queues(run: Run, mq: RunningBroker) -> None:
    async def play() -> None:
        async with consumers(mq, *[{"orders": "*"}] * 3):
            told = "3 consumers share the 2 queues of orders"
            outs = [(await examined(run)).out]
            while told not in outs[-1] and len(outs) < 10:
                outs.append((await examined(run)).out)
            assert told in outs[-1]

    asyncio.run(play())


def test_doctor_reports_a_topic_without_subscription(run: Run, mq: RunningBroker) -> None:
    async def play() -> None:
        await asyncio.to_thread(run, "topic", "create", "returns")
        async with consumers(mq, {"orders": "*"}):
            assert await found_in(run, "do not subscribe to returns", "--topic", "returns")

    asyncio.run(play())


@asynccontextmanager
async def sending(mq: RunningBroker) -> AsyncGenerator[None]:
    """Messages keep coming while the block lasts."""
    over = threading.Event()

    def keep_sending() -> None:
        with Producer("shop", nameserver=mq.nameserver) as producer:
            while not over.wait(0.05):
                producer.send(Message("orders", b"two apples"))

    task = asyncio.create_task(asyncio.to_thread(keep_sending))
    try:
        yield
    finally:
        over.set()
        await task


def test_doctor_of_a_slow_consumer_warns_in_one_line_and_advises_no_skip(
    run: Run, mq: RunningBroker
) -> None:
    """An offset that moved a minute ago will move again; only the watchdog, or an offset that has
    not moved for long, shows that a message blocks its queue."""

    async def stick(_message: ReceivedMessage) -> None:
        await asyncio.Event().wait()

    async def lines() -> list[dict[str, Any]]:
        told = json.loads((await examined(run, "--json")).out)
        return [row for row in told["findings"] if row["about"] == "group billing"]

    async def play() -> None:
        await asyncio.to_thread(run, "group", "create", "billing")
        reset = ("group", "reset", "billing", "orders", "--to-earliest", "-y")
        assert (await asyncio.to_thread(run, *reset)).code == 0
        async with sending(mq), consumers(mq, {"orders": "*"}, listener=stick):
            (found,) = await lines()
            for _ in range(20):
                if "it is slow: in 0.5 s it committed nothing in 2 of its queues" in found["said"]:
                    break
                (found,) = await lines()
            else:
                raise AssertionError(found)
            assert found["level"] == "warning"
            assert "reset" not in found["fix"]

            mq.clock.advance(seconds=119)
            (found,) = await lines()
            assert found["level"] == "problem"
            assert "it has stayed at offset 0 in queue" in found["said"]
            assert found["said"].endswith("; and 1 more queues")
            fix = found["fix"].partition("tianzhou ")[2].split()
            assert (await asyncio.to_thread(run, *fix, "--dry-run")).code == 0

    asyncio.run(play())


def test_doctor_reports_findings_of_the_watchdog(run: Run, mq: RunningBroker) -> None:
    """The watchdog of the broker has watched for minutes, the doctor does not have to."""

    async def stick(_message: ReceivedMessage) -> None:
        await asyncio.Event().wait()  # never returns

    def fast(broker: Broker, _store: object) -> None:
        broker.slices.observe.watchdog.stuck_after_ms = 500

    async def play() -> None:
        mq._look(fast)
        async with consumers(mq, {"orders": "*"}, listener=stick):
            for _ in range(8):
                await asyncio.to_thread(run, "produce", "orders", stdin="x\n")
                await asyncio.sleep(0.1)
            found = await found_in(run, "has committed nothing beyond offset 0")
            assert "while its lag grew to" in found["said"]
            assert "tianzhou message show orders " in found["fix"]
            shown = await asyncio.to_thread(run, "group", "show", "billing", "--json")
            assert {one["kind"] for one in shown.json["stands_still"]} == {"frozen"}
            told = (await asyncio.to_thread(run, "group", "show", "billing")).out
            assert "has committed nothing beyond offset 0" in told
            (row,) = (await asyncio.to_thread(run, "group", "list", "--json")).json
            assert row["stuck"] == len(shown.json["stands_still"])
            quiet = problems(await examined(run, "--json", "--group", "other"))
            assert not [row for row in quiet if row["about"] == "group billing"]

    asyncio.run(play())
