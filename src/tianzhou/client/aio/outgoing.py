"""What a producer sends, from a message to its result: ids, limits, batching, compression."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from tianzhou.client.aio.batcher import Awaited, Batcher, OnBatch, OnSent
from tianzhou.client.aio.flight import Flight
from tianzhou.client.aio.post import OnDone, Post
from tianzhou.client.aio.producer_trace import SendTrace
from tianzhou.client.aio.shared_client import SharedClient
from tianzhou.client.core.batching import Batch, Kind
from tianzhou.client.core.failure import Failure
from tianzhou.client.core.selection import (
    Fixed,
    Pick,
    Selector,
    pick_of,
    pick_of_batch,
    queue_for_key,
)
from tianzhou.client.core.sending import Compression, Parcel, SendResult, batch_parcel, parcel_of
from tianzhou.client.options import ProducerOptions, checked_timeout
from tianzhou.record import flags
from tianzhou.record.message import Message
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.queues import MessageQueue

COMPRESS_HERE_BYTES: Final = 64 * 1024
"""Larger bodies are compressed in a thread: that takes milliseconds, in which nobody else in this
loop would get anything done."""


class Outgoing:
    """Owner: the event loop."""

    def __init__(
        self, shared: SharedClient, options: ProducerOptions, group: str, trace: SendTrace | None
    ) -> None:
        self._shared = shared
        self._options = options
        self._trace = trace
        self.post = Post(shared, options, group)
        self.flight = Flight(options.in_flight_count_max, options.in_flight_bytes_max)
        batching = options.batching
        self._batcher = Batcher(batching, self._send_gathered) if batching else None

    def send(
        self,
        message: Message,
        queue: MessageQueue | None,
        select: Selector | None,
        timeout_s: float | None,
    ) -> "asyncio.Future[SendResult]":
        pick = pick_of(message, queue, select)
        checked_timeout(timeout_s)
        answer, awaited = self._expect(message)
        gathered = self._batcher
        if gathered is not None and select is None and timeout_s is None:
            kind = self._kind(message, queue)
            if kind is not None and gathered.can_take(message):
                if queue is None and pick is not None:
                    awaited = self._alone_if_moved(message, pick, awaited)
                gathered.add(kind, message, awaited)
                return answer
        self._deliver(
            message, awaited.message_id, _one(awaited.on_sent),
            pick=pick, timeout_s=timeout_s,
        )  # fmt: skip
        return answer

    def _alone_if_moved(self, message: Message, pick: Pick, awaited: Awaited) -> Awaited:
        """A batch goes to one queue. If that queue is gone because its broker is being drained,
        each message selects the queue of its key separately."""

        def on_sent(result: SendResult | None, failure: Failure | None) -> None:
            left_s = self._options.send_timeout_s - (failure.spent_s if failure else 0)
            if failure is None or not failure.is_moved or left_s <= 0:
                awaited.on_sent(result, failure)
            else:
                on_done = _one(awaited.on_sent)
                self._deliver(message, awaited.message_id, on_done, pick=pick, timeout_s=left_s)

        return Awaited(awaited.message_id, on_sent)

    def send_with(
        self, message: Message, added: Mapping[bytes, str], *, sys_flag: int = 0,
        code: int = RequestCode.SEND_MESSAGE_V2, pick: Pick | None = None,
        timeout_s: float | None = None,
    ) -> "asyncio.Future[SendResult]":  # fmt: skip
        """One message with properties of the client's own."""
        checked_timeout(timeout_s)
        is_half = bool(sys_flag & flags.TRANSACTION_PREPARED)
        answer, awaited = self._expect(message, is_half=is_half)
        parcel = self.parcel(message, awaited.message_id, added, sys_flag=sys_flag, code=code)
        pick = pick or pick_of(message, None)
        self.post.deliver(parcel, _one(awaited.on_sent), pick=pick, timeout_s=timeout_s)
        return answer

    async def send_batch(
        self, messages: Sequence[Message], queue: MessageQueue | None, timeout_s: float | None
    ) -> list[SendResult]:
        pick = pick_of_batch(messages, queue)
        checked_timeout(timeout_s)
        message_ids = [self.new_id() for _ in messages]
        parcel = batch_parcel(messages, message_ids)
        size = sum(len(message.body) for message in messages)
        wave = self.flight.enter(size)
        answer: asyncio.Future[list[SendResult]] = self.post.loop.create_future()
        begun_ms = self._shared.now_ms()

        def on_done(results: list[SendResult], failure: Failure | None) -> None:
            self.flight.leave(size, wave)
            if not answer.done():
                if failure is None:
                    answer.set_result(results)
                else:
                    answer.set_exception(failure.error())
            if self._trace is not None:
                now_ms, ended = self._shared.now_ms(), results or [None] * len(messages)
                for message, message_id, result in zip(messages, message_ids, ended, strict=True):
                    self._trace.sent(message, message_id, result, begun_ms, now_ms)

        self.post.deliver(parcel, on_done, pick=pick, timeout_s=timeout_s)
        return await answer

    def flush(self) -> None:
        """What is being gathered leaves now."""
        if self._batcher is not None:
            self._batcher.flush()

    def parcel(
        self, message: Message, message_id: str, added: Mapping[bytes, str] | None = None, *,
        sys_flag: int = 0, code: int = RequestCode.SEND_MESSAGE_V2,
    ) -> Parcel:  # fmt: skip
        return parcel_of(
            message, message_id, compress=self._options.compression,
            over_bytes=self._options.compress_over_bytes, added=added, sys_flag=sys_flag, code=code,
        )  # fmt: skip

    def new_id(self) -> str:
        return self._shared.unique_ids.next(self._shared.now_ms())

    def _expect(
        self, message: Message, *, is_half: bool = False
    ) -> "tuple[asyncio.Future[SendResult], Awaited]":
        """The future of a result, and what fulfils it. Raises TooManyInFlight."""
        size, flight, trace = len(message.body), self.flight, self._trace
        wave = flight.enter(size)
        answer: asyncio.Future[SendResult] = self.post.loop.create_future()
        begun_ms = self._shared.now_ms()
        message_id = self._shared.unique_ids.next(begun_ms)

        def on_sent(result: SendResult | None, failure: Failure | None) -> None:
            flight.leave(size, wave)
            if not answer.done():  # who waited may have been cancelled
                if result is not None:
                    answer.set_result(result)
                elif failure is not None:
                    answer.set_exception(failure.error())
            if trace is not None:
                now_ms = self._shared.now_ms()
                trace.sent(message, message_id, result, begun_ms, now_ms, is_half=is_half)

        return answer, Awaited(message_id, on_sent)

    def _deliver(
        self, message: Message, message_id: str, on_done: OnDone, *, pick: Pick | None,
        timeout_s: float | None = None,
    ) -> None:  # fmt: skip
        post = self.post
        if not self._takes_long(message):
            parcel = self.parcel(message, message_id)
            post.deliver(parcel, on_done, pick=pick, timeout_s=timeout_s)
            return

        async def compress_first() -> None:
            parcel = await asyncio.to_thread(self.parcel, message, message_id)
            post.deliver(parcel, on_done, pick=pick, timeout_s=timeout_s)

        post.later(compress_first(), lambda error: on_done([], Failure(message.topic, final=error)))

    def _takes_long(self, message: Message) -> bool:
        """Whether making a parcel of it would hold up the loop."""
        is_large = len(message.body) >= max(self._options.compress_over_bytes, COMPRESS_HERE_BYTES)
        return is_large and self._options.compression is not Compression.NONE

    async def parcel_in_time(self, message: Message) -> Parcel:
        """The parcel of a message, made in a thread if that takes long."""
        if self._takes_long(message):
            return await asyncio.to_thread(self.parcel, message, self.new_id())
        return self.parcel(message, self.new_id())

    def _kind(self, message: Message, queue: MessageQueue | None) -> Kind | None:
        """Which batch a message goes into; None if that is not known before the route is."""
        if queue is None and message.sharding_key is not None:
            route = self._shared.known_route(message.topic)
            if route is None or not route.write_queues:
                return None
            queue = queue_for_key(route.write_queues, message.sharding_key)
        return Kind(message.topic, queue, message.wait_store_ok)

    def _send_gathered(self, batch: Batch[Awaited], on_batch: OnBatch) -> None:
        queue, messages = batch.kind.queue, batch.messages
        pick = None if queue is None else Fixed(queue)
        message_ids = [awaited.message_id for awaited in batch.tokens]
        if len(messages) == 1:
            self._deliver(messages[0], message_ids[0], on_batch, pick=pick)
        else:
            parcel = batch_parcel(messages, message_ids)
            self.post.deliver(parcel, on_batch, pick=pick)


def _one(on_sent: OnSent) -> OnDone:
    """For a parcel with a single message."""

    def on_done(results: list[SendResult], failure: Failure | None) -> None:
        on_sent(results[0] if failure is None else None, failure)

    return on_done
