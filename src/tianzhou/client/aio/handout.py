"""Messages for `async for`: handed out one by one, or in batches, to whoever asks next.

Automatic acknowledgement means: asking for the next message says that the one before is done. Who
leaves the loop by an exception never asks again, and that message is delivered again. With explicit
acknowledgement any number may be in hand, and each is settled by its own `ack` or `retry`.

In order, a queue gives its next message only after the one before was acknowledged.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from time import monotonic
from typing import Final

from tianzhou.client.aio.consumer_trace import ConsumeTrace, Consumption
from tianzhou.client.aio.lane import Lane, Piece, Ready, Run
from tianzhou.client.aio.settling import Settler, again
from tianzhou.client.aio.tasks import Tasks
from tianzhou.client.core.outcome import DEAD
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.core.trace import ContextCode
from tianzhou.client.errors import ClientError

TURN: Final = 64
"""Messages handed out before the event loop gets something else done."""
LOCK_WAIT_S: Final = 0.1


class _LaneSettling:
    """Takes what the user says of messages of one queue, in any thread."""

    def __init__(self, lane: Lane, handout: "Handout") -> None:
        self.lane = lane
        self._handout = handout

    def ack(self, message: ReceivedMessage) -> None:
        if not self._handout.is_here:
            self._handout.loop.call_soon_threadsafe(self.ack, message)
            return
        # A second time, or after `retry`, it is no longer in work, or has a verdict.
        if message.verdict is None and self.lane.finish((message.queue_offset,)):
            self._handout.acked(self.lane, message)

    def retry(self, message: ReceivedMessage, delay_level: int) -> None:
        if not self._handout.is_here:
            self._handout.loop.call_soon_threadsafe(self.retry, message, delay_level)
            return
        if message.verdict is None and message.queue_offset in self.lane.window:
            message.verdict = delay_level
            self._handout.failed(self.lane, message, delay_level)


class Handout:
    """Concurrent consumption. Owner: the event loop."""

    def __init__(self, ready: Ready, settler: Settler) -> None:
        self._ready = ready
        self._settler = settler
        self._settlings: dict[Lane, _LaneSettling] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._ended: BaseException | None = None
        self._is_stopped = False
        self._since_pause = 0
        self.trace: ConsumeTrace | None = None
        self._traced: dict[tuple[Lane, int], Consumption] = {}

    def start(self) -> None:
        self.loop = asyncio.get_running_loop()

    @property
    def is_here(self) -> bool:
        """Whether this is said in the event loop."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def offer(self, run: Run) -> None:
        self._ready.put(run)
        self._wake(run.left)

    def _wake(self, count: int) -> None:
        while self._waiting and count:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                count -= 1

    def discard(self, lane: Lane) -> None:
        self._ready.discard(lane)
        self._settlings.pop(lane, None)

    def overdue(self, before: float) -> list[tuple[Piece, ReceivedMessage]]:
        """None: whoever holds a message for long in a loop of its own has a reason."""
        return []

    async def stop(self) -> None:
        self._is_stopped = True
        self._wake(len(self._waiting))

    def fail(self, error: BaseException) -> None:
        """Whoever asks next gets this."""
        self._ended = error
        self._wake(len(self._waiting))

    async def take(self, count_max: int) -> list[ReceivedMessage]:
        """The next messages, all of one queue. Empty: the consumer was stopped. Raises what
        ended the consumer."""
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
                    self._wake(1)  # it was this one's turn: somebody else's now
                raise

    def maybe_take(self, count_max: int) -> list[ReceivedMessage] | None:
        """What can be had without waiting; nothing, when it is others' turn."""
        self._since_pause += 1
        return None if self._since_pause >= TURN else self._take(count_max)

    def _take(self, count_max: int) -> list[ReceivedMessage] | None:
        if self._is_stopped or self._ended is not None:
            return None
        piece = self._next(count_max)
        if piece is None:
            return None
        messages = piece.messages(self._settling(piece.lane))
        if self.trace is not None:
            for message in messages:
                self._traced[piece.lane, message.queue_offset] = self.trace.began([message])
        return messages

    def _settling(self, lane: Lane) -> _LaneSettling:
        found = self._settlings.get(lane)
        if found is None:
            found = self._settlings[lane] = _LaneSettling(lane, self)
        return found

    def _next(self, count_max: int) -> Piece | None:
        return self._ready.take(count_max)

    def _told(self, lane: Lane, message: ReceivedMessage, code: ContextCode) -> None:
        began = self._traced.pop((lane, message.queue_offset), None)
        if self.trace is not None and began is not None:
            self.trace.ended(began, code)

    def give_back(self, messages: list[ReceivedMessage]) -> None:
        """They were handed out, but nobody looked at them."""
        for message in reversed(messages):
            settling = message.settling
            assert isinstance(settling, _LaneSettling)
            self._take_back(settling.lane, message)

    def _take_back(self, lane: Lane, message: ReceivedMessage) -> None:
        if not lane.is_dropped:
            self._ready.put_first(Run(lane, message.as_records(), message.local_times))
        self._ready.settle(lane)

    def acked(self, lane: Lane, message: ReceivedMessage) -> None:
        """It has just been finished."""
        self._settler.pace.finished(lane.queue.topic, 1, monotonic())
        self._ready.settle(lane)
        if self._traced:
            self._told(lane, message, ContextCode.SUCCESS)

    def failed(self, lane: Lane, message: ReceivedMessage, delay_level: int) -> None:
        if self._traced:
            self._told(lane, message, ContextCode.FAILED)
        self._settler.fail(lane, message, delay_level)


