"""Everything between `Producer.send` and the send engine: ids, limits, batching, compression."""

import asyncio
from collections.abc import Mapping, Sequence
from time import time_ns

from tianzhou.base.errors import TianzhouError
from tianzhou.client.aio.batcher import Batcher, PendingMessage
from tianzhou.client.aio.send_engine import SendEngine
from tianzhou.client.aio.waiting import InFlightLimiter
from tianzhou.client.core.namespace import Namespace
from tianzhou.client.core.routing import Fixed, Pick, Selector, pick_of, pick_of_batch
from tianzhou.client.core.send import Failure, OnSent
from tianzhou.client.core.send_request import (
    Batch,
    MessageEncoder,
    SendResult,
    batch_request,
    broker_of_handle,
    kind_of,
)
from tianzhou.client.identity import unique_ids
from tianzhou.client.options import ProducerOptions, checked_timeout
from tianzhou.client.session.shared_client import SharedClient
from tianzhou.client.tracing import SendTrace
from tianzhou.record import flags, names
from tianzhou.record.message import Message
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_send import RecallMessageRequest, RecallMessageResponse
from tianzhou.wire.queues import MessageQueue


class Sender:
    """Encode messages, limit the sends in flight, and set the results.

    Owner: the event loop.
    """

    names = Namespace()
    """The namespace of the producer: none."""

    def __init__(
        self, shared: SharedClient, options: ProducerOptions, group: str, trace: SendTrace | None
    ) -> None:
        self.shared = shared
        self.group = group
        self.trace = trace
        self.engine = SendEngine(shared, options, group)
        self.in_flight = InFlightLimiter(options.in_flight_count_max, options.in_flight_bytes_max)
        self._timeout_s = options.send_timeout_s
        self._encoder = MessageEncoder(options.compression, options.compress_over_bytes)
        self._ids = unique_ids(shared.client_id.partition("@")[0])
        batching = options.batching
        self._batcher = Batcher(batching, self._dispatch_batch) if batching else None

    def send(
        self,
        message: Message,
        queue: MessageQueue | None,
        select: Selector | None,
        timeout_s: float | None,
    ) -> "asyncio.Future[SendResult]":
        # Most messages go to the next queue in turn, within the default timeout.
        is_plain = type(message) is Message and message.sharding_key is None
        is_plain = is_plain and queue is None and select is None
        pick = None if is_plain else pick_of(message, queue, select)
        if timeout_s is not None:
            checked_timeout(timeout_s)
        answer, pending = self._expect(message)
        batcher = self._batcher
        if batcher is not None and select is None and timeout_s is None:
            kind = kind_of(message, queue, self.shared.known_route(message.topic))
            if kind is not None and batcher.accepts(message):
                if queue is None and pick is not None:
                    pending = self._alone_if_moved(message, pick, pending)
                batcher.add(kind, message, pending)
                return answer
        self._deliver(message, pending.message_id, pending.on_sent, pick=pick, timeout_s=timeout_s)
        return answer

    def _alone_if_moved(
        self, message: Message, pick: Pick, pending: PendingMessage
    ) -> PendingMessage:
        """A batch goes to one queue. If that queue is gone because its broker is being drained,
        each message selects the queue of its key separately."""
        message_id, on_end = pending

        def on_sent(results: Sequence[SendResult], failure: Failure | None) -> None:
            left_s = self._timeout_s - (failure.spent_s if failure else 0)
            if failure is None or not failure.is_moved or left_s <= 0:
                on_end(results, failure)
            else:
                self._deliver(message, message_id, on_end, pick=pick, timeout_s=left_s)

        return PendingMessage(message_id, on_sent)

    def send_with(
        self,
        message: Message,
        added: Mapping[bytes, str],
        *,
        sys_flag: int = 0,
        code: int = RequestCode.SEND_MESSAGE_V2,
        pick: Pick | None = None,
        timeout_s: float | None = None,
    ) -> "asyncio.Future[SendResult]":
        """Send one message with properties that the client adds."""
        checked_timeout(timeout_s)
        is_half = bool(sys_flag & flags.TRANSACTION_PREPARED)
        answer, pending = self._expect(message, is_half=is_half)
        (message_id, on_sent), encode = pending, self._encoder.request
        try:
            request = encode(message, message_id, added, sys_flag=sys_flag, code=code)
        except (TianzhouError, MemoryError) as error:
            on_sent((), Failure(message.topic, final=error))
        else:
            pick = pick or pick_of(message, None)
            self.engine.deliver(request, on_sent, pick=pick, timeout_s=timeout_s)
        return answer

    async def send_batch(
        self, messages: Sequence[Message], queue: MessageQueue | None, timeout_s: float | None
    ) -> list[SendResult]:
        pick = pick_of_batch(messages, queue)
        checked_timeout(timeout_s)
        begun_ms = time_ns() // 1_000_000
        message_ids = [self._ids.next(begun_ms) for _ in messages]
        request = batch_request(messages, message_ids)
        size = sum(len(message.body) for message in messages)
        generation = self.in_flight.acquire(size)
        answer: asyncio.Future[list[SendResult]] = self.engine.loop.create_future()

        def on_sent(results: Sequence[SendResult], failure: Failure | None) -> None:
            self.in_flight.release(size, generation)
            if not answer.done():
                if failure is None:
                    answer.set_result(list(results))
                else:
                    answer.set_exception(failure.error())
            if self.trace is not None:
                times_ms = begun_ms, time_ns() // 1_000_000
                ended = results or [None] * len(messages)
                for message, message_id, result in zip(messages, message_ids, ended, strict=True):
                    self.trace.sent(message, message_id, result, times_ms=times_ms)

        self.engine.deliver(request, on_sent, pick=pick, timeout_s=timeout_s)
        return await answer

    async def send_oneway(
        self, message: Message, queue: MessageQueue | None, select: Selector | None
    ) -> None:
        """Write a message without waiting for a response."""
        engine, encoder, pick = self.engine, self._encoder, pick_of(message, queue, select)
        route = await self.shared.route_for_sending(message.topic)
        chosen, address = engine.policy.choose(route, pick, (), engine.loop.time())
        connection = await self.shared.connections.connection(address)
        message_id = self._ids.next(time_ns() // 1_000_000)
        if len(message.body) < encoder.slow_bytes:
            request = encoder.request(message, message_id)
        else:
            request = await asyncio.to_thread(encoder.request, message, message_id)
        ext = engine.fields.ext(request, chosen, time_ns() // 1_000_000)
        connection.tell(request.code, ext, request.body)
        await connection.drained()

    def send_half(self, message: Message) -> "asyncio.Future[SendResult]":
        """Store the message of a transaction, invisibly."""
        added = {names.TRANSACTION_PREPARED: "true", names.PRODUCER_GROUP: self.group}
        return self.send_with(message, added, sys_flag=flags.TRANSACTION_PREPARED)

    async def recall(self, topic: str, handle: str | None) -> str:
        """Cancel a scheduled message; return its id."""
        broker_name = broker_of_handle(topic, handle)
        assert handle is not None, "an invalid handle has no broker name"
        address = await self.shared.broker_address(broker_name)
        asked = RecallMessageRequest(producer_group=self.group, topic=topic, recall_handle=handle)
        answer, _ = await self.shared.call_ok(address, RequestCode.RECALL_MESSAGE, asked.to_ext())
        message_id = RecallMessageResponse.from_ext(answer.ext).msg_id
        if self.trace is not None:
            self.trace.recalled(topic, message_id, time_ns() // 1_000_000)
        return message_id

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the writable queues of a topic."""
        return (await self.shared.route_for_sending(topic)).write_queues

    async def flush(self) -> None:
        """Send open batches, and wait for all sends that are in flight now."""
        if self._batcher is not None:
            self._batcher.flush()
        await self.in_flight.drained()

    async def close(self) -> None:
        """Wait for in-flight sends until their deadlines; new sends fail."""
        await self.flush()
        self.in_flight.release_waiters()
        self.engine.close()

    def _expect(
        self, message: Message, *, is_half: bool = False
    ) -> "tuple[asyncio.Future[SendResult], PendingMessage]":
        """Return the future of a result, and the callback that sets it. Raises TooManyInFlight."""
        size, in_flight, trace = len(message.body), self.in_flight, self.trace
        generation = in_flight.acquire(size)
        answer: asyncio.Future[SendResult] = self.engine.loop.create_future()
        begun_ms = time_ns() // 1_000_000
        message_id = self._ids.next(begun_ms)

        def on_sent(results: Sequence[SendResult], failure: Failure | None) -> None:
            in_flight.release(size, generation)
            if not answer.done():  # the caller may have been cancelled
                if failure is None:
                    answer.set_result(results[0])
                else:
                    answer.set_exception(failure.error())
            if trace is not None:
                result = None if failure is not None else results[0]
                times_ms = begun_ms, time_ns() // 1_000_000
                trace.sent(message, message_id, result, times_ms=times_ms, is_half=is_half)

        return answer, PendingMessage(message_id, on_sent)

    def _deliver(
        self,
        message: Message,
        message_id: str,
        on_sent: OnSent,
        *,
        pick: Pick | None,
        timeout_s: float | None = None,
    ) -> None:
        engine, encoder = self.engine, self._encoder
        if len(message.body) < encoder.slow_bytes:
            try:
                request = encoder.request(message, message_id)
            except (TianzhouError, MemoryError) as error:
                on_sent((), Failure(message.topic, final=error))
            else:
                engine.deliver(request, on_sent, pick=pick, timeout_s=timeout_s)
            return

        async def compress_first() -> None:
            request = await asyncio.to_thread(encoder.request, message, message_id)
            engine.deliver(request, on_sent, pick=pick, timeout_s=timeout_s)

        engine.later(
            compress_first(), lambda error: on_sent((), Failure(message.topic, final=error))
        )

    def _dispatch_batch(self, batch: Batch[PendingMessage], on_sent: OnSent) -> None:
        queue, messages = batch.kind.queue, batch.messages
        pick = None if queue is None else Fixed(queue)
        message_ids = [pending.message_id for pending in batch.tokens]
        if len(messages) == 1:
            self._deliver(messages[0], message_ids[0], on_sent, pick=pick)
        else:
            try:
                request = batch_request(messages, message_ids)
            except (TianzhouError, MemoryError) as error:
                on_sent((), Failure(batch.kind.topic, final=error))
            else:
                self.engine.deliver(request, on_sent, pick=pick)
