"""Everything between `Producer.send` and the send engine: ids, limits, batching, compression."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tianzhou.base.errors import TianzhouError
from tianzhou.client.aio.in_flight import InFlightLimiter
from tianzhou.client.aio.send_engine import SendEngine
from tianzhou.client.core.routing import (
    Fixed,
    Pick,
    Selector,
    pick_of,
    pick_of_batch,
    queue_for_key,
)
from tianzhou.client.core.send import Failure, OnSent
from tianzhou.client.core.send_request import (
    Batch,
    Compression,
    Kind,
    OpenBatches,
    SendRequest,
    SendResult,
    batch_request,
    message_request,
)
from tianzhou.client.options import Batching, ProducerOptions, checked_timeout
from tianzhou.client.session.shared_client import SharedClient
from tianzhou.client.tracing import SendTrace
from tianzhou.record import flags
from tianzhou.record.message import Message
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.queues import MessageQueue

COMPRESS_HERE_BYTES: Final = 64 * 1024
"""Larger bodies are compressed in a thread, because that blocks the event loop for milliseconds."""


class PendingMessage(NamedTuple):
    """The id of a message in a batch, and the callback that gets its result, once."""

    message_id: str
    on_sent: OnSent


Dispatch = Callable[[Batch[PendingMessage], OnSent], None]


class Batcher:
    """Send open batches when they are full, or when they have waited for `linger_s`.

    Owner: the event loop.
    """

    def __init__(self, rules: Batching, dispatch: Dispatch) -> None:
        self._rules = rules
        self._dispatch = dispatch
        self._loop = asyncio.get_running_loop()
        self._open_batches: OpenBatches[PendingMessage] = OpenBatches(
            count_max=rules.count_max, bytes_max=rules.bytes_max
        )
        self._timers: dict[Kind, asyncio.TimerHandle | asyncio.Handle] = {}
        self._in_flight: Counter[Kind] = Counter()

    def accepts(self, message: Message) -> bool:
        return self._open_batches.accepts(message)

    def add(self, kind: Kind, message: Message, pending: PendingMessage) -> None:
        for batch in self._open_batches.add(kind, message, pending):
            self._send(batch)
        if kind in self._timers or self._open_batches.open_batch(kind) is None:
            return
        if self._rules.linger_s:
            self._timers[kind] = self._loop.call_later(
                self._rules.linger_s, self._linger_ended, kind
            )
        elif not self._in_flight[kind]:
            # At the end of this loop iteration, with everything else that is sent in it.
            self._timers[kind] = self._loop.call_soon(self._linger_ended, kind)

    def flush(self) -> None:
        """Send every open batch now."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for batch in self._open_batches.take_all():
            self._send(batch)

    def _linger_ended(self, kind: Kind) -> None:
        self._timers.pop(kind, None)
        batch = self._open_batches.take(kind)
        if batch is not None:
            self._send(batch)

    def _send(self, batch: Batch[PendingMessage]) -> None:
        kind = batch.kind
        if self._open_batches.open_batch(kind) is None and (timer := self._timers.pop(kind, None)):
            timer.cancel()
        self._in_flight[kind] += 1

        def on_sent(results: Sequence[SendResult], failure: Failure | None) -> None:
            self._in_flight[kind] -= 1
            if not self._in_flight[kind]:
                del self._in_flight[kind]
                if not self._rules.linger_s:
                    self._linger_ended(kind)
            if failure is not None:
                for pending in batch.tokens:
                    pending.on_sent((), failure)
            else:
                for pending, result in zip(batch.tokens, results, strict=True):
                    pending.on_sent((result,), None)

        self._dispatch(batch, on_sent)


