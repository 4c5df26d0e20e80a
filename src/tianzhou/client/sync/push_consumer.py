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
from tianzhou.client.aio.iterator_delivery import IteratorDelivery
from tianzhou.client.aio.listener import BatchListener, MessageListener, Outcome
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.received import AckHandle, ReceivedMessage
from tianzhou.client.core.subscription import Sql92
from tianzhou.client.options import ClientOptions
from tianzhou.client.sync.runner import Runner, runner
from tianzhou.client.termination import on_terminate
from tianzhou.wire.queues import MessageQueue

_DEFAULTS: Final = ConsumerOptions()
_CLIENT: Final = ClientOptions()

AHEAD_S: Final = 0.01
AHEAD_MAX: Final = 64
"""A `for` loop takes as many messages at once as it will need for AHEAD_S seconds: switching
threads for each message would cost more than processing most of them, but a revoked queue waits for
those that were taken."""

T = TypeVar("T")


class PushConsumer:
    """Consume messages with a listener or a `for` loop, from any thread.

    Arguments are those of `tianzhou.client.PushConsumer`.

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
        self._inner = aio.PushConsumer(
            group, nameserver=nameserver, subscribe=subscribe, options=options, client=client
        )
        self._runner = runner()
        self._outbox: _Outbox | None = None

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def group(self) -> str:
        return self._inner.group

    @property
    def options(self) -> ConsumerOptions:
        return self._inner.options

    @property
    def client_id(self) -> str:
        """The id by which brokers know this consumer."""
        return self._inner.client_id

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues assigned to this consumer now."""
        return self._do(lambda: self._inner.assignment)

    def subscribe(self, topic: str, expression: str | Sql92 = "*") -> None:
        """Subscribe to a topic: `*`, tags (`"paid || sent"`), or an `Sql92`."""
        self._do(lambda: self._inner.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        self._do(lambda: self._inner.unsubscribe(topic))

    def listen(self, listener: MessageListener[Outcome]) -> MessageListener[Outcome]:
        """Set the listener that is called with each message. Usable as a decorator."""
        return self._inner.listen(listener)

    def listen_batches(self, listener: BatchListener[Outcome]) -> BatchListener[Outcome]:
        """Set a listener that is called with lists of up to `batch_size` messages of one queue."""
        return self._inner.listen_batches(listener)

    # Life

    def start(self) -> Self:
        """Join the group and start pulling. Raises UsageError and ClientError."""
        self._runner.run(self._inner.start())
        return self

    def stop(self) -> None:
        """Wait for in-flight messages, commit offsets and leave the group. Re-raises the error
        that stopped the consumer, if any. Called in a listener, it does not wait, because the
        message of the listener is in flight."""
        self._runner.run(self._inner.stop())

    def closed(self, timeout_s: float | None = None) -> None:
        """Wait until the consumer has stopped. Re-raises the error that stopped it; raises
        TimeoutError after `timeout_s` seconds."""
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
        self._do(self._inner.resume)

    def commit(self) -> None:
        """Commit the offsets now, and wait until they are stored."""
        self._runner.run(self._inner.commit())

    # Iterating

    def __iter__(self) -> Iterator[ReceivedMessage]:
        handing = self._handing()
        while messages := handing.next(None):
            yield from handing.each(messages)

    def batches(self, count_max: int = 32) -> Iterator[list[ReceivedMessage]]:
        """Iterate over lists of up to `count_max` messages, each list of one queue."""
        if count_max < 1:
            raise UsageError(f"batches of {count_max} messages; at least 1")
        handing = self._handing()
        while messages := handing.next(count_max):
            yield messages

    def _handing(self) -> "_Handing":
        iterator_delivery = self._do(self._inner.iterator_delivery)
        if self._outbox is None:
            self._outbox = _Outbox(self._runner)
        made = _Handing(
            iterator_delivery, self._runner, self._outbox, auto_ack=self.options.auto_ack
        )
        self._outbox.iterators.append(made)
        return made

    def _do(self, work: Callable[[], T]) -> T:
        """Run a function in the thread that owns the consumer."""

        async def do() -> T:
            return work()

        return self._runner.run(do())


class _Outbox:
    """Acknowledgements of other threads on their way to the event loop, in groups."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._said: deque[tuple[AckHandle, ReceivedMessage, int | None]] = deque()
        self._is_going = False
        self.iterators: list[_Handing] = []

    def put(self, inner: AckHandle, message: ReceivedMessage, delay_level: int | None) -> None:
        self._said.append((inner, message, delay_level))
        if not self._is_going:
            self._is_going = True
            self._runner.call_soon(self._deliver)

    def give_back(
        self, iterator_delivery: IteratorDelivery, messages: list[ReceivedMessage]
    ) -> None:
        for message in messages:
            ack_handle = message.ack_handle
            assert isinstance(ack_handle, _Posting)
            message.ack_handle = ack_handle.inner
        self._runner.call_soon(lambda: iterator_delivery.give_back(messages))

    def _deliver(self) -> None:
        self._is_going = False  # first: what comes after the last look goes on its own
        while self._said:
            inner, message, delay_level = self._said.popleft()
            if delay_level is None:
                inner.ack(message)
            else:
                inner.retry(message, delay_level)

    def settle_iterators(self) -> None:
        """Acknowledge the messages delivered last, after loops ended without an exception."""
        for iterator in self.iterators:
            iterator.settle()
        self._runner.run(asyncio.sleep(0))  # behind everything that was put


class _Posting:
    """Acknowledge messages from any thread."""

    def __init__(self, inner: AckHandle, outbox: _Outbox) -> None:
        self.inner = inner
        self._outbox = outbox

    def ack(self, message: ReceivedMessage) -> None:
        self._outbox.put(self.inner, message, None)

    def retry(self, message: ReceivedMessage, delay_level: int) -> None:
        self._outbox.put(self.inner, message, delay_level)


class _Handing:
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
        self._began_s = time.monotonic()

    def next(self, count_max: int | None) -> list[ReceivedMessage]:
        """Return messages of one queue; empty if stopped. None adapts the count to the loop."""
        count = count_max or self._pace()
        self.settle()
        messages = self._runner.run(self._delivery.take(count))
        for message in messages:
            message.ack_handle = _Posting(message.ack_handle, self._outbox)
        self._began_s = time.monotonic()
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

    def _pace(self) -> int:
        """Estimate how many messages the loop needs next."""
        each_s = (time.monotonic() - self._began_s) / self._ahead
        return max(1, min(AHEAD_MAX, self._ahead * 2, int(AHEAD_S / max(each_s, 1e-6))))

    def settle(self) -> None:
        last, self._last = self._last, []
        for message in last:
            message.ack()
