"""Testing the tests of the client: each planted bug must be caught by the check it names."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest
from client_bugs import BUGS, TERMINATION
from planting import Bug, planted

from tianzhou.base import extras
from tianzhou.base.errors import UsageError
from tianzhou.client import (
    ClientOptions,
    ConsumerOptions,
    Message,
    Producer,
    ProducerOptions,
    PushConsumer,
    ReceivedMessage,
    SendContext,
    SendHook,
)
from tianzhou.client import sync as blocking
from tianzhou.client.consume.offset_files import FileOffsets, remove_unused
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import ResponseCode

SOUND_S = 120.0
CAUGHT_S = 20.0
"""How long a check waits for what a planted bug prevents."""


async def listener(mq: RunningBroker, caplog: pytest.LogCaptureFixture) -> None:
    raised = asyncio.Event()
    consumer = PushConsumer("billing", nameserver=mq.nameserver, subscribe={"orders": "*"})

    @consumer.listen
    async def bill(message: ReceivedMessage) -> None:
        raised.set()
        raise ValueError("no such customer")

    async with Producer("shop", nameserver=mq.nameserver) as producer, consumer:
        await producer.send(Message("orders", b"two apples"))
        await raised.wait()
    assert "raised ValueError" in caplog.text


async def cancelled(mq: RunningBroker, _caplog: pytest.LogCaptureFixture) -> None:
    called = asyncio.Semaphore(0)
    consumer = PushConsumer(
        "cancelled",
        nameserver=mq.nameserver,
        subscribe={"orders": "*"},
        options=ConsumerOptions(concurrency=1),
    )

    @consumer.listen
    async def bill(message: ReceivedMessage) -> None:
        called.release()
        raise asyncio.CancelledError

    async with Producer("shop", nameserver=mq.nameserver) as producer, consumer:
        for _ in range(2):
            await producer.send(Message("orders", b"two apples"))
            await called.acquire()


async def batch(mq: RunningBroker, _caplog: pytest.LogCaptureFixture) -> None:
    mq.create_topic("steps", queues=4)
    async with Producer("shop", nameserver=mq.nameserver) as producer:
        sent = [
            result
            for _ in range(4)
            for result in await producer.send_batch([Message("steps", b"x", sharding_key="k")])
        ]
    assert len({result.queue for result in sent}) == 1


async def extra(_mq: RunningBroker, _caplog: pytest.LogCaptureFixture) -> None:
    message = extras.missing_extra(ModuleNotFoundError("No module named 'pyspark'", name="pyspark"))
    assert message is not None
    assert "tianzhou[spark]" in message


async def keyed(mq: RunningBroker, _caplog: pytest.LogCaptureFixture) -> None:
    async with Producer("shop", nameserver=mq.nameserver) as producer:
        for code in (ResponseCode.NO_PERMISSION, ResponseCode.SERVICE_NOT_AVAILABLE):
            with mq.faults.refuse_sends(code, count=2):
                await producer.send(Message("orders", b"x", sharding_key="k"))


async def burst(mq: RunningBroker, _caplog: pytest.LogCaptureFixture) -> None:
    async with Producer("shop", nameserver=mq.nameserver) as producer:
        sent = [producer.send_async(Message("orders", b"x"))]
        while not sent[0].done():
            await asyncio.sleep(0)
            sent.append(producer.send_async(Message("orders", b"x")))
        offsets = [result.queue_offset for result in await asyncio.gather(*sent)]
    assert offsets == sorted(offsets)


async def broadcast(mq: RunningBroker, _caplog: pytest.LogCaptureFixture) -> None:
    """Started before and after a message is sent, the consumer gets it."""
    with tempfile.TemporaryDirectory() as directory:
        options = ConsumerOptions(broadcasting=True, offsets_directory=Path(directory))

        def consumer() -> PushConsumer:
            return PushConsumer(
                "caches", nameserver=mq.nameserver, subscribe={"orders": "*"}, options=options
            )

        async with consumer():
            pass
        async with Producer("shop", nameserver=mq.nameserver) as producer:
            await producer.send(Message("orders", b"two apples"))
        async with consumer() as again:
            await anext(aiter(again))


async def lock(_mq: RunningBroker, _caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory() as directory:
        held = [FileOffsets(Path(directory), "a@b", "g")]
        with contextlib.suppress(UsageError):
            held.append(FileOffsets(Path(directory), "a@b", "g"))
        for offsets in held:
            offsets.close()
        assert len(held) == 1


async def unused(_mq: RunningBroker, _caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory() as directory:
        held = FileOffsets(Path(directory), "a@b", "g")
        remove_unused(Path(directory), time.time() + 1000)
        held.close()
        assert os.listdir(directory) == ["a@b"]


class Broken(SendHook):
    def before(self, context: SendContext) -> None:
        raise RuntimeError("a mistake of the user")


async def hook(mq: RunningBroker, _caplog: pytest.LogCaptureFixture) -> None:
    options = ProducerOptions(hooks=[Broken()])
    async with Producer("shop", nameserver=mq.nameserver, options=options) as producer:
        await producer.send(Message("orders", b"two apples"))


async def tenant(mq: RunningBroker, _caplog: pytest.LogCaptureFixture) -> None:
    """The broker creates the retry topic of the group; the consumer must mean the same one."""
    mq.create_topic("shop1%orders")
    client, group = ClientOptions(namespace="shop1"), uuid.uuid4().hex
    async with PushConsumer(
        group, nameserver=mq.nameserver, subscribe={"orders": "*"}, client=client
    ) as consumer:
        await mq.until(lambda: f"%RETRY%{group}" in {queue.topic for queue in consumer.assignment})


CHECKS = {
    "listener": listener,
    "cancelled": cancelled,
    "batch": batch,
    "extra": extra,
    "keyed": keyed,
    "burst": burst,
    "broadcast": broadcast,
    "lock": lock,
    "unused": unused,
    "hook": hook,
    "tenant": tenant,
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_planted_client_bug_is_caught(
    bug: Bug, mq: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    mq.create_topic("orders", queues=1)
    check = CHECKS[bug.suite]
    asyncio.run(asyncio.wait_for(check(mq, caplog), SOUND_S))  # without the bug it passes
    caplog.clear()
    with planted(bug), pytest.raises(Exception) as caught:
        asyncio.run(asyncio.wait_for(check(mq, caplog), CAUGHT_S))
    assert not isinstance(caught.value, (NameError, TypeError, AttributeError, SyntaxError))


def send(mq: RunningBroker) -> None:
    with blocking.Producer("shop", nameserver=mq.nameserver) as producer:
        producer.send(Message("orders", b"two apples"))


def terminate(mq: RunningBroker, bug: str, timeout_s: float) -> None:
    """Send SIGTERM while both consumers of a process handle a message: both finish and commit it,
    leave the group, and the process exits with code 0."""
    sent = mq.stored("orders")
    program = str(Path(__file__).with_name("terminated_consumer.py"))
    with subprocess.Popen(
        [sys.executable, program, mq.nameserver, bug],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            if [process.stdout.readline() for _ in range(2)] != ["begun\n"] * 2:
                process.kill()
                raise RuntimeError(f"the consumers did not start: {process.communicate()}")
            process.send_signal(signal.SIGTERM)
            said, errors = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
    assert (process.returncode, said) == (0, "finished\nfinished\nreturned\n"), errors
    for group in ("billing", "stock"):
        assert mq.committed(group, "orders") == {0: len(sent)}


@pytest.mark.slow
@pytest.mark.parametrize("bug", TERMINATION, ids=lambda bug: bug.name.replace(" ", "-"))
def test_planted_termination_bug_is_caught(bug: Bug, mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    send(mq)
    with pytest.raises((AssertionError, subprocess.TimeoutExpired)):
        terminate(mq, bug.name, CAUGHT_S)


@pytest.mark.slow
def test_terminated_consumers_without_a_planted_bug_finish_and_commit(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    send(mq)
    terminate(mq, "", SOUND_S)
