"""OpenTelemetry spans, recorded by the real SDK: one trace from the producer to the listener."""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from consuming import asynchronous, consuming, until
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from tianzhou.base.errors import UsageError
from tianzhou.client import (
    ConsumerOptions,
    LitePullConsumer,
    Message,
    Producer,
    ProducerOptions,
    PushConsumer,
    spans,
    sync,
)
from tianzhou.client.core.received import ConsumeResult, ReceivedMessage
from tianzhou.client.errors import RemoteError
from tianzhou.client.spans import context_of, processing
from tianzhou.testing import RunningBroker

ALL = {"orders": "*"}
SPANS = ProducerOptions(spans=True)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> TracerProvider:
    """The SDK of this test alone; the one of a process can be set only once."""
    made = TracerProvider()
    monkeypatch.setattr(spans, "_tracer", lambda: made.get_tracer("test"))
    return made


@pytest.fixture
def ended(provider: TracerProvider) -> Iterator["Ended"]:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield Ended(exporter)
    provider.shutdown()


class Ended:
    """Spans that have ended, by what they are about."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def attribute(span: ReadableSpan, name: str) -> object:
    assert span.attributes is not None
    return span.attributes.get(f"messaging.{name}")


@asynchronous
async def test_spans_of_producer_and_listener_are_in_one_trace(
    mq: RunningBroker, provider: TracerProvider, ended: Ended
) -> None:
    mq.create_topic("orders", queues=1)
    inner: list[int] = []

    async def listener(_message: ReceivedMessage) -> None:
        inner.append(trace.get_current_span().get_span_context().span_id)

    tracer = provider.get_tracer("shop")
    async with Producer("shop", nameserver=mq.nameserver, options=SPANS) as producer:
        with tracer.start_as_current_span("checkout"):
            message = Message(
                "orders", b"two apples", tags="fruit", keys=["T1"], properties={"colour": "red"}
            )
            result = await producer.send(message)
    (stored,) = mq.stored("orders")
    sent = ended.one("send orders")
    version, trace_id, span_id, _ = stored.properties["traceparent"].split("-")
    assert (version, trace_id) == ("00", format_trace_id(trace_of(sent)))
    assert span_id == format_span_id(id_of(sent))
    assert stored.properties["colour"] == "red"
    async with consuming(mq, "billing", ALL, listener, spans=True):
        await until(lambda: ended.named("process orders"))
    outer, done = ended.one("checkout"), ended.one("process orders")
    assert trace_of(outer) == trace_of(sent) == trace_of(done)
    assert sent.parent is not None
    assert sent.parent.span_id == id_of(outer)
    assert done.parent is not None
    assert done.parent.span_id == id_of(sent)
    assert [link.context.span_id for link in done.links] == [id_of(sent)]
    assert inner == [id_of(done)]  # what the listener does belongs to it
    assert (sent.kind, done.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    for span in (sent, done):
        assert attribute(span, "system") == "rocketmq"
        assert attribute(span, "destination.name") == "orders"
        assert attribute(span, "message.id") == result.message_id
        assert attribute(span, "rocketmq.message.tag") == "fruit"
        assert attribute(span, "rocketmq.message.keys") == ("T1",)
        assert attribute(span, "destination.partition.id") == "0"
    assert attribute(done, "consumer.group.name") == "billing"


@asynchronous
async def test_spans_context_is_sent_in_every_mode(mq: RunningBroker, ended: Ended) -> None:
    mq.create_topic("orders", queues=1)
    async with Producer("shop", nameserver=mq.nameserver, options=SPANS) as producer:
        await producer.send_async(Message("orders", b"1"))
        await producer.send_batch([Message("orders", b"2"), Message("orders", b"3")])
        await producer.send_oneway(Message("orders", b"4"))
        async with producer.transaction(Message("orders", b"5")):
            pass
    await until(lambda: len(mq.stored("orders")) == 5)
    sent = ended.named("send orders")
    parents = {m.properties["traceparent"].split("-")[2] for m in mq.stored("orders")}
    assert parents == {format_span_id(id_of(span)) for span in sent}
    assert len(parents) == 5
    assert [attribute(span, "batch.message_count") for span in sent].count(2) == 2


@asynchronous
async def test_spans_record_failures(mq: RunningBroker, ended: Ended) -> None:
    mq.create_topic("orders", queues=1)
    async with Producer("shop", nameserver=mq.nameserver, options=SPANS) as producer:
        with mq.faults.refuse_sends(13, remark="no room for it"), pytest.raises(RemoteError):
            await producer.send(Message("orders", b"x"))
        with mq.faults.refuse_sends(13, remark="no room for it"), pytest.raises(RemoteError):
            await producer.send_batch([Message("orders", b"x")] * 2)
        await producer.send(Message("orders", b"poison"))
    failed = ended.named("send orders")[:3]
    assert [span.status.status_code for span in failed] == [StatusCode.ERROR] * 3
    assert "no room for it" in str(failed[0].status.description)

    async def listener(message: ReceivedMessage) -> ConsumeResult:
        if not message.reconsume_times:
            raise ValueError(message.body)
        return ConsumeResult.LATER

    async with consuming(mq, "billing", ALL, listener, spans=True, orderly=True, suspend_s=0.01):
        await until(lambda: len(ended.named("process orders")) >= 2)
    first = ended.named("process orders")[0]
    assert first.status.status_code is StatusCode.ERROR
    assert first.events[0].name == "exception"


@asynchronous
async def test_spans_of_a_batch_are_linked_to_all_its_producers(
    mq: RunningBroker, ended: Ended
) -> None:
    mq.create_topic("orders", queues=1)
    async with Producer("shop", nameserver=mq.nameserver, options=SPANS) as producer:
        for number in range(3):
            await producer.send(Message("orders", b"%d" % number))
    async with Producer("plain", nameserver=mq.nameserver) as producer:
        await producer.send(Message("orders", b"3"))
    messages = mq.stored("orders")
    with processing(*messages, group="billing") as span:
        assert trace.get_current_span() is span
    done = ended.one("process orders")
    sent = ended.named("send orders")
    assert [link.context.span_id for link in done.links] == [id_of(span) for span in sent]
    assert done.parent is None
    assert attribute(done, "batch.message_count") == 4
    nothing = trace.get_current_span(context_of(messages[3])).get_span_context()
    assert not nothing.is_valid  # its producer wrote no context


def test_spans_of_a_blocking_producer_and_threads_are_in_one_trace(
    mq: RunningBroker, provider: TracerProvider, ended: Ended
) -> None:
    mq.create_topic("orders", queues=1)
    tracer, done = provider.get_tracer("shop"), threading.Event()

    def listener(_message: ReceivedMessage) -> None:
        with tracer.start_as_current_span("write"):
            done.set()

    with (
        sync.Producer("shop", nameserver=mq.nameserver, options=SPANS) as producer,
        tracer.start_as_current_span("checkout"),
    ):
        producer.send(Message("orders", b"two apples"))
    consumer = sync.PushConsumer(
        "billing", nameserver=mq.nameserver, subscribe=ALL, options=ConsumerOptions(spans=True)
    )
    consumer.listen(listener)
    with consumer:
        assert done.wait(120)
        mq.wait_until(lambda: ended.named("process orders"))
    chain = [ended.one(name) for name in ("checkout", "send orders", "process orders", "write")]
    assert len({trace_of(span) for span in chain}) == 1
    for before, after in pairwise(chain):
        assert after.parent is not None
        assert after.parent.span_id == id_of(before)


def test_spans_of_a_consumer_without_a_listener_are_rejected(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    options = ConsumerOptions(spans=True)
    refused = "spans=True has no effect for the consumer of billing, which has no listener"

    async def loop() -> None:
        consumer = PushConsumer("billing", nameserver=mq.nameserver, subscribe=ALL, options=options)
        async with consumer:
            raise AssertionError("it started")

    with pytest.raises(UsageError, match=refused):
        asyncio.run(loop())
    with pytest.raises(UsageError, match=refused):
        sync.PushConsumer(
            "billing", nameserver=mq.nameserver, subscribe=ALL, options=options
        ).start()
    for kind in (LitePullConsumer, sync.LitePullConsumer):
        with pytest.raises(UsageError, match=r"with tianzhou\.client\.spans\.processing\("):
            kind("billing", nameserver=mq.nameserver, subscribe=ALL, options=options)


def test_spans_without_an_sdk_leave_messages_unchanged(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    with sync.Producer("shop", nameserver=mq.nameserver, options=SPANS) as producer:
        producer.send(Message("orders", b"x"))
    assert "traceparent" not in mq.stored("orders")[0].properties


def test_spans_disabled_do_not_load_opentelemetry() -> None:
    code = (
        "import sys, tianzhou.client, tianzhou.client.sync\n"
        "tianzhou.client.Producer('g', nameserver='127.0.0.1:1')\n"
        "assert not [m for m in sys.modules if 'opentelemetry' in m], 'loaded'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_spans_without_the_extra_report_how_to_install_it() -> None:
    code = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "from tianzhou.client import Producer, ProducerOptions\n"
        "Producer('g', nameserver='127.0.0.1:1', options=ProducerOptions(spans=True))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert 'pip install "tianzhou[tracing]"' in done.stderr


@asynchronous
async def test_spans_examples_of_the_metrics_page_work(mq: RunningBroker, ended: Ended) -> None:
    page = (Path(__file__).parents[2] / "docs/metrics.md").read_text(encoding="utf-8")
    clients, loop = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    mq.create_topic("orders", queues=1)
    lines = [
        "async def play():",
        *(f"    {line}" for line in clients.splitlines()),
        "    async with producer:",
        "        await producer.send(Message('orders', b'two apples'))",
        "    consumer.listen(listener)",
        "    async with consumer:",
        "        await heard.wait()",
        *(f"    {line}" for line in loop.replace("...", "break").splitlines()),
    ]
    heard = asyncio.Event()

    async def listener(_message: ReceivedMessage) -> None:
        heard.set()

    names: dict[str, Any] = {"Message": Message, "listener": listener, "heard": heard}
    exec("\n".join(lines).replace("127.0.0.1:9876", mq.nameserver), names)
    await asyncio.wait_for(names["play"](), 120)
    sent, done = ended.one("send orders"), ended.named("process orders")
    assert len(done) == 2
    assert {trace_of(span) for span in done} == {trace_of(sent)}
