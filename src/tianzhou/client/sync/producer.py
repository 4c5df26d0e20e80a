"""The blocking producer: the same methods as `tianzhou.client.Producer`.

    with Producer("orders", nameserver="10.0.0.1:9876") as producer:
        result = producer.send(Message("paid", b"..."))

Many threads may use it at the same time.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from tianzhou.base.kinds import Bytes
from tianzhou.client.aio import producer as aio
from tianzhou.client.aio.transactions import Transaction as AsyncTransaction
from tianzhou.client.core.replying import Reply
from tianzhou.client.core.routing import Selector
from tianzhou.client.core.send_request import SendResult
from tianzhou.client.core.transaction import TransactionState
from tianzhou.client.options import ClientOptions, ProducerOptions
from tianzhou.client.sync.runner import ChangesNameServers, Runner, runner
from tianzhou.record.message import Message, MessageView
from tianzhou.wire.queues import MessageQueue

_CLIENT: Final = ClientOptions()
_OPTIONS: Final = ProducerOptions()

CheckTransaction = Callable[[MessageView], TransactionState]
"""Returns the outcome of the transaction of a message. It runs in a thread and may block."""


class Producer(ChangesNameServers[aio.Producer]):
    """Send messages to topics, from any thread.

    Arguments and errors are those of `tianzhou.client.Producer`.

        with Producer("orders", nameserver="10.0.0.1:9876") as producer:
            producer.send(Message("paid", b"..."))
    """

    def __init__(
        self,
        group: str,
        *,
        nameserver: str | None = None,
        options: ProducerOptions = _OPTIONS,
        client: ClientOptions = _CLIENT,
        check: CheckTransaction | None = None,
    ) -> None:
        """Create a producer; it connects at the first send.

        `check` runs in a thread and may block. Raises UsageError for invalid arguments.
        """
        self._inner = aio.Producer(
            group,
            nameserver=nameserver,
            options=options,
            client=client,
            check=None if check is None else _in_thread(check),
        )
        self._runner = runner()
        self._in_flight = threading.BoundedSemaphore(options.in_flight_count_max)

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def group(self) -> str:
        """The name of the producer group."""
        return self._inner.group

    @property
    def options(self) -> ProducerOptions:
        """The options of this producer."""
        return self._inner.options

    @property
    def client_id(self) -> str:
        """The id by which brokers know this process. Raises ClientClosed unless it runs."""
        return self._inner.client_id

    def start(self) -> Self:
        """Start the producer; a `with` block does this.

        Raises UsageError if it was started before.
        """
        self._runner.run(self._inner.start())
        return self

    def close(self) -> None:
        """Wait for in-flight sends until their deadlines, and disconnect; new sends are rejected.

        A second call has no effect.
        """
        self._runner.run(self._inner.close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: Selector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send a message and return where it was stored.

        The message goes to `queue`, to the queue that `select` returns, to the queue of its
        sharding key, or else to the next queue in turn. `timeout_s` limits all attempts together.
        Raises SendFailed or SendTimeout after the last attempt; raises errors that no retry can fix
        at once, such as MessageIllegal and TopicNotFound.

            result = producer.send(Message("orders", b"paid", keys="T1"))
        """
        return self._runner.run(
            self._inner.send(message, queue=queue, select=select, timeout_s=timeout_s)
        )

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: Selector | None = None,
        timeout_s: float | None = None,
    ) -> "concurrent.futures.Future[SendResult]":
        """Start a send and return the future of its result; block while too many are in flight.

        Arguments and errors of the future are those of `send`. It does not raise TooManyInFlight.
        """
        self._in_flight.acquire()
        future = self._runner.submit(
            self._inner.send(message, queue=queue, select=select, timeout_s=timeout_s)
        )
        future.add_done_callback(self._finish_send)
        return future

    def _finish_send(self, _future: "concurrent.futures.Future[SendResult]") -> None:
        self._in_flight.release()

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: Selector | None = None,
    ) -> None:
        """Send a message without a response: you do not learn whether it was stored.

        Raises Unreachable, NoRoute and TopicNotFound.
        """
        self._runner.run(self._inner.send_oneway(message, queue=queue, select=select))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """Send several messages of one topic in one request: all are stored, or none.

        Returns a result for each message, in their order. Raises UsageError for messages that
        cannot be in one batch, such as delayed ones, and otherwise what `send` raises.

            producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])
        """
        return self._runner.run(self._inner.send_batch(messages, queue=queue, timeout_s=timeout_s))

    def transaction(self, message: Message) -> "Transaction":
        """Return a transaction: its message becomes visible when the block ends normally.

        An exception in the block rolls the message back. Raises UsageError for a delayed message.

            with producer.transaction(Message("orders", b"paid")):
                database.commit()
        """
        return Transaction(self._inner.transaction(message), self._runner)

    def request(self, message: Message, *, timeout_s: float = 3.0) -> Reply:
        """Send a message and wait for the reply of a consumer.

        Raises RequestTimeout if no consumer replied within `timeout_s`, UsageError for an invalid
        or infinite timeout, and what `send` raises.

            reply = producer.request(Message("prices", b"T1"), timeout_s=5)
        """
        return self._runner.run(self._inner.request(message, timeout_s=timeout_s))

    def reply(
        self, request: MessageView, body: Bytes, *, properties: Mapping[str, str] | None = None
    ) -> SendResult:
        """Reply to a message that was sent with `request`.

        `properties` are added to the reply. Raises UsageError if the message is not a request, and
        what `send` raises.
        """
        return self._runner.run(self._inner.reply(request, body, properties=properties))

    def recall(self, topic: str, handle: str | None) -> str:
        """Cancel a scheduled message before delivery.

        `handle` is the `recall_handle` of its `SendResult`. Returns the id of the message. Raises
        UsageError for an invalid handle, and RemoteError if it is too late.
        """
        return self._runner.run(self._inner.recall(topic, handle))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the writable queues of a topic, in their order. Raises TopicNotFound."""
        return self._runner.run(self._inner.queues(topic))

    def flush(self) -> None:
        """Send open batches, and wait for all sends that are in flight now. Raises ClientClosed."""
        self._runner.run(self._inner.flush())


class Transaction:
    """One message and the work that belongs to it, created by `Producer.transaction`.

    The end of the block commits the message, an exception in the block rolls it back. Raises
    TransactionUndecided if the broker did not confirm the outcome and there is no check callback.

        with producer.transaction(Message("orders", b"paid")):
            database.commit()
    """

    def __init__(self, inner: AsyncTransaction, running: Runner) -> None:
        self._inner = inner
        self._runner = running

    @property
    def message(self) -> Message:
        """The message of the transaction."""
        return self._inner.message

    @property
    def half(self) -> SendResult:
        """The result of storing the invisible message. Raises UsageError before the block."""
        return self._inner.half

    @property
    def state(self) -> TransactionState:
        """The outcome; UNKNOWN until the transaction is committed or rolled back."""
        return self._inner.state

    def leave_undecided(self) -> None:
        """Leave the outcome to the check callback. Raises UsageError if there is none."""
        self._inner.leave_undecided()

    def commit(self) -> None:
        """Commit before the end of the block.

        Raises UsageError if the transaction was decided before, and TransactionUndecided.
        """
        self._runner.run(self._inner.commit())

    def rollback(self) -> None:
        """Roll back before the end of the block.

        Raises UsageError if the transaction was decided before, and TransactionUndecided.
        """
        self._runner.run(self._inner.rollback())

    def __enter__(self) -> Self:
        self._runner.run(self._inner.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runner.run(self._inner.__aexit__(kind, error, trace))


def _in_thread(check: CheckTransaction) -> Callable[[MessageView], Awaitable[TransactionState]]:
    """Run the check in a thread: the event loop of all blocking clients must not block."""
    return lambda message: asyncio.to_thread(check, message)
