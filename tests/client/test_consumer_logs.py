"""What a consumer logs: on the error stream of a program that configures nothing, and its facts."""

import ast
import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from consuming import Notes, asynchronous, consuming, numbers, send, until

import tianzhou.client
from tianzhou.client import ClientOptions, ConsumerOptions, Message, PushConsumer, ReceivedMessage
from tianzhou.client import Producer as AsyncProducer
from tianzhou.client.sync import Producer
from tianzhou.net.blocking import BlockingPeer
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import RequestCode

CLIENT = Path(tianzhou.client.__file__).parent
PROGRAM = """
import sys
from tianzhou.client.sync import PushConsumer
consumer = PushConsumer("billing", nameserver=sys.argv[1], subscribe={sys.argv[2]: "*"})
@consumer.listen
def bill(message):
    print("called", flush=True)
    raise ValueError("no such customer")
with consumer:
    print("started", flush=True)
    sys.stdin.readline()
"""


def said_by_program(mq: RunningBroker, topic: str, *, until_line: str) -> str:
    """The error output of a program that configures no logging, stopped after that line."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, mq.nameserver, topic],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    while (line := process.stdout.readline().strip()) != until_line:
        assert line, f"it ended before it said {until_line!r}"
    _, said = process.communicate("end\n", timeout=300)
    assert process.returncode == 0, said
    return said


@pytest.mark.slow
def test_listener_that_raises_is_logged_without_configuration(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    with Producer("shop", nameserver=mq.nameserver) as producer:
        sent = producer.send(Message("orders", b"two apples"))
    said = said_by_program(mq, "orders", until_line="called")
    assert (
        f"listener of group billing raised ValueError for message {sent.message_id} "
        "(topic orders, queue broker-a:0, offset 0, attempt 1)\n"
    ) in said
    assert said.rstrip().endswith("ValueError: no such customer")


@pytest.mark.slow
def test_missing_topic_is_logged_without_configuration(
    mq: RunningBroker,
) -> None:
    said = said_by_program(mq, "ordres", until_line="started")
    assert said == (
        "group billing subscribes to topic ordres, which does not exist; it gets no messages of "
        "it until the topic is created\n"
    )


@asynchronous
async def test_missing_topic_is_logged_once_per_subscription(
    mq: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    mq.create_topic("orders", queues=1)
    notes = Notes()
    async with consuming(
        mq, "billing", {"orders": "*"}, notes.take, rebalance_interval_s=0.05
    ) as consumer:
        consumer.subscribe("ordres", "*")
        await until(lambda: "topic ordres, which does not exist" in caplog.text)
        await asyncio.to_thread(mq.create_topic, "ordres", queues=1)
        await send(mq, "ordres", numbers(1))
        await until(lambda: notes.values == [0])
    assert caplog.text.count("which does not exist") == 1


@asynchronous
async def test_failed_listener_log_counts_each_attempt(
    mq: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """In ordered consumption, where the next attempt is made in place."""
    mq.create_topic("orders", queues=1)
    options = ConsumerOptions(orderly=True, suspend_s=0.01)
    consumer = PushConsumer(
        "billing", nameserver=mq.nameserver, subscribe={"orders": "*"}, options=options
    )

    @consumer.listen
    async def bill(message: ReceivedMessage) -> None:
        if message.reconsume_times < 2:
            raise ValueError("not yet")

    await send(mq, "orders", numbers(1))
    async with consumer:
        await until(lambda: mq.lag("billing", "orders") == 0 or None)
    failed = [record for record in caplog.records if "raised ValueError" in record.getMessage()]
    assert [record.__dict__["attempt"] for record in failed] == [1, 2]
    assert "attempt 2)" in failed[1].getMessage()


@asynchronous
async def test_message_id_with_newlines_adds_no_log_line(
    mq: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    mq.create_topic("orders", queues=1)
    notes = Notes()

    async def bill(message: ReceivedMessage) -> None:
        notes.messages.append(message)
        raise ValueError("no such customer")

    async with consuming(mq, "billing", {"orders": "*"}, bill):
        await asyncio.to_thread(send_with_id, mq, "evil\n\x1b[31mred")
        await until(lambda: any("raised" in one for one in caplog.messages))
    (line,) = [one for one in caplog.messages if "raised" in one]
    assert "evil\\n\\x1b[31mred" in line
    assert line.isprintable()


def send_with_id(mq: RunningBroker, message_id: str) -> None:
    """As a client would that chooses ids of its own."""
    fields = {
        "a": "shop",
        "b": "orders",
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": f"UNIQ_KEY\x01{message_id}\x02",
    }
    with BlockingPeer(mq.broker) as peer:
        assert peer.call(RequestCode.SEND_MESSAGE_V2, fields, b"x")[0].code == 0


def test_client_library_configures_no_logger() -> None:
    """Handlers are the application's business; without any, Python prints warnings itself."""
    code = (
        "import logging, tianzhou.client, tianzhou.client.sync\n"
        "from tianzhou.client import PushConsumer\n"
        "loggers = [logging.root, *map(logging.getLogger, logging.root.manager.loggerDict)]\n"
        "print([logger.name for logger in loggers if logger.handlers])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_client_log_call_has_its_facts_in_the_text() -> None:
    """A program that configures nothing prints the text alone, without the fields of `extra`."""
    levels = {"debug", "info", "warning", "error", "exception", "log"}
    logged = 0
    for path in CLIENT.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            match call:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=level)):
                    assert level in levels, f"{path}:{call.lineno}"
                case _:
                    continue
            logged += 1
            text = call.args[1 if level == "log" else 0]
            is_fine = (
                isinstance(text, ast.Constant)
                and isinstance(text.value, str)
                and " " in text.value
                and "%" in text.value
            )
            assert is_fine, f"{path}:{call.lineno}"
    assert logged > 20


@asynchronous
async def test_failed_pull_is_logged_once_with_queue_and_reason(
    mq: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    mq.create_topic("orders", queues=1)
    notes = Notes()
    with mq.faults.refuse([RequestCode.PULL_MESSAGE]) as refused:
        async with consuming(mq, "billing", {"orders": "*"}, notes.take):
            await until(lambda: refused.hits >= 4)
            refused.end()
            await send(mq, "orders", numbers(1))
            await until(lambda: notes.values == [0])
    failed = [
        line for line in caplog.messages if "pull from queue broker-a:0 of topic orders" in line
    ]
    assert len(failed) == 1
    assert failed[0].startswith("group billing could not pull")
    assert mq.broker in failed[0]


@asynchronous
async def test_failed_route_refresh_is_logged_once_per_outage(
    mq: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    mq.create_topic("orders", queues=1)
    caplog.set_level(logging.DEBUG, "tianzhou.client")
    client = ClientOptions(route_interval_s=0.02)

    def levels() -> list[int]:
        """Of all refreshes that failed."""
        text = "the route of topic orders could not be refreshed: topic 'orders' is not known"
        return [one.levelno for one in caplog.records if one.getMessage().startswith(text)]

    async with AsyncProducer("shop", nameserver=mq.nameserver, client=client) as producer:
        await producer.send(Message("orders", b"x"))
        for outage in (1, 2):
            failed_before = len(levels())
            with BlockingPeer(mq.nameserver) as peer:
                forgotten = peer.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
                assert forgotten[0].code == 0
            await until(lambda before=failed_before: len(levels()) >= before + 4)
            await asyncio.to_thread(mq.create_topic, "orders", queues=1 + outage)
            await until(lambda ends=outage: caplog.text.count("was refreshed again") == ends)
            assert levels().count(logging.WARNING) == outage
