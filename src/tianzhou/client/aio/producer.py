"""The producer.

Many tasks of one event loop may send at once. Each send has one deadline for all its attempts, uses
another broker when one fails, and refreshes the route when a response shows that it is stale. A
message may be stored twice if a response is lost; both copies have one unique id.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import Bytes
from tianzhou.client.aio.layered_sender import SendLayers
from tianzhou.client.aio.sender import Sender
from tianzhou.client.aio.transactions import CheckTransaction, Outcomes, Transaction
from tianzhou.client.aio.waiting import PendingReplies
from tianzhou.client.core.replying import Reply, reply_message
from tianzhou.client.core.routing import Selector, at_address, check_message
from tianzhou.client.core.send_request import SendResult, check_batchable
from tianzhou.client.errors import ClientClosed
from tianzhou.client.options import ClientOptions, ProducerOptions, checked_group, client_repr
from tianzhou.client.session.joining import ChangesNameServers
from tianzhou.client.session.shared_client import SharedClient
from tianzhou.client.tracing import SendTrace, untraced_group
from tianzhou.record.message import Message, MessageView
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.queues import MessageQueue

_CLIENT: Final = ClientOptions()
_OPTIONS: Final = ProducerOptions()


class Producer(ChangesNameServers):
    """Send messages to topics.

    Use it in an `async with` block, or call `start` and `close`:

        async with Producer("orders", nameserver="10.0.0.1:9876") as producer:
            result = await producer.send(Message("paid", b"...", keys="T1"))

    Owner: the event loop in which it was started.
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

        `group` names the producers that can decide each other's transactions. `nameserver` is
        `host:port;host:port`; None reads it from the environment. `check` is called with the
        message of a transaction whose outcome the broker does not know; it returns the
        `TransactionState`. Raises UsageError for invalid arguments.
        """
        if check is not None and not callable(check):
            raise UsageError(f"check {check!r} is not a function or coroutine function")
        self.group = checked_group(group)
        self.options = options
        self._nameserver = nameserver
        self._client = client
        self._check = check
        self._sender: Sender | None = None
        self._layers = SendLayers(self.group, options, client)
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "not started" if self._sender is None else "running"
        if self._closing is not None:
            state = "closed" if self._closing.done() else "closing"
        return client_repr(self, state, group=self.group, nameserver=self._nameserver)

    async def start(self) -> Self:
        """Start the producer. Raises UsageError if it was started before."""
        if self._sender is not None:
            raise UsageError("a producer is started once")
        shared = self._joined = SharedClient.join(self._nameserver, self._client)
        async with contextlib.AsyncExitStack() as failing:
            failing.push_async_callback(shared.leave)
            trace = await self._traced() if self.options.trace else None
            if trace is not None:
                failing.push_async_callback(trace.close)
            sender = self._layers.sender(shared, trace)
            self._outcomes = Outcomes(sender, self._check)
            failing.callback(self._outcomes.close)
            self._replies = PendingReplies(shared)
            failing.push_async_callback(shared.add_producer(sender.group))
            self._ending = failing.pop_all()
        self._sender = sender
        return self

    async def _traced(self) -> SendTrace:
        group, client = untraced_group(self.group, "PRODUCE"), replace(self._client, namespace="")
        untraced = Producer(group, nameserver=self._nameserver, client=client)
        topic, names = self.options.trace_topic, self._layers.names
        return await SendTrace(self.group, topic, untraced, names).start()

    async def close(self) -> None:
        """Wait for in-flight sends until their deadlines, and disconnect; new sends are rejected.

        A second call has no effect.
        """
        if self._sender is None or (self._closing is not None and self._closing.done()):
            return
        self._sender.shared.check_loop()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(self._sender))
        await asyncio.shield(self._closing)  # one cancelled caller does not cancel the others

    async def _close(self, sender: Sender) -> None:
        await sender.close()
        self._replies.close()
        await self._ending.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _running(self) -> Sender:
        sender = self._sender
        if sender is None or self._closing is not None:
            return self._started()  # raises, and says why
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not sender.engine.loop:
            sender.shared.check_loop()  # raises, and says why
        return sender

    def _started(self) -> Sender:
        if self._closing is not None:
            raise ClientClosed("the producer is closed")
        if self._sender is None:
            raise ClientClosed(
                "the producer was not started: use it in a `with` block, or call start()"
            )
        return self._sender

    @property
    def client_id(self) -> str:
        """The id by which brokers know this process. Raises ClientClosed unless it runs."""
        return self._started().shared.client_id

    # Sending

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: Selector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send a message and return where it was stored. Waits while too many are in flight.

        The message goes to `queue`, to the queue that `select` returns, to the queue of its
        sharding key, or else to the next queue in turn. `timeout_s` limits all attempts together.
        Raises SendFailed or SendTimeout after the last attempt; raises errors that no retry can
        fix at once, such as MessageIllegal and TopicNotFound.

            result = await producer.send(Message("orders", b"paid", keys="T1"))
        """
        sender = self._running()
        if sender.in_flight.is_full:
            await sender.in_flight.wait_for_capacity()
            self._running()
        return await sender.send(message, queue, select, timeout_s)

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: Selector | None = None,
        timeout_s: float | None = None,
    ) -> "asyncio.Future[SendResult]":
        """Start a send and return the future of its result.

        Arguments and errors of the future are those of `send`. Raises TooManyInFlight instead of
        waiting.
        """
        return self._running().send(message, queue, select, timeout_s)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: Selector | None = None,
    ) -> None:
        """Send a message without a response: you do not learn whether it was stored.

        Waits only for a connection, and while the broker does not read. Raises Unreachable,
        NoRoute and TopicNotFound.
        """
        await self._running().send_oneway(message, queue, select)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """Send several messages of one topic in one request: all are stored, or none.

        Returns a result for each message, in their order. Raises UsageError for messages that
        cannot be in one batch, such as delayed ones, and otherwise what `send` raises.

            await producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])
        """
        sender = self._running()
        check_batchable(messages)
        if sender.in_flight.is_full:
            await sender.in_flight.wait_for_capacity()
            self._running()
        return await sender.send_batch(messages, queue, timeout_s)

    async def flush(self) -> None:
        """Send open batches, and wait for all sends that are in flight now. Raises ClientClosed."""
        await self._running().flush()

    # Transactions

    def transaction(self, message: Message) -> Transaction:
        """Return a transaction: its message becomes visible when the block ends normally.

        An exception in the block rolls the message back. Raises UsageError for a delayed message.

            async with producer.transaction(Message("orders", b"paid")):
                await database.commit()
        """
        sender = self._started()
        check_message(message)
        if message.is_delayed:
            raise UsageError("a transactional message can't be delayed as well")
        return Transaction(message, self._outcomes, sender)

    # Request and reply

    async def request(self, message: Message, *, timeout_s: float = 3.0) -> Reply:
        """Send a message and wait for the reply of a consumer.

        Raises RequestTimeout if no consumer replied within `timeout_s`, UsageError for an invalid
        or infinite timeout, and what `send` raises.

            reply = await producer.request(Message("prices", b"T1"), timeout_s=5)
        """
        sender = self._running()
        check_message(message)
        return await self._replies.request(
            lambda added: sender.send_with(message, added, timeout_s=timeout_s), timeout_s
        )

    async def reply(
        self, request: MessageView, body: Bytes, *, properties: Mapping[str, str] | None = None
    ) -> SendResult:
        """Reply to a message that was sent with `request`.

        `properties` are added to the reply. Raises UsageError if the message is not a request, and
        what `send` raises.
        """
        message, added = reply_message(request, body, properties)
        # The requester certainly has a connection to the broker that stored its request.
        stored_at = "{}:{}".format(*request.store_host)
        return await self._running().send_with(
            message, added, code=RequestCode.SEND_REPLY_MESSAGE_V2, pick=at_address(stored_at)
        )

    async def recall(self, topic: str, handle: str | None) -> str:
        """Cancel a scheduled message before delivery.

        `handle` is the `recall_handle` of its `SendResult`. Returns the id of the message. Raises
        UsageError for an invalid handle, and RemoteError if it is too late.

            sent = await producer.send(Message("orders", b"unpaid", delay=timedelta(minutes=30)))
            await producer.recall("orders", sent.recall_handle)
        """
        return await self._running().recall(topic, handle)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the writable queues of a topic, in their order. Raises TopicNotFound."""
        return await self._running().queues(topic)
