"""SIGTERM ends `run`: in-flight messages are finished and committed, and the group is left."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator

import pytest
from consuming import Notes, asynchronous, numbers, send, until

from tianzhou.client import Message, PushConsumer, ReceivedMessage
from tianzhou.client import sync as blocking
from tianzhou.client.termination import on_terminate
from tianzhou.testing import RunningBroker

ASYNC = """
import asyncio, sys
from tianzhou.client import PushConsumer
{loop}
async def main():
    consumer = PushConsumer("billing", nameserver=sys.argv[1], subscribe={{"orders": "*"}})
    @consumer.listen
    async def bill(message):
        print("begun", flush=True)
        await asyncio.sleep(0.5)
        print("finished", flush=True)
    await consumer.run()
    print("returned", flush=True)
asyncio.run(main())
"""
BLOCKING = """
import sys, time
from tianzhou.client.sync import PushConsumer
consumer = PushConsumer("billing", nameserver=sys.argv[1], subscribe={"orders": "*"})
@consumer.listen
def bill(message):
    print("begun", flush=True)
    time.sleep(0.5)
    print("finished", flush=True)
consumer.run()
print("returned", flush=True)
"""
PROGRAMS = {
    "asyncio": ASYNC.format(loop=""),
    "uvloop": ASYNC.format(loop="import uvloop; asyncio.run = uvloop.run"),
    "blocking": BLOCKING,
}


@pytest.fixture(autouse=True)
def default_handler() -> Generator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROGRAMS)
def test_terminated_consumer_finishes_commits_and_leaves(kind: str, mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    with blocking.Producer("shop", nameserver=mq.nameserver) as producer:
        producer.send(Message("orders", b"two apples"))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAMS[kind], mq.nameserver],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    said, errors = process.communicate(timeout=300)
    assert (said, process.returncode) == ("finished\nreturned\n", 0), errors
    assert errors == ""
    assert mq.lag("billing", "orders") == 0
    with blocking.Admin(nameserver=mq.nameserver) as admin:
        assert not admin.groups.show("billing").client_ids


@asynchronous
async def test_termination_signal_stops_every_consumer_of_the_process(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    consumers = [
        PushConsumer(group, nameserver=mq.nameserver, subscribe={"orders": "*"})
        for group in ("billing", "stock")
    ]
    notes = [Notes(), Notes()]
    for consumer, note in zip(consumers, notes, strict=True):
        consumer.listen(note.take)
    running = [asyncio.create_task(consumer.run()) for consumer in consumers]
    await send(mq, "orders", numbers(1))
    await until(lambda: all(note.values == [0] for note in notes))
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.gather(*running)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@asynchronous
async def test_termination_signal_during_the_start_stops_the_consumer_after_it(
    mq: RunningBroker,
) -> None:
    consumer = PushConsumer("billing", nameserver=mq.nameserver, subscribe={"orders": "*"})

    @consumer.listen
    async def bill(message: ReceivedMessage) -> None:
        raise AssertionError("no message was sent")

    running = asyncio.create_task(consumer.run())
    await asyncio.sleep(0)  # it has begun to start
    os.kill(os.getpid(), signal.SIGTERM)
    await running


@asynchronous
async def test_termination_handling_keeps_errors_raised_by_run(mq: RunningBroker) -> None:
    consumer = PushConsumer("billing", nameserver=mq.nameserver, subscribe={"orders": "*"})
    consumer.listen(Notes().take)
    running = asyncio.create_task(consumer.run())
    await until(lambda: consumer._parts is not None)
    consumer.fail(RuntimeError("the end"))
    with pytest.raises(RuntimeError, match="the end"):
        await running


def test_termination_handling_keeps_the_handler_of_the_program() -> None:
    came: list[str] = []
    signal.signal(signal.SIGTERM, lambda _number, _frame: came.append("program"))
    ours = signal.getsignal(signal.SIGTERM)
    with on_terminate(lambda: came.append("consumer")):
        os.kill(os.getpid(), signal.SIGTERM)
    assert came == ["program"]
    assert signal.getsignal(signal.SIGTERM) is ours


def test_termination_handling_keeps_a_handler_set_meanwhile() -> None:
    def handler(_number: int, _frame: object) -> None: ...

    with on_terminate(lambda: None):
        signal.signal(signal.SIGTERM, handler)
    assert signal.getsignal(signal.SIGTERM) is handler


def test_termination_handling_installs_nothing_in_other_threads() -> None:
    seen: list[object] = []

    def work() -> None:
        with on_terminate(lambda: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_termination_handling_restores_the_default_after_the_last_consumer() -> None:
    calls: list[str] = []
    stop: Callable[[], None] = lambda: calls.append("outer")  # noqa: E731
    with on_terminate(stop):
        with on_terminate(lambda: calls.append("inner")):
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGTERM)
    assert calls == ["outer", "inner", "outer"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
