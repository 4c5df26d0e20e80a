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
from tianzhou.client.aio.transaction import Transaction as AsyncTransaction
from tianzhou.client.aio.transaction import TransactionState
from tianzhou.client.core.replying import Reply
from tianzhou.client.core.selection import Selector
from tianzhou.client.core.sending import SendResult
from tianzhou.client.options import ClientOptions, ProducerOptions
from tianzhou.client.sync.runner import Runner, runner
from tianzhou.record.message import Message, MessageView
from tianzhou.wire.queues import MessageQueue

_CLIENT: Final = ClientOptions()
_OPTIONS: Final = ProducerOptions()

CheckTransaction = Callable[[MessageView], TransactionState]
"""Returns the outcome of the transaction of a message. It runs in a thread and may block."""


class Producer:
    """Send messages to topics, from any thread. Arguments are those of `tianzhou.client.Producer`.

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
        self._inner = aio.Producer(
            group, nameserver=nameserver, options=options, client=client,
            check=None if check is None else _in_thread(check),
        )  # fmt: skip
        self._runner = runner()
        self._room = threading.BoundedSemaphore(options.in_flight_count_max)

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def group(self) -> str:
        return self._inner.group

    @property
    def options(self) -> ProducerOptions:
        return self._inner.options

    @property
    def client_id(self) -> str:
        return self._inner.client_id

    def start(self) -> Self:
        self._runner.run(self._inner.start())
        return self

    def close(self) -> None:
        """Wait for sends in flight, then disconnect."""
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

        See `tianzhou.client.Producer.send` for arguments and errors.
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
        """Start a send and return the future of its result. Blocks while too many are in flight."""
        self._room.acquire()
        future = self._runner.submit(
            self._inner.send(message, queue=queue, select=select, timeout_s=timeout_s)
        )
        future.add_done_callback(self._landed)
        return future

    def _landed(self, _future: "concurrent.futures.Future[SendResult]") -> None:
        self._room.release()

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: Selector | None = None,
    ) -> None:
        """Send a message without a response: you do not learn whether it was stored."""
        self._runner.run(self._inner.send_oneway(message, queue=queue, select=select))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """Send several messages of one topic in one request: all are stored, or none."""
        return self._runner.run(self._inner.send_batch(messages, queue=queue, timeout_s=timeout_s))

    def transaction(self, message: Message) -> "Transaction":
        """Return a transaction: its message becomes visible when the block ends normally."""
        return Transaction(self._inner.transaction(message), self._runner)

    def request(self, message: Message, *, timeout_s: float = 3.0) -> Reply:
        """Send a message and wait for the reply of a consumer. Raises RequestTimeout."""
        return self._runner.run(self._inner.request(message, timeout_s=timeout_s))

    def reply(
        self, request: MessageView, body: Bytes, *, properties: Mapping[str, str] | None = None
    ) -> SendResult:
        """Reply to a message that was sent with `request`."""
        return self._runner.run(self._inner.reply(request, body, properties=properties))

    def recall(self, topic: str, handle: str | None) -> str:
        """Cancel a scheduled message before delivery, using the `recall_handle` of its result."""
        return self._runner.run(self._inner.recall(topic, handle))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the writable queues of a topic, in their order. Raises TopicNotFound."""
        return self._runner.run(self._inner.queues(topic))

    def flush(self) -> None:
        """Send open batches, and wait for all sends that are in flight now."""
        self._runner.run(self._inner.flush())


class Transaction:
    """One message and the work that belongs to it, created by `Producer.transaction`.

    with producer.transaction(Message("orders", b"paid")):
        database.commit()
    """

    def __init__(self, inner: AsyncTransaction, running: Runner) -> None:
        self._inner = inner
        self._runner = running

    @property
    def message(self) -> Message:
        return self._inner.message

    @property
    def half(self) -> SendResult:
        """The result of storing the invisible message."""
        return self._inner.half

    @property
    def state(self) -> TransactionState:
        return self._inner.state

    def leave_undecided(self) -> None:
        """Leave the outcome to the check callback. Raises UsageError if there is none."""
        self._inner.leave_undecided()

    def commit(self) -> None:
        self._runner.run(self._inner.commit())

    def rollback(self) -> None:
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
