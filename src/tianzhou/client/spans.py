"""OpenTelemetry spans of sends and of message processing, if enabled.

    Producer("shop", nameserver=..., options=ProducerOptions(spans=True))
    PushConsumer("billing", nameserver=..., options=ConsumerOptions(spans=True))

A send creates a span, and the message carries its context in the properties `traceparent` and
`tracestate`, in W3C format, so clients in any language can read it. A listener runs in a span that
is linked to those of its messages; that of a single message belongs to the same trace. Loops and
pull consumers leave the option out and mark where processing starts and ends:

    async for message in consumer:
        with processing(message, group="billing"):
            ...

Names and attributes are those of OpenTelemetry's conventions for messaging. This module needs the
extra `tracing`, and is loaded only if spans are enabled. The program configures an OpenTelemetry
SDK, which exports the spans; without an SDK nothing is recorded.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import tianzhou
from tianzhou.base.errors import TianzhouError, UsageError
from tianzhou.base.extras import missing_extra
from tianzhou.client.core.received import ConsumeResult, ReceivedMessage
from tianzhou.client.core.send_request import SendResult
from tianzhou.record.message import Message, MessageView

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:
    raise UsageError(f"spans need OpenTelemetry: {missing_extra(missing) or missing}") from missing

_W3C: Final = TraceContextTextMapPropagator()
_SYSTEM: Final = "rocketmq"

Send = Callable[[Message], "asyncio.Future[SendResult]"]
Attributes = dict[str, str | int | Sequence[str]]


def _tracer() -> trace.Tracer:
    return trace.get_tracer("tianzhou.client", tianzhou.__version__)


def context_of(message: MessageView) -> Context:
    """Return the context in which a message was sent; empty if its producer added none."""
    return _W3C.extract(dict(message.properties), context=Context())


# Producers


class SendSpans:
    """Run the sends of a producer in spans.

    Owner: the event loop of the producer.
    """

    def __init__(self, group: str) -> None:
        self.group = group

    def around(self, message: Message, send: Send) -> "asyncio.Future[SendResult]":
        """Send in a span, which ends with the response."""
        span, carried = self._begin(message)
        try:
            answer = send(carried)
        except TianzhouError as error:
            _failed(span, error)
            raise
        answer.add_done_callback(lambda done: _answered(span, done))
        return answer

    async def around_all(
        self,
        messages: Sequence[Message],
        send: Callable[[Sequence[Message]], Awaitable[list[SendResult]]],
    ) -> list[SendResult]:
        """Send a batch with a span for each message."""
        begun = [self._begin(message, count=len(messages)) for message in messages]
        spans, results = [span for span, _ in begun], list[SendResult]()
        try:
            results = await send([carried for _, carried in begun])
        except TianzhouError as error:
            for span in spans:
                _failed(span, error)
            raise
        finally:
            for span, result in zip(spans, results, strict=False):
                _stored(span, result)
            for span in spans:
                span.end()  # ending a span twice has no effect
        return results

    async def around_oneway(
        self, message: Message, send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Send without a response, in a span that ends when the message is written."""
        span, carried = self._begin(message)
        try:
            await send(carried)
        except TianzhouError as error:
            _failed(span, error)
            raise
        finally:
            span.end()  # ending a span twice has no effect

    def _begin(self, message: Message, *, count: int = 0) -> tuple[Span, Message]:
        attributes = _attributes("send", message.topic, [message])
        attributes["messaging.rocketmq.client_group"] = self.group
        attributes["messaging.message.body.size"] = len(message.body)
        if count:
            attributes["messaging.batch.message_count"] = count
        if message.sharding_key is not None:
            attributes["messaging.rocketmq.message.group"] = message.sharding_key
        if message.delay_level:
            attributes["messaging.rocketmq.message.delay_time_level"] = message.delay_level
        span = _tracer().start_span(
            f"send {message.topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, context=trace.set_span_in_context(span))
        return span, _with_properties(message, carrier) if carrier else message


def _with_properties(message: Message, added: dict[str, str]) -> Message:
    return Message(
        message.topic,
        message.body,
        tags=message.tags,
        keys=message.keys,
        flag=message.flag,
        properties={**message.properties, **added},
        wait_store_ok=message.wait_store_ok,
        delay_level=message.delay_level,
        delay=message.delay,
        deliver_at=message.deliver_at,
        sharding_key=message.sharding_key,
    )


def _answered(span: Span, done: "asyncio.Future[SendResult]") -> None:
    if done.cancelled():
        span.set_status(Status(StatusCode.ERROR, "the caller was cancelled"))
        span.end()
    elif (error := done.exception()) is not None:
        _failed(span, error)
    else:
        _stored(span, done.result())
        span.end()


def _stored(span: Span, result: SendResult) -> None:
    span.set_attribute("messaging.message.id", result.message_id)
    span.set_attribute("messaging.destination.partition.id", str(result.queue.queue_id))


def _failed(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


# Consumers


@contextmanager
def processing(*messages: MessageView, group: str = "") -> Generator[Span]:
    """A span in which these messages are processed; it is the current one in its block, and an
    exception that leaves the block is noted in it."""
    if not messages:
        raise UsageError("processing() without a message; give those that are processed")
    contexts = [trace.get_current_span(context_of(one)).get_span_context() for one in messages]
    topic = messages[0].topic
    attributes = _attributes("process", topic, messages)
    if group:
        attributes["messaging.consumer.group.name"] = group
    attributes["messaging.destination.partition.id"] = str(messages[0].queue_id)
    if len(messages) == 1:
        attributes["messaging.message.id"] = messages[0].message_id
        attributes["messaging.message.body.size"] = len(messages[0].body)
    else:
        attributes["messaging.batch.message_count"] = len(messages)
    with _tracer().start_as_current_span(
        f"process {topic}",
        # One message is one story; several have several, and are only pointed at.
        context=context_of(messages[0]) if len(messages) == 1 else None,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=[Link(context) for context in contexts if context.is_valid],
    ) as span:
        yield span


def listener_in_spans(
    function: Callable[[Any], Any], group: str, *, is_batch: bool
) -> Callable[[Any], Any]:
    """Return the listener wrapped so that each call runs in a span."""

    def of(given: Any) -> list[ReceivedMessage]:
        return given if is_batch else [given]

    async def awaited(given: Any) -> Any:
        with processing(*of(given), group=group) as span:
            result = await function(given)
            _judge(span, of(given), result)
        return result

    def called(given: Any) -> Any:
        with processing(*of(given), group=group) as span:
            result = function(given)
            _judge(span, of(given), result)
        return result

    its_call: object = getattr(function, "__call__", None)  # noqa: B004 - its kind is wanted
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(its_call)
    return awaited if is_async else called


def _judge(span: Span, messages: list[ReceivedMessage], result: object) -> None:
    later = [one for one in messages if one.verdict is not None]
    if result is ConsumeResult.LATER or later:
        count = len(messages) if result is ConsumeResult.LATER else len(later)
        span.set_status(Status(StatusCode.ERROR, f"{count} to be redelivered"))


def _attributes(
    operation: str, topic: str, messages: Sequence[Message] | Sequence[MessageView]
) -> Attributes:
    found: Attributes = {
        "messaging.system": _SYSTEM,
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if len(messages) == 1:
        if messages[0].tags:
            found["messaging.rocketmq.message.tag"] = messages[0].tags
        if messages[0].keys:
            found["messaging.rocketmq.message.keys"] = tuple(messages[0].keys)
    return found
