"""Deliver messages to `async for` loops, one by one or in batches.

With automatic acknowledgement, asking for the next message acknowledges the previous one. A loop
that is left by an exception never asks again, and its last message is redelivered. With explicit
acknowledgement any number of messages may be in flight, and each is settled by `ack` or `retry`.

In ordered consumption a queue delivers its next message only after the previous one was
acknowledged.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any, Final

from tianzhou.client.consume.context import ConsumerContext
from tianzhou.client.consume.deliveries import Acknowledger, Ready
from tianzhou.client.core.assigned_queue import AssignedQueue
from tianzhou.client.core.received import (
    FreeQueues,
    PulledRecords,
    ReceivedMessage,
    RecordSlice,
    again,
)
from tianzhou.client.core.trace import ContextCode
from tianzhou.client.hooks import ConsumeObserver

TURN: Final = 64
"""Messages delivered before the iterator yields to the event loop."""
LOCK_WAIT_S: Final = 0.1


class _QueueAckHandle:
    """Acknowledge messages of one queue, from any thread."""

    def __init__(self, assigned: AssignedQueue, iterator_delivery: "IteratorDelivery") -> None:
        self.assigned = assigned
        self._delivery = iterator_delivery

    def ack(self, message: ReceivedMessage) -> None:
        if not self._delivery.is_here:
            self._delivery.loop.call_soon_threadsafe(self.ack, message)
            return
        # After an earlier `ack` it is no longer in work; after `retry` it has a verdict.
        if message.verdict is None and self.assigned.finish((message.queue_offset,), monotonic()):
            self._delivery.acked(self.assigned, message)

    def retry(self, message: ReceivedMessage, delay_level: int) -> None:
        if not self._delivery.is_here:
            self._delivery.loop.call_soon_threadsafe(self.retry, message, delay_level)
            return
        if message.verdict is None and message.queue_offset in self.assigned.window:
            message.verdict = delay_level
            self._delivery.failed(self.assigned, message, delay_level)


class IteratorDelivery:
    """Deliver to iterators in concurrent consumption.

    Owner: the event loop.
    """

    def __init__(self, ready: Ready, acknowledger: Acknowledger) -> None:
        self._ready = ready
        self._acknowledger = acknowledger
        self._ack_handles: dict[AssignedQueue, _QueueAckHandle] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._ended: BaseException | None = None
        self._is_stopped = False
        self._since_pause = 0
        self.observer: ConsumeObserver | None = None
        self._observed: dict[tuple[AssignedQueue, int], Any] = {}

    def start(self) -> None:
        self.loop = asyncio.get_running_loop()

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in this event loop."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def offer(self, pulled: PulledRecords) -> None:
        self._ready.put(pulled)
        self._wake(pulled.left)

    def _wake(self, count: int) -> None:
        while self._waiting and count:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                count -= 1

    def discard(self, assigned: AssignedQueue) -> None:
        self._ready.discard(assigned)
        self._ack_handles.pop(assigned, None)

    async def stop(self) -> None:
        self._is_stopped = True
        self._wake(len(self._waiting))

    def fail(self, error: BaseException) -> None:
        """Raise this error in the next call of `take`."""
        self._ended = error
        self._wake(len(self._waiting))

    async def take(self, count_max: int) -> list[ReceivedMessage]:
        """Return the next messages, all of one queue; empty if the consumer was stopped. Raises
        the error that stopped the consumer."""
        if self._since_pause >= TURN:
            self._since_pause = 0
            await asyncio.sleep(0)
        while True:
            messages = self._take(count_max)
            if messages is not None:
                return messages
            if self._ended is not None:
                raise self._ended
            if self._is_stopped:
                return []
            waiting = self.loop.create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            except asyncio.CancelledError:
                if waiting.done() and not waiting.cancelled():
                    self._wake(1)  # cancelled after being woken; pass the wake-up on
                raise

    def maybe_take(self, count_max: int) -> list[ReceivedMessage] | None:
        """Return messages without waiting; None if there are none, or other tasks must run."""
        self._since_pause += 1
        return None if self._since_pause >= TURN else self._take(count_max)

    def _take(self, count_max: int) -> list[ReceivedMessage] | None:
        if self._is_stopped or self._ended is not None:
            return None
        part = self._next(count_max)
        if part is None:
            return None
        messages = part.messages(self._ack_handle(part.assigned))
        if self.observer is not None:
            for message in messages:
                self._observed[part.assigned, message.queue_offset] = self.observer.began([message])
        return messages

    def _ack_handle(self, assigned: AssignedQueue) -> _QueueAckHandle:
        found = self._ack_handles.get(assigned)
        if found is None:
            found = self._ack_handles[assigned] = _QueueAckHandle(assigned, self)
        return found

    def _next(self, count_max: int) -> RecordSlice | None:
        return self._ready.take(count_max)

    def _processed(
        self, assigned: AssignedQueue, message: ReceivedMessage, code: ContextCode
    ) -> None:
        began = self._observed.pop((assigned, message.queue_offset), None)
        if self.observer is not None and began is not None:
            self.observer.ended(began, code)

    def give_back(self, messages: list[ReceivedMessage]) -> None:
        """Put back messages that were taken but not processed."""
        for message in reversed(messages):
            ack_handle = message.ack_handle
            assert isinstance(ack_handle, _QueueAckHandle)
            self._take_back(ack_handle.assigned, message)

    def _take_back(self, assigned: AssignedQueue, message: ReceivedMessage) -> None:
        if not assigned.is_revoked:
            self._ready.put_first(again(assigned, message, failed=False))
        self._ready.settle(assigned)

    def acked(self, assigned: AssignedQueue, message: ReceivedMessage) -> None:
        """Record that a message was finished."""
        self._acknowledger.rates.finished(assigned.queue.topic, 1, monotonic())
        self._ready.settle(assigned)
        if self._observed:
            self._processed(assigned, message, ContextCode.SUCCESS)

    def failed(self, assigned: AssignedQueue, message: ReceivedMessage, delay_level: int) -> None:
        if self._observed:
            self._processed(assigned, message, ContextCode.FAILED)
        self._acknowledger.fail(assigned, message, delay_level)


class OrderlyIteratorDelivery(IteratorDelivery):
    """Deliver to iterators in ordered consumption."""

    def __init__(self, context: ConsumerContext, ready: Ready, acknowledger: Acknowledger) -> None:
        super().__init__(ready, acknowledger)
        self._tasks = context.tasks
        self._suspend_s = context.options.suspend_s
        self._free = FreeQueues()

    def offer(self, pulled: PulledRecords) -> None:
        pulled.assigned.waiting.append(pulled)
        if self._free.add(pulled.assigned):
            self._wake(1)

    def discard(self, assigned: AssignedQueue) -> None:
        assigned.waiting.clear()
        self._free.discard(assigned)
        self._ack_handles.pop(assigned, None)

    def _next(self, count_max: int) -> RecordSlice | None:
        part = self._free.take(count_max, self.loop.time())
        if part is None and self._free:  # their locks were lost: check again when they may be back
            self.loop.call_later(LOCK_WAIT_S, self._wake, 1)
        return part

    def _take_back(self, assigned: AssignedQueue, message: ReceivedMessage) -> None:
        if not assigned.is_revoked:
            assigned.waiting.appendleft(again(assigned, message, failed=False))
        self._ready.settle(assigned)
        if self._free.add(assigned):
            self._wake(1)

    def acked(self, assigned: AssignedQueue, message: ReceivedMessage) -> None:
        super().acked(assigned, message)
        if self._free.add(assigned):
            self._wake(1)

    def failed(self, assigned: AssignedQueue, message: ReceivedMessage, delay_level: int) -> None:
        if self._observed:
            self._processed(assigned, message, ContextCode.FAILED)
        self._acknowledger.rates.failed(assigned.queue.topic, 1, monotonic())
        self._tasks.run(self._try_again(assigned, message, delay_level))

    async def _try_again(
        self, assigned: AssignedQueue, message: ReceivedMessage, delay_level: int
    ) -> None:
        if await self._acknowledger.bury(assigned, message, delay_level):
            self.acked(assigned, message)
            return
        await asyncio.sleep(self._suspend_s)
        if not assigned.is_revoked:
            assigned.waiting.appendleft(again(assigned, message, failed=True))
        self._ready.settle(assigned)
        if self._free.add(assigned):
            self._wake(1)


class _Iterator:
    """The messages delivered last, and the task that got them."""

    def __init__(
        self, iterator_delivery: IteratorDelivery, count_max: int, *, auto_ack: bool
    ) -> None:
        self._delivery = iterator_delivery
        self._count_max = count_max
        self._auto_ack = auto_ack
        self._last: list[ReceivedMessage] = []
        self.task: asyncio.Task[object] | None = None
        """The task that asked last: while it processes a message, it waits for nothing else."""

    async def _next(self) -> list[ReceivedMessage]:
        for message in self._last:
            message.ack()
        self._last = []
        messages = self._delivery.maybe_take(self._count_max)
        if messages is None:
            self.task = asyncio.current_task()
            messages = await self._delivery.take(self._count_max)
            if not messages:
                raise StopAsyncIteration
        if self._auto_ack:
            self._last = messages
        return messages

    def settle(self) -> None:
        """Acknowledge the messages delivered last."""
        last, self._last = self._last, []
        for message in last:
            message.ack()


class MessageIterator(_Iterator, AsyncIterator[ReceivedMessage]):
    """The iterator of one `async for` loop."""

    def __init__(self, iterator_delivery: IteratorDelivery, *, auto_ack: bool) -> None:
        super().__init__(iterator_delivery, 1, auto_ack=auto_ack)

    async def __anext__(self) -> ReceivedMessage:
        return (await self._next())[0]


class BatchIterator(_Iterator, AsyncIterator[list[ReceivedMessage]]):
    """The iterator of one `async for` loop over batches, each of one queue."""

    async def __anext__(self) -> list[ReceivedMessage]:
        return await self._next()
