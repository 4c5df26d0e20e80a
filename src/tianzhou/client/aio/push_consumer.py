"""The push consumer: subscribe to topics and process messages as they arrive.

    async with PushConsumer("stock", nameserver="10.0.0.1:9876", subscribe={"orders": "*"}) as mine:
        async for message in mine:
            ...

or with a listener, a function or a coroutine function, that is called for each message:

    consumer = PushConsumer("stock", nameserver="10.0.0.1:9876", subscribe={"orders": "paid"})

    @consumer.listen
    async def on_message(message): ...

    await consumer.run()

An error that stops a consumer is raised by `async for`, `run`, `closed` and `stop`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self

from tianzhou.base.errors import UsageError
from tianzhou.client.aio.acknowledger import Acknowledger
from tianzhou.client.aio.assigned_queue import AssignedQueue, Ready
from tianzhou.client.aio.consumer_requests import ConsumerRequests
from tianzhou.client.aio.consumer_trace import ConsumeTrace
from tianzhou.client.aio.delivery import Delivery, TaskWorkers, ThreadWorkers
from tianzhou.client.aio.filter_check import check_expressions
from tianzhou.client.aio.group_member import GroupMember
from tianzhou.client.aio.iterator_delivery import (
    BatchIterator,
    IteratorDelivery,
    MessageIterator,
    OrderlyIteratorDelivery,
)
from tianzhou.client.aio.listener import BatchListener, Listener, MessageListener, Outcome
from tianzhou.client.aio.orderly import OrderlyWorkers
from tianzhou.client.aio.puller import Puller
from tianzhou.client.aio.shared_client import SharedClient
from tianzhou.client.aio.tasks import Tasks
from tianzhou.client.consumer_options import ConsumerOptions, refuse_spans
from tianzhou.client.core.outcome import GROWING
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.core.subscription import Sql92, checked_wishes, retry_topic, subscribe
from tianzhou.client.errors import ClientClosed
from tianzhou.client.options import ClientOptions, checked_group, client_repr
from tianzhou.client.termination import on_terminate
from tianzhou.wire.queues import MessageQueue

_DEFAULTS: Final = ConsumerOptions()
_CLIENT: Final = ClientOptions()
_OVERDUE_CHECK_S: Final = 60.0


class PushConsumer:
    """Consume messages with a listener or an `async for` loop.

    The members of a group share the queues of the subscribed topics.

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
        self._parts: _Parts | None = None
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

    # Before it starts

    def subscribe(self, topic: str, expression: str | Sql92 = "*") -> None:
        """Subscribe to a topic, before the start or while the consumer runs.

        `expression` is `*` for all messages, tags (`"paid || sent"`), or an `Sql92`. All members of
        a group must have the same subscriptions. Raises UsageError for an invalid expression.
        """
        made = subscribe(topic, expression, version=0)
        self._wanted[topic] = expression
        if self._parts is not None:
            parts = self._running()
            parts.member.subscribe(subscribe(topic, expression, version=parts.shared.now_ms()))
            parts.tasks.run(parts.announce([made.topic]))

    def unsubscribe(self, topic: str) -> None:
        """Remove the subscription to a topic."""
        self._wanted.pop(topic, None)
        if self._parts is not None:
            parts = self._running()
            parts.member.subscriptions.pop(topic, None)
            parts.tasks.run(parts.announce([]))

    def listen(self, listener: MessageListener[Outcome]) -> MessageListener[Outcome]:
        """Set the listener, a function or coroutine function called with each message.

        An exception, or `ConsumeResult.LATER`, makes the broker redeliver the message. Raises
        UsageError if there is a listener already, or the consumer was started.

            @consumer.listen
            async def on_message(message): ...
        """
        self._set_listener(Listener(self._spanned(listener, is_batch=False), self.group))
        return listener

    def listen_batches(self, listener: BatchListener[Outcome]) -> BatchListener[Outcome]:
        """Set a listener that is called with lists of up to `batch_size` messages of one queue."""
        spanned = self._spanned(listener, is_batch=True)
        self._set_listener(Listener(spanned, self.group, batch_size=self.options.batch_size))
        return listener

    def _spanned(self, listener: Callable[..., Any], *, is_batch: bool) -> Callable[..., Any]:
        if not self.options.spans:
            return listener
        from tianzhou.client.spans import listener_in_spans

        return listener_in_spans(listener, self.group, is_batch=is_batch)

    def _set_listener(self, listener: Listener) -> None:
        if self._listener is not None or self._parts is not None:
            raise UsageError(f"consumer of {self.group}: one listener, set before the start")
        self._listener = listener

    # Life

    async def start(self) -> Self:
        """Join the group and start pulling. Raises UsageError and ClientError."""
        if self._parts is not None or self._ended.is_set():
            raise UsageError(f"consumer of {self.group} was started before; make another")
        if not self._wanted:
            raise UsageError(f"consumer of {self.group} subscribes to nothing")
        if self._listener is None:
            refuse_spans(self.options, self.group)
        shared = SharedClient.join(self._nameserver, self._client, consumer_group=self.group)
        async with contextlib.AsyncExitStack() as failing:
            failing.push_async_callback(shared.leave, consumer_group=self.group)
            self._parts = _Parts(self, shared)
            failing.pop_all()
            failing.push_async_callback(self._end)  # which leaves the shared client, too
            await self._parts.start()
            failing.pop_all()
        return self

    async def stop(self) -> None:
        """Wait for in-flight messages, commit offsets and leave the group. Re-raises the error
        that stopped the consumer, if any. Called in a listener, it does not wait, because the
        message of the listener is in flight."""
        await self._end()
        self._raise_failure()

    async def _end(self) -> None:
        if self._parts is not None and (self._stopping is None or not self._stopping.done()):
            self._parts.shared.check_loop()
            if self._stopping is None:
                self._parts.is_hurried |= self._parts.is_iterating(asyncio.current_task())
                self._stopping = asyncio.get_running_loop().create_task(self._stop(self._parts))
            if self._listener is None or not self._listener.is_calling:
                await asyncio.shield(self._stopping)

    async def _stop(self, parts: "_Parts") -> None:
        try:
            await parts.stop()
        finally:
            self._ended.set()

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
            if self._parts is not None and self._parts.iterator_delivery is not None:
                self._parts.iterator_delivery.fail(error)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # Consuming

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self._handing_parts().messages()

    def batches(self, count_max: int = 32) -> AsyncIterator[list[ReceivedMessage]]:
        """Iterate over lists of up to `count_max` messages, each list of one queue."""
        if count_max < 1:
            raise UsageError(f"batches of {count_max} messages; at least 1")
        return self._handing_parts().batches(count_max)

    def iterator_delivery(self) -> IteratorDelivery:
        """Return the source of messages of loops, for other kinds of loops."""
        iterator_delivery = self._handing_parts().iterator_delivery
        assert iterator_delivery is not None
        return iterator_delivery

    def _handing_parts(self) -> "_Parts":
        parts = self._running()
        if parts.iterator_delivery is None:
            raise UsageError(f"consumer of {self.group} has a listener, which gets the messages")
        return parts

    def pause(self) -> None:
        """Stop pulling. Pulled messages are still delivered; the assignment is kept."""
        self._running().puller.pause()

    def resume(self) -> None:
        """Pull again after `pause`."""
        self._running().puller.resume()

    async def commit(self) -> None:
        """Commit the offsets now, and wait until they are stored."""
        await self._running().member.save_surely()

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues assigned to this consumer now."""
        return frozenset(self._parts.member.assignments) if self._parts is not None else frozenset()

    @property
    def client_id(self) -> str:
        """The id by which brokers know this consumer."""
        return self._started().shared.client_id

    def _running(self) -> "_Parts":
        parts = self._started()
        parts.shared.check_loop()
        return parts

    def _started(self) -> "_Parts":
        self._raise_failure()
        if self._parts is None or self._stopping is not None:
            raise ClientClosed(f"consumer of {self.group} is not running")
        return self._parts


class _Parts:
    """The parts of a running consumer; the `AssignmentListener` of its group member."""

    def __init__(self, consumer: PushConsumer, shared: SharedClient) -> None:
        options, listener = consumer.options, consumer._listener
        self.shared = shared
        self._consumer = consumer
        self._options = options
        self.tasks = Tasks(consumer.fail)
        ready = Ready()
        self.acknowledger = Acknowledger(consumer.group, shared, options, ready, self.tasks)
        self.member = GroupMember(consumer.group, shared, options, self, self.tasks)
        self.iterator_delivery: IteratorDelivery | None = None
        self.delivery: Delivery = self._delivery(listener, ready)
        self.acknowledger.offer = self.delivery.offer
        self.puller = Puller(
            shared, self.member, self.tasks, self.delivery.offer, self.acknowledger.rates
        )
        self._requests = ConsumerRequests(
            shared, self.member, self.puller, self.acknowledger, listener, self.tasks
        )
        self._iterators: list[MessageIterator | BatchIterator] = []
        self._trace: ConsumeTrace | None = None
        self._is_stopping = False
        self.is_hurried = False

    def _delivery(self, listener: Listener | None, ready: Ready) -> Delivery:
        options = self._options
        if listener is not None and options.orderly:
            return OrderlyWorkers(listener, options, ready, self.acknowledger, self.tasks)
        if listener is not None and listener.is_async:
            return TaskWorkers(listener, options.concurrency, ready, self.acknowledger, self.tasks)
        if listener is not None:
            return ThreadWorkers(
                listener, options.concurrency, ready, self.acknowledger, self._consumer.fail
            )
        if options.orderly:
            self.iterator_delivery = OrderlyIteratorDelivery(
                ready, self.acknowledger, self.tasks,
                suspend_s=options.suspend_s, limit=options.max_reconsume_times,
            )  # fmt: skip
        else:
            self.iterator_delivery = IteratorDelivery(ready, self.acknowledger)
        return self.iterator_delivery

    async def start(self) -> None:
        version = self.shared.now_ms()
        wanted = dict(self._consumer._wanted)
        if not self._options.broadcasting:
            wanted[retry_topic(self._consumer.group)] = "*"
        for topic, expression in wanted.items():
            self.member.subscriptions[topic] = subscribe(topic, expression, version=version)
        await check_expressions(self.shared, self.member, wanted)
        if self._options.trace:
            await self._start_trace()
        self.delivery.start()
        self._requests.start()
        await self.member.join()
        self.tasks.run(self._keep_looking_for_overdue())

    async def _start_trace(self) -> None:
        consumer = self._consumer
        made = ConsumeTrace(consumer.group, consumer._nameserver, consumer._client)
        self._trace = await made.start()
        if self.iterator_delivery is not None:
            self.iterator_delivery.trace = made
        elif consumer._listener is not None:
            consumer._listener.trace = made

    async def announce(self, topics: list[str]) -> None:
        """Announce subscriptions that changed while running."""
        await check_expressions(self.shared, self.member, topics)
        await self.shared.heartbeat_now()
        self.member.balance_soon()

    async def stop(self) -> None:
        self._is_stopping = True
        try:
            await self.member.leave()
        finally:
            self._requests.stop()
            await self.delivery.stop()
            await self.tasks.cancel()
            if self._trace is not None:
                await self._trace.close()
            await self.shared.leave(consumer_group=self._consumer.group)

    # AssignmentListener

    def on_assigned(self, assigned: AssignedQueue) -> None:
        self.puller.start(assigned)

    async def on_revoked(self, assigned: AssignedQueue) -> None:
        self.puller.stop(assigned)
        self.delivery.discard(assigned)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await assigned.wait_free()

    @property
    def _patience_s(self) -> float | None:
        """How long to wait for messages in flight; None: without a limit."""
        if not self._is_stopping:
            return None if self._options.orderly else self._options.release_timeout_s
        if self.iterator_delivery is None:
            return self._options.stop_timeout_s
        return 0 if self.is_hurried else self._options.release_timeout_s

    def committable(self, assigned: AssignedQueue) -> int:
        return assigned.window.committable

    # Iterating

    def messages(self) -> MessageIterator:
        assert self.iterator_delivery is not None
        made = MessageIterator(self.iterator_delivery, auto_ack=self._options.auto_ack)
        self._iterators.append(made)
        return made

    def batches(self, count_max: int) -> BatchIterator:
        assert self.iterator_delivery is not None
        made = BatchIterator(self.iterator_delivery, count_max, auto_ack=self._options.auto_ack)
        self._iterators.append(made)
        return made

    def leave_loops(self, *, is_done: bool) -> None:
        """Acknowledge the messages delivered last if the loops ended without an exception;
        otherwise do not wait for them."""
        self.is_hurried = not is_done
        for iterator in self._iterators if is_done else ():
            iterator.settle()

    def is_iterating(self, task: "asyncio.Task[object] | None") -> bool:
        """Whether a task runs a loop: a stop from inside the loop must not wait for itself."""
        return any(iterator.task is task for iterator in self._iterators)

    # Taking too long

    async def _keep_looking_for_overdue(self) -> None:
        limit_s = self._options.consume_timeout_s
        while True:
            await asyncio.sleep(min(limit_s / 4, _OVERDUE_CHECK_S))
            before = monotonic() - limit_s
            for part, message in self.delivery.overdue(before):
                self.acknowledger.fail(part.assigned, message, message.verdict or GROWING)