class OrderlyHandout(Handout):
    """Ordered consumption."""

    def __init__(
        self, ready: Ready, settler: Settler, tasks: Tasks, *, suspend_s: float, limit: int
    ) -> None:
        super().__init__(ready, settler)
        self._tasks = tasks
        self._suspend_s = suspend_s
        self._limit = limit
        self._free: deque[Lane] = deque()
        """Queues that have a message and none in hand."""

    def offer(self, run: Run) -> None:
        lane = run.lane
        lane.waiting.append(run)
        self._set_free(lane)

    def _set_free(self, lane: Lane) -> None:
        if lane.waiting and not lane.in_hand and not lane.is_dropped and lane not in self._free:
            self._free.append(lane)
            self._wake(1)

    def discard(self, lane: Lane) -> None:
        lane.waiting.clear()
        if lane in self._free:
            self._free.remove(lane)
        self._settlings.pop(lane, None)

    def _next(self, count_max: int) -> Piece | None:
        for _ in range(len(self._free)):
            lane = self._free.popleft()
            if lane.locked_until <= self.loop.time():
                self._free.append(lane)
                continue
            run = lane.waiting[0]
            piece = run.take(count_max)
            if not run.left:
                lane.waiting.popleft()
            return piece
        if self._free:  # their locks were lost: look again when they may be back
            self.loop.call_later(LOCK_WAIT_S, self._wake, 1)
        return None

    def _take_back(self, lane: Lane, message: ReceivedMessage) -> None:
        if not lane.is_dropped:
            again = Run(lane, message.as_records(), message.local_times)
            lane.waiting.appendleft(again)
        self._ready.settle(lane)
        self._set_free(lane)

    def acked(self, lane: Lane, message: ReceivedMessage) -> None:
        super().acked(lane, message)
        self._set_free(lane)

    def failed(self, lane: Lane, message: ReceivedMessage, delay_level: int) -> None:
        if self._traced:
            self._told(lane, message, ContextCode.FAILED)
        self._settler.pace.failed(lane.queue.topic, 1, monotonic())
        self._tasks.run(self._try_again(lane, message, delay_level))

    async def _try_again(self, lane: Lane, message: ReceivedMessage, delay_level: int) -> None:
        if delay_level == DEAD or 0 <= self._limit <= message.reconsume_times:
            try:
                await self._settler.send_back(lane, message, DEAD)
            except ClientError:
                pass  # then it is tried once more
            else:
                lane.finish((message.queue_offset,))
                self.acked(lane, message)
                return
        await asyncio.sleep(self._suspend_s)
        if not lane.is_dropped:
            lane.waiting.appendleft(again(lane, message))
        self._ready.settle(lane)
        self._set_free(lane)


class _Iterator:
    """What was handed out last, and to which task."""

    def __init__(self, handout: Handout, count_max: int, *, auto_ack: bool) -> None:
        self._handout = handout
        self._count_max = count_max
        self._auto_ack = auto_ack
        self._last: list[ReceivedMessage] = []
        self.task: asyncio.Task[object] | None = None
        """Who asked last: while it works on a message, it waits for nothing else."""

    async def _next(self) -> list[ReceivedMessage]:
        for message in self._last:
            message.ack()
        self._last = []
        messages = self._handout.maybe_take(self._count_max)
        if messages is None:
            self.task = asyncio.current_task()
            messages = await self._handout.take(self._count_max)
            if not messages:
                raise StopAsyncIteration
        if self._auto_ack:
            self._last = messages
        return messages

    def settle(self) -> None:
        """What was handed out last is done."""
        last, self._last = self._last, []
        for message in last:
            message.ack()


class MessageIterator(_Iterator, AsyncIterator[ReceivedMessage]):
    """One `async for`."""

    def __init__(self, handout: Handout, *, auto_ack: bool) -> None:
        super().__init__(handout, 1, auto_ack=auto_ack)

    async def __anext__(self) -> ReceivedMessage:
        return (await self._next())[0]


class BatchIterator(_Iterator, AsyncIterator[list[ReceivedMessage]]):
    """The same in batches, each of one queue."""

    async def __anext__(self) -> list[ReceivedMessage]:
        return await self._next()