class Sender:
    """Encode messages, limit the sends in flight, and set the results.

    Owner: the event loop.
    """

    def __init__(
        self, shared: SharedClient, options: ProducerOptions, group: str, trace: SendTrace | None
    ) -> None:
        self._shared = shared
        self._options = options
        self._trace = trace
        self.engine = SendEngine(shared, options, group)
        self.in_flight = InFlightLimiter(options.in_flight_count_max, options.in_flight_bytes_max)
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
            kind = self._kind(message, queue)
            if kind is not None and batcher.accepts(message):
                if queue is None and pick is not None:
                    pending = self._alone_if_moved(message, pick, pending)
                batcher.add(kind, message, pending)
                return answer
        self._deliver(
            message,
            pending.message_id,
            pending.on_sent,
            pick=pick,
            timeout_s=timeout_s,
        )
        return answer

    def _alone_if_moved(
        self, message: Message, pick: Pick, pending: PendingMessage
    ) -> PendingMessage:
        """A batch goes to one queue. If that queue is gone because its broker is being drained,
        each message selects the queue of its key separately."""

        def on_sent(results: Sequence[SendResult], failure: Failure | None) -> None:
            left_s = self._options.send_timeout_s - (failure.spent_s if failure else 0)
            if failure is None or not failure.is_moved or left_s <= 0:
                pending.on_sent(results, failure)
            else:
                self._deliver(
                    message, pending.message_id, pending.on_sent, pick=pick, timeout_s=left_s
                )

        return PendingMessage(pending.message_id, on_sent)

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
        pick = pick or pick_of(message, None)
        answer, pending = self._expect(message, is_half=is_half)
        try:
            request = self.request(message, pending.message_id, added, sys_flag=sys_flag, code=code)
        except (TianzhouError, MemoryError) as error:
            pending.on_sent((), Failure(message.topic, final=error))
            return answer
        self.engine.deliver(request, pending.on_sent, pick=pick, timeout_s=timeout_s)
        return answer

    async def send_batch(
        self, messages: Sequence[Message], queue: MessageQueue | None, timeout_s: float | None
    ) -> list[SendResult]:
        pick = pick_of_batch(messages, queue)
        checked_timeout(timeout_s)
        message_ids = [self.new_id() for _ in messages]
        request = batch_request(messages, message_ids)
        size = sum(len(message.body) for message in messages)
        generation = self.in_flight.acquire(size)
        answer: asyncio.Future[list[SendResult]] = self.engine.loop.create_future()
        begun_ms = self._shared.now_ms()

        def on_sent(results: Sequence[SendResult], failure: Failure | None) -> None:
            self.in_flight.release(size, generation)
            if not answer.done():
                if failure is None:
                    answer.set_result(list(results))
                else:
                    answer.set_exception(failure.error())
            if self._trace is not None:
                now_ms, ended = self._shared.now_ms(), results or [None] * len(messages)
                for message, message_id, result in zip(messages, message_ids, ended, strict=True):
                    self._trace.sent(message, message_id, result, times_ms=(begun_ms, now_ms))

        self.engine.deliver(request, on_sent, pick=pick, timeout_s=timeout_s)
        return await answer

    def flush(self) -> None:
        """Send open batches now."""
        if self._batcher is not None:
            self._batcher.flush()

    def request(
        self,
        message: Message,
        message_id: str,
        added: Mapping[bytes, str] | None = None,
        *,
        sys_flag: int = 0,
        code: int = RequestCode.SEND_MESSAGE_V2,
    ) -> SendRequest:
        return message_request(
            message,
            message_id,
            compress=self._options.compression,
            over_bytes=self._options.compress_over_bytes,
            added=added,
            sys_flag=sys_flag,
            code=code,
        )

    def new_id(self) -> str:
        return self._shared.unique_ids.next(self._shared.now_ms())

    def _expect(
        self, message: Message, *, is_half: bool = False
    ) -> "tuple[asyncio.Future[SendResult], PendingMessage]":
        """Return the future of a result, and the callback that sets it. Raises TooManyInFlight."""
        size, in_flight, trace = len(message.body), self.in_flight, self._trace
        generation = in_flight.acquire(size)
        answer: asyncio.Future[SendResult] = self.engine.loop.create_future()
        begun_ms = self._shared.now_ms()
        message_id = self._shared.unique_ids.next(begun_ms)

        def on_sent(results: Sequence[SendResult], failure: Failure | None) -> None:
            in_flight.release(size, generation)
            if not answer.done():  # the caller may have been cancelled
                if failure is None:
                    answer.set_result(results[0])
                else:
                    answer.set_exception(failure.error())
            if trace is not None:
                result = None if failure is not None else results[0]
                now_ms = self._shared.now_ms()
                trace.sent(
                    message, message_id, result, times_ms=(begun_ms, now_ms), is_half=is_half
                )

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
        engine = self.engine
        if not self._takes_long(message):
            try:
                request = self.request(message, message_id)
            except (TianzhouError, MemoryError) as error:
                # It counts as in flight: without an outcome, `close` would wait for it forever.
                on_sent((), Failure(message.topic, final=error))
                return
            engine.deliver(request, on_sent, pick=pick, timeout_s=timeout_s)
            return

        async def compress_first() -> None:
            request = await asyncio.to_thread(self.request, message, message_id)
            engine.deliver(request, on_sent, pick=pick, timeout_s=timeout_s)

        engine.later(
            compress_first(), lambda error: on_sent((), Failure(message.topic, final=error))
        )

    def _takes_long(self, message: Message) -> bool:
        """Whether encoding the request would block the event loop."""
        is_large = len(message.body) >= max(self._options.compress_over_bytes, COMPRESS_HERE_BYTES)
        return is_large and self._options.compression is not Compression.NONE

    async def request_in_time(self, message: Message) -> SendRequest:
        """Encode the request of a message, in a thread if that takes long."""
        if self._takes_long(message):
            return await asyncio.to_thread(self.request, message, self.new_id())
        return self.request(message, self.new_id())

    def _kind(self, message: Message, queue: MessageQueue | None) -> Kind | None:
        """Return the kind of batch for a message; None if it depends on a route not known yet."""
        if queue is None and message.sharding_key is not None:
            route = self._shared.known_route(message.topic)
            if route is None or not route.write_queues:
                return None
            queue = queue_for_key(route.write_queues, message.sharding_key)
        return Kind(message.topic, queue, message.wait_store_ok)

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
                return
            self.engine.deliver(request, on_sent, pick=pick)
