"""The push consumer: subscribe to topics and process messages as they arrive, in a loop or with a
listener, a function or a coroutine function, that is called for each message:

    consumer = PushConsumer("stock", nameserver="10.0.0.1:9876", subscribe={"orders": "paid"})

    @consumer.listen
    async def on_message(message): ...

    await consumer.run()

An error that stops a consumer is raised by `async for`, `run`, `closed` and `stop`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from tianzhou.base.errors import UsageError
from tianzhou.client.aio.producer import Producer
from tianzhou.client.consume.context import ConsumerContext
from tianzhou.client.consume.iterator import IteratorDelivery
from tianzhou.client.consume.listener import BatchListener, Listener, MessageListener, Outcome
from tianzhou.client.consume.running_consumer import RunningPushConsumer
from tianzhou.client.consumer_options import ConsumerOptions, refuse_spans
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.core.subscription import Sql92, checked_wishes, subscribe
from tianzhou.client.errors import ClientClosed
from tianzhou.client.options import ClientOptions, checked_group, client_repr
from tianzhou.client.session.joining import ChangesNameServers
from tianzhou.client.termination import on_terminate
from tianzhou.client.tracing import ConsumeTrace, untraced_group
from tianzhou.wire.queues import MessageQueue

_DEFAULTS: Final = ConsumerOptions()
_CLIENT: Final = ClientOptions()


class PushConsumer(ChangesNameServers):
    """Consume messages with a listener or an `async for` loop.

    The members of a group share the queues of the subscribed topics. Methods raise ClientClosed if
    the consumer is not running, and the error that stopped the consumer, if any.

        async with PushConsumer("stock", subscribe={"orders": "paid || sent"}) as consumer:
            async for message in consumer:
                print(message.body)

    Owner: the event loop in which it was started.
    """

    def __init__(
        self,
        group: str,
        *,
        nameserver: str | None = None,
        subscribe: Mapping[str, str | Sql92] | None = None,
        options: ConsumerOptions = _DEFAULTS,
        client: ClientOptions = _CLIENT,
    ) -> None:
        """Create a consumer; it connects in `start`.

        `nameserver` is `host:port;host:port`; None reads it from the environment. `subscribe` maps
        topics to expressions: `*`, tags such as `paid || sent`, or an `Sql92`. Raises UsageError
        for invalid arguments.
        """
        self.group = checked_group(group)
        self.options = options
        self._nameserver = nameserver
        self._client = client
        self._listener: Listener | None = None
        self._wanted = checked_wishes(subscribe)
        self._parts: RunningPushConsumer | None = None
        self._failure: BaseException | None = None
        self._ended = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "not started" if self._parts is None else "running"
        if self._stopping is not None or self._ended.is_set():
            state = "failed" if self._failure else "stopped" if self._ended.is_set() else "stopping"
        return client_repr(
            self, state, group=self.group, topics=list(self._wanted), nameserver=self._nameserver
        )

    def subscribe(self, topic: str, expression: str | Sql92 = "*") -> None:
        """Subscribe to a topic, before the start or while the consumer runs.

        `expression` is `*` for all messages, tags (`"paid || sent"`), or an `Sql92`. All members of
        a group must have the same subscriptions. Raises UsageError for an invalid expression.
        """
        subscribe(topic, expression, version=0)
        self._wanted[topic] = expression
        if self._parts is not None:
            self._running().subscribe(topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """Remove the subscription to a topic; without one, this has no effect."""
        self._wanted.pop(topic, None)
        if self._parts is not None:
            self._running().unsubscribe(topic)

    def listen(self, listener: MessageListener[Outcome]) -> MessageListener[Outcome]:
        """Set the listener, a function or coroutine function called with each message.

        An exception, or `ConsumeResult.LATER`, makes the broker redeliver the message. Raises
        UsageError if there is a listener already, or the consumer was started.

            @consumer.listen
            async def on_message(message): ...
        """
        self._set_listener(Listener(listener, self.group, spans=self.options.spans))
        return listener

    def listen_batches(self, listener: BatchListener[Outcome]) -> BatchListener[Outcome]:
        """Set a listener that is called with lists of messages of one queue.

        A list has up to `ConsumerOptions.batch_size` messages, which succeed or fail together.
        Raises UsageError like `listen`.

            @consumer.listen_batches
            async def on_messages(messages): ...
        """
        size, spans = self.options.batch_size, self.options.spans
        self._set_listener(Listener(listener, self.group, batch_size=size, spans=spans))
        return listener

    def _set_listener(self, listener: Listener) -> None:
        if self._listener is not None or self._parts is not None:
            raise UsageError(f"consumer of {self.group}: one listener, set before the start")
        self._listener = listener

    # Life

    async def start(self) -> Self:
        """Join the group and start pulling; an `async with` block does this.

        Raises UsageError without a subscription or if the consumer was started before, and
        ClientError if brokers reject a subscription.
        """
        if self._parts is not None or self._ended.is_set():
            raise UsageError(f"consumer of {self.group} was started before; create a new one")
        if not self._wanted:
            raise UsageError(
                f"consumer of {self.group} has no subscription; pass subscribe= or call subscribe()"
            )
        if self._listener is None:
            refuse_spans(self.options, self.group)
        context = ConsumerContext.join(
            self.group, self.options, self._client, self.fail, nameserver=self._nameserver
        )
        self._joined = context.shared
        async with contextlib.AsyncExitStack() as failing:
            failing.push_async_callback(context.leave)
            self._parts = RunningPushConsumer(context, self._listener)
            failing.pop_all()
            failing.push_async_callback(self._end)  # which leaves the shared client, too
            await self._parts.start(self._wanted, self._make_trace())
            failing.pop_all()
        return self

    def _make_trace(self) -> ConsumeTrace | None:
        if not self.options.trace:
            return None
        group, client = untraced_group(self.group, "CONSUME"), replace(self._client, namespace="")
        untraced = Producer(group, nameserver=self._nameserver, client=client)
        return ConsumeTrace(self.group, untraced)

    async def stop(self) -> None:
        """Wait for in-flight messages, commit offsets and leave the group.

        In a listener it does not wait, because the listener's own message is in flight. Re-raises
        the error that stopped the consumer, if any.
        """
        await self._end()
        self._raise_failure()

    async def _end(self) -> None:
        if self._parts is not None and (self._stopping is None or not self._stopping.done()):
            self._parts.context.shared.check_loop()
            if self._stopping is None:
                self._parts.is_hurried |= self._parts.is_iterating(asyncio.current_task())
                self._stopping = asyncio.get_running_loop().create_task(self._parts.stop())
                self._stopping.add_done_callback(lambda _: self._ended.set())
            if self._listener is None or not self._listener.is_calling:
                await asyncio.shield(self._stopping)

    async def closed(self) -> None:
        """Wait until the consumer has stopped. Re-raises the error that stopped it, if any."""
        await self._ended.wait()
        self._raise_failure()

    async def closed_or(self, wanted: asyncio.Event) -> None:
        """Wait like `closed`, but return when the event is set."""
        waiting = [asyncio.ensure_future(self.closed()), asyncio.ensure_future(wanted.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        if waiting[0].done():
            await waiting[0]

    async def run(self) -> None:
        """Start, consume until stopped, cancelled or terminated by SIGTERM, and stop.

        SIGTERM is handled in the main thread, unless the program has a handler of its own:
        in-flight messages are finished, offsets committed, the group left, and `run` returns.
        """
        loop, wanted = asyncio.get_running_loop(), asyncio.Event()
        with on_terminate(lambda: loop.call_soon_threadsafe(wanted.set)):
            async with self:
                await self.closed_or(wanted)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._parts is not None:
            self._parts.leave_loops(is_done=error is None)
        await self._end()
        if error is None:
            self._raise_failure()

    def fail(self, error: BaseException) -> None:
        """Stop the consumer because a background task failed."""
        if self._failure is None:
            self._failure = error
            self._ended.set()
            if self._parts is not None and isinstance(self._parts.delivery, IteratorDelivery):
                self._parts.delivery.fail(error)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # Consuming

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self._running().messages()

    def batches(self, count_max: int = 32) -> AsyncIterator[list[ReceivedMessage]]:
        """Iterate over lists of up to `count_max` messages, each list from one queue.

        Raises UsageError for a count below 1, or if the consumer has a listener.

            async for messages in consumer.batches(100): ...
        """
        if count_max < 1:
            raise UsageError(f"count_max must be at least 1, got {count_max}")
        return self._running().batches(count_max)

    def iterator_delivery(self) -> IteratorDelivery:
        """Return the source of messages for loops; not for applications.

        Raises UsageError if the consumer has a listener.
        """
        return self._running().iterator_delivery

    def pause(self) -> None:
        """Stop pulling. Pulled messages are still delivered; the assignment is kept."""
        self._running().puller.pause()

    def resume(self) -> None:
        """Start pulling again after `pause`."""
        self._running().puller.resume()

    async def commit(self) -> None:
        """Commit the offsets now and wait for the responses of the brokers.

        A failed commit is logged and retried in the background.
        """
        await self._running().member.assignments.save_surely()

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues assigned to this consumer now."""
        return frozenset() if self._parts is None else self._parts.assignment

    @property
    def client_id(self) -> str:
        """The id by which brokers know this consumer. Raises ClientClosed unless it runs."""
        return self._running(in_loop=False).context.shared.client_id

    def _running(self, *, in_loop: bool = True) -> RunningPushConsumer:
        if self._failure is not None:
            raise self._failure
        if self._parts is None or self._stopping is not None:
            raise ClientClosed(f"consumer of {self.group} is not running")
        if in_loop:
            self._parts.context.shared.check_loop()
        return self._parts
