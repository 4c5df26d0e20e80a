"""Bursts of sends before the route and the connection exist: they share what they wait for."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from loops import Run

from tianzhou.broker.config import BrokerConfig
from tianzhou.client import Message, Producer, ProducerOptions, SendResult
from tianzhou.client.errors import SendTimeout, TopicNotFound
from tianzhou.testing import RunningBroker
from tianzhou.wire.queues import MessageQueue

SMALL, LARGE = 100, 2_000


class Counted:
    """Counts the tasks that the running event loop creates."""

    def __init__(self) -> None:
        self.tasks = 0
        asyncio.get_running_loop().set_task_factory(self._task)

    def _task(self, loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> "asyncio.Task[Any]":
        self.tasks += 1
        return asyncio.Task(work, loop=loop, **more)


async def burst(nameserver: str, count: int, *, send_timeout_s: float = 30.0) -> tuple[int, int]:
    """How many tasks a cold burst cost, and how many of its messages were stored."""
    counted = Counted()
    options = ProducerOptions(send_timeout_s=send_timeout_s)
    async with Producer("bursts", nameserver=nameserver, options=options) as producer:
        sent = [producer.send_async(Message("cold", b"%d" % n)) for n in range(count)]
        ended = await asyncio.gather(*sent, return_exceptions=True)
    for error in ended:
        assert isinstance(error, SendResult | SendTimeout), error
    return counted.tasks, sum(isinstance(result, SendResult) for result in ended)


def test_cold_burst_of_sends_costs_no_task_for_each_message(mq: RunningBroker, run: Run) -> None:
    mq.create_topic("cold")

    async def body() -> None:
        tasks_of_few, few = await burst(mq.nameserver, SMALL)
        tasks, many = await burst(mq.nameserver, LARGE)
        assert (few, many) == (SMALL, LARGE)
        assert tasks < tasks_of_few + SMALL

    run(body)
    assert len(mq.stored("cold")) == SMALL + LARGE


def test_cold_burst_that_times_out_costs_no_task_for_each_message(run: Run) -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            nameserver = "{}:{}".format(*silent.getsockname())
            tasks_of_few, few = await burst(nameserver, SMALL, send_timeout_s=0.1)
            tasks, many = await burst(nameserver, LARGE, send_timeout_s=0.1)
        assert (few, many) == (0, 0)
        assert tasks < tasks_of_few + SMALL

    run(body)


def test_burst_to_a_stopped_broker_costs_no_task_for_each_message(
    mq: RunningBroker, run: Run
) -> None:
    async def body() -> None:
        counted = Counted()
        options = ProducerOptions(send_timeout_s=1.0)
        async with Producer("bursts", nameserver=mq.nameserver, options=options) as producer:
            await producer.send(Message("cold", b"x"))
            await asyncio.to_thread(mq.stop)
            before = counted.tasks
            sent = [producer.send_async(Message("cold", b"x")) for _ in range(LARGE)]
            ended = await asyncio.gather(*sent, return_exceptions=True)
            assert not any(isinstance(result, SendResult) for result in ended)
            assert counted.tasks - before < SMALL

    run(body)


def test_sends_after_a_cold_burst_keep_their_order(mq: RunningBroker, run: Run) -> None:
    mq.create_topic("ordered", queues=1)

    async def body() -> None:
        async with Producer("bursts", nameserver=mq.nameserver) as producer:
            sent: list[asyncio.Future[SendResult]] = []
            while len(sent) < LARGE and not (sent and sent[0].done()):
                sent.append(producer.send_async(Message("ordered", b"%d" % len(sent))))
                await asyncio.sleep(0)  # the route and the connection come in between
            assert len(sent) > 1
            offsets = [result.queue_offset for result in await asyncio.gather(*sent)]
        assert offsets == sorted(offsets)

    run(body)


def test_cold_sends_time_out_at_their_own_deadlines(run: Run) -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            nameserver = "{}:{}".format(*silent.getsockname())
            async with Producer("bursts", nameserver=nameserver) as producer:
                ended: list[str] = []
                for timeout_s in (0.6, 0.1, 0.3):
                    sent = producer.send_async(Message("cold", b"x"), timeout_s=timeout_s)
                    sent.add_done_callback(
                        lambda done, told=f"{timeout_s}": ended.append(
                            told if isinstance(done.exception(), SendTimeout) else "?"
                        )
                    )
                await producer.flush()
                await asyncio.sleep(0)
        assert ended == ["0.1", "0.3", "0.6"]

    run(body)


def test_cold_burst_to_a_missing_topic_reports_the_topic_to_each_sender(
    mq_factory: Callable[..., RunningBroker], run: Run
) -> None:
    mq = mq_factory(config=BrokerConfig(auto_create_topics=False))

    async def body() -> None:
        async with Producer("bursts", nameserver=mq.nameserver) as producer:
            sent = [producer.send_async(Message("missing", b"x")) for _ in range(SMALL)]
            ended = await asyncio.gather(*sent, return_exceptions=True)
        assert all(isinstance(error, TopicNotFound) for error in ended)
        assert len(set(map(id, ended))) == SMALL

    run(body)


def test_cold_burst_with_a_selector_that_raises_fails_only_its_own_sends(
    mq: RunningBroker, run: Run
) -> None:
    def select(queues: object, message: Message) -> MessageQueue:
        raise ZeroDivisionError(message.body.decode())

    async def body() -> None:
        async with Producer("bursts", nameserver=mq.nameserver) as producer:
            bad = [producer.send_async(Message("cold", b"b"), select=select) for _ in range(3)]
            good = producer.send_async(Message("cold", b"g"))
            for sent in bad:
                with pytest.raises(ZeroDivisionError, match="b"):
                    await sent
            assert (await good).queue_offset >= 0

    run(body)
