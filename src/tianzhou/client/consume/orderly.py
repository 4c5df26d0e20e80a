"""Ordered delivery: one message of a queue at a time, and the next only after it is done.

A task serves each queue. It needs the broker's lock on the queue, and one of a limited number of
slots. A failed message stays first in its queue and is retried after a pause; if the user set a
limit, a message that fails too often becomes a dead letter.

The consumer relies on a lock for less time than the broker grants it, so that a consumer without
connection stops before another one starts.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Final, Generic, NamedTuple, TypeVar

from tianzhou.client.consume.acknowledger import Acknowledger
from tianzhou.client.consume.context import ConsumerContext
from tianzhou.client.consume.listener import Failure, Listener
from tianzhou.client.consume.ready import PulledRecords, Ready, RecordSlice
from tianzhou.client.core.assigned_queue import AssignedQueue
from tianzhou.client.core.pulling import Records
from tianzhou.client.core.received import AFTER_THE_CALL, DEAD, ReceivedMessage
from tianzhou.client.errors import ClientError

TURN: Final = 64
"""Messages of one queue before others get their turn."""
TURN_S: Final = 0.05
LOCK_WAIT_S: Final = 0.1
"""How often a lost lock is checked again."""


class _Served(NamedTuple):
    """The result of a turn: the durations of successful calls, and the failures and the duration of
    the call that ended the turn, if any."""

    took_s: list[float]
    failures: Sequence[Failure] = ()
    failed_s: float = 0.0


class OrderlyWorkers:
    """Call a listener for the messages of each queue in order. Functions run in threads.

    Owner: the event loop.
    """

    def __init__(
        self, context: ConsumerContext, listener: Listener, ready: Ready, acknowledger: Acknowledger
    ) -> None:
        self._listener = listener
        self._options = context.options
        self._ready = ready
        self._acknowledger = acknowledger
        self._tasks = context.tasks
        self._slots = asyncio.Semaphore(context.options.concurrency)
        self._arrivals: dict[AssignedQueue, asyncio.Event] = {}
        self._threads: ListenerThreads[_Served] | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        if not self._listener.is_async:
            self._threads = ListenerThreads()

    def offer(self, pulled: PulledRecords) -> None:
        pulled.assigned.waiting.append(pulled)
        arrival = self._arrivals.get(pulled.assigned)
        if arrival is None:
            self._arrivals[pulled.assigned] = asyncio.Event()
            self._tasks.run(self._serve(pulled.assigned))
        else:
            arrival.set()

    def discard(self, assigned: AssignedQueue) -> None:
        assigned.waiting.clear()
        if assigned in self._arrivals:
            self._arrivals[assigned].set()

    def overdue(self, before: float) -> list[tuple[RecordSlice, ReceivedMessage]]:
        """Nothing is overdue: an ordered queue waits for its listener without a limit."""
        return []

    async def stop(self) -> None:
        if self._threads is not None:
            self._threads.stop()

    async def _serve(self, assigned: AssignedQueue) -> None:
        arrival = self._arrivals[assigned]
        self._listener.enter()
        while not assigned.is_revoked:
            if not assigned.waiting:
                arrival.clear()
                await arrival.wait()
            elif assigned.locked_until <= self._loop.time():
                await asyncio.sleep(LOCK_WAIT_S)
            else:
                async with self._slots:
                    is_sound = await self._turn(assigned)
                await asyncio.sleep(0 if is_sound else self._options.suspend_s)
        del self._arrivals[assigned]

    async def _turn(self, assigned: AssignedQueue) -> bool:
        """Process some messages, one after the other. Returns False if one failed."""
        parts = self._take(assigned)
        if not parts:
            return True
        with contextlib.ExitStack() as ended_from_outside:
            # If cancelled, the messages are neither finished nor in flight.
            count = sum(part.end - part.first for part in parts)
            ended_from_outside.callback(self._ready.settle, assigned, count)
            if self._threads is None:
                served = await self._call(assigned, parts)
            else:
                served = await self._threads.run(partial(self._call_here, assigned, parts))
            ended_from_outside.pop_all()
        done = len(served.took_s)
        for part, took_s in zip(parts, served.took_s, strict=False):
            self._acknowledger.settle(part, (), took_s)
        rest = parts[done:]
        if served.failures:
            rest[0] = await self._failed(rest[0], served.failures, served.failed_s)
        self._put_back(assigned, rest)
        return not served.failures

    def _take(self, assigned: AssignedQueue) -> list[RecordSlice]:
        """Take the next messages, one part for each call; all are in flight from now on."""
        parts: list[RecordSlice] = []
        while assigned.waiting and len(parts) < TURN and not assigned.is_revoked:
            pulled = assigned.waiting[0]
            parts.append(pulled.take(self._listener.count_max))
            if not pulled.left:
                assigned.waiting.popleft()
        return parts

    async def _call(self, assigned: AssignedQueue, parts: list[RecordSlice]) -> _Served:
        took_s: list[float] = []
        begun = monotonic()
        deadline = begun + TURN_S
        for part in parts:
            if assigned.is_revoked or begun >= assigned.locked_until or begun > deadline:
                break
            failures = await self._listener.call(part.messages(AFTER_THE_CALL))
            ended = monotonic()
            if failures:
                return _Served(took_s, failures, ended - begun)
            took_s.append(ended - begun)
            begun = ended
        return _Served(took_s)

    def _call_here(self, assigned: AssignedQueue, parts: list[RecordSlice]) -> _Served:
        """Like `_call`, in a thread."""
        self._listener.enter()
        took_s: list[float] = []
        begun = monotonic()
        deadline = begun + TURN_S
        for part in parts:
            if assigned.is_revoked or begun >= assigned.locked_until or begun > deadline:
                break
            failures = self._listener.call_here(part.messages(AFTER_THE_CALL))
            ended = monotonic()
            if failures:
                return _Served(took_s, failures, ended - begun)
            took_s.append(ended - begun)
            begun = ended
        return _Served(took_s)

    async def _failed(
        self, part: RecordSlice, failures: Sequence[Failure], took_s: float
    ) -> RecordSlice:
        """Finish the messages before the first failure, make those that failed too often dead
        letters; return the rest."""
        assigned, failed = (
            part.assigned,
            {int(message.queue_offset): level for message, level in failures},
        )
        offsets = part.records.offsets[part.first : part.end]
        first = part.first + next(rank for rank, at in enumerate(offsets) if at in failed)
        if first > part.first:
            self._acknowledger.settle(part._replace(end=first), (), took_s)
        self._acknowledger.rates.failed(assigned.queue.topic, len(failures), monotonic())
        while first < part.end and part.records.offsets[first] in failed:
            message = part._replace(first=first, end=first + 1).messages()[0]
            if not await self._buried(assigned, message, failed[part.records.offsets[first]]):
                break
            first += 1
        return RecordSlice(assigned, part.records, first, part.end, part.times + 1)

    async def _buried(self, assigned: AssignedQueue, message: ReceivedMessage, level: int) -> bool:
        """Make a message a dead letter if it failed too often; return whether it is one now."""
        limit = self._options.max_reconsume_times
        is_over = level == DEAD or 0 <= limit <= message.reconsume_times
        if self._options.broadcasting or not is_over:
            return False
        try:
            await self._acknowledger.send_back(assigned, message, DEAD)
        except ClientError:
            return False  # the message is redelivered, and then returned again
        assigned.finish((message.queue_offset,), monotonic())
        self._ready.settle(assigned)
        return True

    def _put_back(self, assigned: AssignedQueue, parts: list[RecordSlice]) -> None:
        """Put messages back, before those that arrived meanwhile."""
        for _, records, first, end, times in reversed(parts):
            if first == end:
                continue
            self._ready.settle(assigned, end - first)
            if not assigned.is_revoked:
                assigned.waiting.appendleft(
                    PulledRecords(assigned, _slice(records, first, end), times)
                )


def _slice(records: Records, first: int, end: int) -> Records:
    buffer, starts, offsets, sizes = records
    return Records(buffer, starts[first:end], offsets[first:end], sizes[first:end])


T = TypeVar("T")


class ListenerThreads(Generic[T]):
    """Threads that call a listener: one for each concurrent call, which the caller limits.

    Owner: the event loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[tuple[Callable[[], T], asyncio.Future[T]] | None]
        self._calls = queue.SimpleQueue()
        self._busy = 0
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        if self._busy == len(self._threads):
            name = f"orderly-listener-{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._busy += 1
        ended: asyncio.Future[T] = self._loop.create_future()
        self._calls.put((work, ended))
        return ended

    def stop(self) -> None:
        """End idle threads. A thread whose listener does not return is abandoned."""
        for _ in self._threads:
            self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            work, ended = call
            try:
                result = work()
            except BaseException as error:  # the caller that awaits the result gets the exception
                tell = partial(ended.set_exception, error)
            else:
                tell = partial(ended.set_result, result)
            self._tell(ended, tell)

    def _tell(self, ended: "asyncio.Future[T]", tell: Callable[[], None]) -> None:
        def report() -> None:
            self._busy -= 1
            if not ended.done():  # the caller may have been cancelled
                tell()

        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
            self._loop.call_soon_threadsafe(report)
