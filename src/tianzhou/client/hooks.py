"""Hooks: code of the user around each send of a producer and each delivery of a consumer.

    class Audit(SendHook):
        def after(self, context: SendContext) -> None:
            print(context.message.topic, context.results or context.error)

    Producer("orders", options=ProducerOptions(hooks=(Audit(),)))

As in Java, an exception in `before` or `after` is logged and changes nothing, and `check` may
reject a send. Hooks are called where the message is: send hooks in the event loop, consume hooks
in the loop or in the thread that calls the listener. They must not block there.

A producer or consumer without hooks does nothing for them.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from tianzhou.base.errors import UsageError
from tianzhou.client.core.received import (
    ConsumeResult,
    ReceivedMessage,
    described,
    message_facts,
)
from tianzhou.client.core.send_request import SendResult
from tianzhou.client.core.trace import ContextCode
from tianzhou.record.message import Message
from tianzhou.wire.queues import MessageQueue

log: Final = logging.getLogger("tianzhou.client")

Send = Callable[[Message], "asyncio.Future[SendResult]"]
SendAll = Callable[[Sequence[Message]], Awaitable[list[SendResult]]]


@dataclass(slots=True)
class SendContext:
    """One send as its hooks see it: a message, or the messages of a batch.

        class Stamp(SendHook):
            def before(self, context):
                added = {**context.message.properties, "region": "north"}
                context.message = dataclasses.replace(context.message, properties=added)

    `before` may replace messages; everything else is for reading.
    """

    group: str
    messages: list[Message]
    is_oneway: bool = False
    results: Sequence[SendResult] = ()
    """A result for each message, after a successful send that is not one-way."""
    error: BaseException | None = None
    """Why the send failed."""
    took_s: float = 0.0
    """Duration with all attempts, once the send is over."""
    notes: dict[str, object] = field(default_factory=dict[str, object])
    """For values that `before` passes to `after`."""

    @property
    def message(self) -> Message:
        """The message, or the first one of a batch."""
        return self.messages[0]

    @message.setter
    def message(self, message: Message) -> None:
        self.messages[0] = message


class SendHook:
    """Code around each send of a producer; override what you need.

        class Audit(SendHook):
            def after(self, context):
                print(context.message.topic, context.results or context.error)

        Producer("orders", options=ProducerOptions(hooks=(Audit(),)))

    All methods run in the event loop and must not block. Retries of a send are part of it.
    """

    def check(self, context: SendContext) -> None:
        """Raise an exception to reject the send; its caller gets the exception."""

    def before(self, context: SendContext) -> None:
        """Called before the send. An exception is logged, and the message is sent."""

    def after(self, context: SendContext) -> None:
        """Called after the send, whether it succeeded or not. An exception is logged."""


@dataclass(slots=True)
class ConsumeContext:
    """One delivery as its hooks see it: the messages of a listener call, or one of a loop.

    class Timing(ConsumeHook):
        def after(self, context):
            print(context.queue, context.result, context.took_s)
    """

    group: str
    messages: Sequence[ReceivedMessage]
    result: ConsumeResult = ConsumeResult.SUCCESS
    """In `after`: LATER if at least one message failed; it is delivered again."""
    error: BaseException | None = None
    """In `after`: what the listener raised."""
    took_s: float = 0.0
    """In `after`: how long processing took."""
    notes: dict[str, object] = field(default_factory=dict[str, object])
    """For values that `before` passes to `after`."""

    @property
    def queue(self) -> MessageQueue:
        """The queue of the messages."""
        return self.messages[0].queue


class ConsumeHook:
    """Code around each delivery of a consumer; override what you need.

        class Timing(ConsumeHook):
            def after(self, context):
                print(context.queue, context.result, context.took_s)

        PushConsumer("stock", options=ConsumerOptions(hooks=(Timing(),)), ...)

    For a listener, that is a call; for a loop, a message until it is acknowledged or rejected. A
    `poll` calls both methods before it returns the messages. Methods run in the event loop, or in
    the threads that call a listener, and must not block.
    """

    def before(self, context: ConsumeContext) -> None:
        """Called before the messages are processed. An exception is logged."""

    def after(self, context: ConsumeContext) -> None:
        """Called after the messages were processed. An exception is logged."""


Hook = TypeVar("Hook", SendHook, ConsumeHook)


def checked_hooks(hooks: Sequence[object], kind: type[Hook]) -> tuple[Hook, ...]:
    """Return the hooks as a tuple. Raises UsageError for other objects and for coroutine
    functions, which would never be awaited."""
    checked: list[Hook] = []
    for hook in hooks:
        if not isinstance(hook, kind):
            raise UsageError(f"hook {hook!r} is not a {kind.__name__}; derive its class from it")
        for name in ("check", "before", "after"):
            if inspect.iscoroutinefunction(getattr(hook, name, None)):
                raise UsageError(
                    f"{name} of hook {type(hook).__name__} is a coroutine function; hooks are "
                    "functions, which may start a task"
                )
        checked.append(hook)
    return tuple(checked)


# Sends


class SendHooks:
    """Call the hooks of a producer around its sends.

    Owner: the event loop of the producer.
    """

    def __init__(self, group: str, hooks: Sequence[SendHook]) -> None:
        self._group = group
        self._hooks = checked_hooks(hooks, SendHook)

    def around(self, message: Message, send: Send) -> "asyncio.Future[SendResult]":
        """Send one message; `after` is called when its future is done."""
        context, begun_s = self._begin([message])
        try:
            answer = send(context.message)
        except Exception as error:
            self._end(context, begun_s, error=error)
            raise

        def ended(done: "asyncio.Future[SendResult]") -> None:
            if done.cancelled():
                self._end(context, begun_s, error=asyncio.CancelledError())
            elif (error := done.exception()) is not None:
                self._end(context, begun_s, error=error)
            else:
                self._end(context, begun_s, [done.result()])

        answer.add_done_callback(ended)
        return answer

    async def around_all(self, messages: Sequence[Message], send: SendAll) -> list[SendResult]:
        """Send a batch."""
        context, begun_s = self._begin(list(messages))
        results: list[SendResult] = []
        failure: BaseException | None = None
        try:
            results = await send(context.messages)
        except BaseException as error:
            failure = error
            raise
        finally:
            self._end(context, begun_s, results, failure)
        return results

    async def around_oneway(
        self, message: Message, send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Send without a response; `after` is called when the message is written."""
        context, begun_s = self._begin([message], is_oneway=True)
        failure: BaseException | None = None
        try:
            await send(context.message)
        except BaseException as error:
            failure = error
            raise
        finally:
            self._end(context, begun_s, error=failure)

    def _begin(
        self, messages: list[Message], *, is_oneway: bool = False
    ) -> tuple[SendContext, float]:
        context = SendContext(self._group, messages, is_oneway)
        for hook in self._hooks:
            hook.check(context)
        for hook in self._hooks:
            _call(hook.before, context, _send_facts)
        return context, monotonic()

    def _end(
        self,
        context: SendContext,
        begun_s: float,
        results: Sequence[SendResult] = (),
        error: BaseException | None = None,
    ) -> None:
        context.results, context.error = results, error
        context.took_s = monotonic() - begun_s
        for hook in self._hooks:
            _call(hook.after, context, _send_facts)


