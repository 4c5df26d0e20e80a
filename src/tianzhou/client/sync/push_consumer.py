"""The blocking push consumer: the same methods as `tianzhou.client.PushConsumer`.

    with PushConsumer("stock", nameserver="10.0.0.1:9876", subscribe={"orders": "*"}) as consumer:
        for message in consumer:
            ...

Listeners that are functions run in threads, as with the asyncio consumer. Any thread may
acknowledge messages.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Final, Self, TypeVar

from tianzhou.base.errors import UsageError
from tianzhou.client.aio import push_consumer as aio
from tianzhou.client.consume.iterator import IteratorDelivery
from tianzhou.client.consume.listener import BatchListener, MessageListener, Outcome
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.received import AckHandle, ReceivedMessage
from tianzhou.client.core.subscription import Sql92
from tianzhou.client.options import ClientOptions
from tianzhou.client.sync.runner import ChangesNameServers, Runner, runner
from tianzhou.client.termination import on_terminate
from tianzhou.wire.queues import MessageQueue

_DEFAULTS: Final = ConsumerOptions()
_CLIENT: Final = ClientOptions()

AHEAD_S: Final = 0.01
AHEAD_MAX: Final = 64
"""A `for` loop fetches the messages it will need for AHEAD_S seconds at once: switching threads for
each message would cost more than processing most of them. A revoked queue waits for messages that
were fetched, so the time is short."""

T = TypeVar("T")


class PushConsumer(ChangesNameServers[aio.PushConsumer]):
    """Consume messages with a listener or a `for` loop, from any thread.

    Arguments and errors are those of `tianzhou.client.PushConsumer`.

        with PushConsumer("stock", subscribe={"orders": "*"}) as consumer:
            for message in consumer:
                print(message.body)
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

        `subscribe` maps topics to expressions: `*`, tags such as `paid || sent`, or an `Sql92`.
        Raises UsageError for invalid arguments.
        """
        self._inner = aio.PushConsumer(
            group, nameserver=nameserver, subscribe=subscribe, options=options, client=client
        )
        self._runner = runner()
        self._outbox: _Outbox | None = None

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def group(self) -> str:
        """The name of the consumer group."""
        return self._inner.group

    @property
    def options(self) -> ConsumerOptions:
        """The options of this consumer."""
        return self._inner.options

    @property
    def client_id(self) -> str:
        """The id by which brokers know this consumer. Raises ClientClosed unless it runs."""
        return self._inner.client_id

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues assigned to this consumer now."""
        return self._do(lambda: self._inner.assignment)

    def subscribe(self, topic: str, expression: str | Sql92 = "*") -> None:
        """Subscribe to a topic, before the start or while the consumer runs.

        `expression` is `*` for all messages, tags (`"paid || sent"`), or an `Sql92`. All members of
        a group must have the same subscriptions. Raises UsageError for an invalid expression.
        """
        self._do(lambda: self._inner.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """Remove the subscription to a topic; without one, this has no effect."""
        self._do(lambda: self._inner.unsubscribe(topic))

    def listen(self, listener: MessageListener[Outcome]) -> MessageListener[Outcome]:
        """Set the listener, a function or coroutine function called with each message.

        Functions run in threads. An exception, or `ConsumeResult.LATER`, makes the broker redeliver
        the message. Raises UsageError if there is a listener already, or the consumer was started.

            @consumer.listen
            def on_message(message): ...
        """
        return self._inner.listen(listener)

    def listen_batches(self, listener: BatchListener[Outcome]) -> BatchListener[Outcome]:
        """Set a listener that is called with lists of messages of one queue.

        A list has up to `ConsumerOptions.batch_size` messages, which succeed or fail together.
        Raises UsageError like `listen`.

            @consumer.listen_batches
            def on_messages(messages): ...
        """
        return self._inner.listen_batches(listener)

    # Life

    def start(self) -> Self:
        """Join the group and start pulling; a `with` block does this.

        Raises UsageError without a subscription or if the consumer was started before, and
        ClientError if brokers reject a subscription.
        """
        self._runner.run(self._inner.start())
        return self

    def stop(self) -> None:
        """Wait for in-flight messages, commit offsets and leave the group.

        In a listener it does not wait, because the listener's own message is in flight. Re-raises
        the error that stopped the consumer, if any.
        """
        self._runner.run(self._inner.stop())

    def closed(self, timeout_s: float | None = None) -> None:
        """Wait until the consumer has stopped.

        Re-raises the error that stopped the consumer; raises TimeoutError after `timeout_s`
        seconds.
        """
        self._runner.run(self._inner.closed(), timeout_s)

    def run(self) -> None:
        """Start, consume until stopped, interrupted or terminated by SIGTERM, and stop.

        SIGTERM is handled in the main thread, unless the program has a handler of its own:
        in-flight messages are finished, offsets committed, the group left, and `run` returns.
        """
        wanted = asyncio.Event()
        with on_terminate(lambda: self._runner.call_soon(wanted.set)), self:
            self._runner.run(self._inner.closed_or(wanted))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._outbox is not None and error is None:
            self._outbox.settle_iterators()
        self._runner.run(self._inner.__aexit__(kind, error, trace))

    def pause(self) -> None:
        """Stop pulling. Pulled messages are still delivered; the assignment is kept."""
        self._do(self._inner.pause)

    def resume(self) -> None:
        """Start pulling again after `pause`."""
        self._do(self._inner.resume)

    def commit(self) -> None:
        """Commit the offsets now and wait for the responses of the brokers.

        A failed commit is logged and retried in the background.
        """
        self._runner.run(self._inner.commit())

    # Iterating

    def __iter__(self) -> Iterator[ReceivedMessage]:
        loop = self._new_loop()
        while messages := loop.next(None):
            yield from loop.each(messages)

    def batches(self, count_max: int = 32) -> Iterator[list[ReceivedMessage]]:
        """Iterate over lists of up to `count_max` messages, each list from one queue.

        Raises UsageError for a count below 1, or if the consumer has a listener.

            for messages in consumer.batches(100): ...
        """
        if count_max < 1:
            raise UsageError(f"count_max must be at least 1, got {count_max}")
        loop = self._new_loop()
        while messages := loop.next(count_max):
            yield messages

    def _new_loop(self) -> "_Loop":
        iterator_delivery = self._do(self._inner.iterator_delivery)
        if self._outbox is None:
            self._outbox = _Outbox(self._runner)
        loop = _Loop(iterator_delivery, self._runner, self._outbox, auto_ack=self.options.auto_ack)
        self._outbox.iterators.append(loop)
        return loop

    def _do(self, work: Callable[[], T]) -> T:
        """Run a function in the thread that owns the consumer."""

        async def do() -> T:
            return work()

        return self._runner.run(do())


class _Outbox:
    """Acknowledgements of other threads on their way to the event loop, in groups."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._pending: deque[tuple[AckHandle, ReceivedMessage, int | None]] = deque()
        self._is_scheduled = False
        self.iterators: list[_Loop] = []

    def put(self, inner: AckHandle, message: ReceivedMessage, delay_level: int | None) -> None:
        self._pending.append((inner, message, delay_level))
        if not self._is_scheduled:
            self._is_scheduled = True
            self._runner.call_soon(self._deliver)

    def give_back(
        self, iterator_delivery: IteratorDelivery, messages: list[ReceivedMessage]
    ) -> None:
        for message in messages:
            ack_handle = message.ack_handle
            assert isinstance(ack_handle, _OutboxAckHandle)
            message.ack_handle = ack_handle.inner
        self._runner.call_soon(lambda: iterator_delivery.give_back(messages))

    def _deliver(self) -> None:
        self._is_scheduled = False  # first, so that a later `put` schedules another call
        while self._pending:
            inner, message, delay_level = self._pending.popleft()
            if delay_level is None:
                inner.ack(message)
            else:
                inner.retry(message, delay_level)

    def settle_iterators(self) -> None:
        """Acknowledge the messages delivered last, after loops ended without an exception."""
        for iterator in self.iterators:
            iterator.settle()
        self._runner.run(asyncio.sleep(0))  # after the acknowledgements that are queued


class _OutboxAckHandle:
    """Acknowledge messages from any thread."""

    def __init__(self, inner: AckHandle, outbox: _Outbox) -> None:
        self.inner = inner
        self._outbox = outbox

    def ack(self, message: ReceivedMessage) -> None:
        self._outbox.put(self.inner, message, None)

    def retry(self, message: ReceivedMessage, delay_level: int) -> None:
        self._outbox.put(self.inner, message, delay_level)


class _Loop:
    """One `for` loop. Owner: its thread."""

    def __init__(
        self,
        iterator_delivery: IteratorDelivery,
        runner: Runner,
        outbox: _Outbox,
        *,
        auto_ack: bool,
    ) -> None:
        self._delivery = iterator_delivery
        self._runner = runner
        self._outbox = outbox
        self._auto_ack = auto_ack
        self._last: list[ReceivedMessage] = []
        self._ahead = 1
        self._started_s = time.monotonic()

    def next(self, count_max: int | None) -> list[ReceivedMessage]:
        """Return messages of one queue; empty if stopped. None adapts the count to the loop."""
        count = count_max or self._next_count()
        self.settle()
        messages = self._runner.run(self._delivery.take(count))
        for message in messages:
            message.ack_handle = _OutboxAckHandle(message.ack_handle, self._outbox)
        self._started_s = time.monotonic()
        if self._auto_ack:
            self._last = messages
        self._ahead = max(1, len(messages))
        return messages

    def each(self, messages: list[ReceivedMessage]) -> Iterator[ReceivedMessage]:
        """Yield messages one by one: asking for the next acknowledges the previous one."""
        count = 0
        try:
            for message in messages:
                count += 1
                if self._auto_ack:
                    self._last = [message]
                yield message
                self.settle()
        finally:
            if count < len(messages):  # the loop was left
                self._outbox.give_back(self._delivery, messages[count:])

    def _next_count(self) -> int:
        """Estimate how many messages the loop needs next."""
        each_s = (time.monotonic() - self._started_s) / self._ahead
        return max(1, min(AHEAD_MAX, self._ahead * 2, int(AHEAD_S / max(each_s, 1e-6))))

    def settle(self) -> None:
        last, self._last = self._last, []
        for message in last:
            message.ack()