Facts = tuple[str, dict[str, object]]
"""What a hook was called for: for human readers of a log, and for programs."""


def _send_facts(context: SendContext) -> Facts:
    topic, facts = context.message.topic, dict[str, object](group=context.group)
    facts["topic"] = topic
    if context.results:
        facts["message_id"] = context.results[0].message_id
    return f"a send of producer group {context.group} to topic {topic}", facts


def _delivery_facts(context: ConsumeContext) -> Facts:
    facts = message_facts(context.group, context.messages[0])
    return f"a delivery to group {context.group}, {described(context.messages)}", facts


Context = TypeVar("Context", SendContext, ConsumeContext)


def _call(
    method: Callable[[Context], None], context: Context, facts_of: Callable[[Context], Facts]
) -> None:
    """Call a method of a hook; an exception is logged and changes nothing."""
    try:
        method(context)
    except Exception as error:
        text, facts = facts_of(context)
        log.warning(
            "hook %s raised %s for %s; the message is not affected",
            method.__qualname__,
            type(error).__name__,
            text,
            exc_info=error,
            extra=facts,
        )


# Deliveries


class ConsumeObserver(Protocol):
    """Observes each delivery, in any thread."""

    def began(self, messages: Sequence[ReceivedMessage]) -> Any:
        """Record the start of a delivery; the result is passed to `ended`."""
        ...

    def ended(self, delivery: Any, code: ContextCode, error: BaseException | None = None) -> None:
        """Record its end, with the exception of the listener, if it raised one."""
        ...


class _Delivery(NamedTuple):
    context: ConsumeContext
    begun_s: float
    traced: object
    """What the trace recorded, if there is one."""


class ConsumeHooks:
    """Call the hooks of a consumer, and pass deliveries on to its trace, if it has one.

    Any thread may call it.
    """

    def __init__(
        self, group: str, hooks: Sequence[ConsumeHook], trace: ConsumeObserver | None = None
    ) -> None:
        self._group = group
        self._hooks = checked_hooks(hooks, ConsumeHook)
        self._trace = trace

    def began(self, messages: Sequence[ReceivedMessage]) -> _Delivery:
        """Call `before` of every hook."""
        context = ConsumeContext(self._group, messages)
        for hook in self._hooks:
            _call(hook.before, context, _delivery_facts)
        traced = self._trace.began(messages) if self._trace is not None else None
        return _Delivery(context, monotonic(), traced)

    def ended(
        self, delivery: _Delivery, code: ContextCode, error: BaseException | None = None
    ) -> None:
        """Call `after` of every hook."""
        context = delivery.context
        if self._trace is not None:
            self._trace.ended(delivery.traced, code, error)
        is_success = code is ContextCode.SUCCESS
        context.result = ConsumeResult.SUCCESS if is_success else ConsumeResult.LATER
        context.error, context.took_s = error, monotonic() - delivery.begun_s
        for hook in self._hooks:
            _call(hook.after, context, _delivery_facts)
