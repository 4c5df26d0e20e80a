"""Ordered delivery: one message of a queue at a time, and the next only after it is done.

Each queue has a task that serves it. It needs the broker's lock on the queue, and one of a bounded
number of places. A message that fails stays the first of its queue and is tried again after a
while; one that has failed too often is made a dead letter, if the user set a limit.

The lock is believed a while shorter than the broker grants it, so that a consumer that was
cut off stops before another one begins.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Final, NamedTuple

from tianzhou.client.aio.acknowledger import Acknowledger
from tianzhou.client.aio.assigned_queue import AssignedQueue, PulledRecords, Ready, RecordSlice
from tianzhou.client.aio.listener import Failure, Listener
from tianzhou.client.aio.listener_threads import ListenerThreads
from tianzhou.client.aio.tasks import Tasks
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.outcome import DEAD
from tianzhou.client.core.pulling import Records
from tianzhou.client.core.received import AFTER_THE_CALL, ReceivedMessage
from tianzhou.client.errors import ClientError

TURN: Final = 64
"""Messages of one queue before others get their turn."""
TURN_S: Final = 0.05
LOCK_WAIT_S: Final = 0.1
"""How often a queue whose lock was lost is looked at again."""


class _Served(NamedTuple):
    """How a turn ended: how long each call took that went well, what failed in the one after
    them, and how long that one took."""

    took_s: list[float]
    failures: Sequence[Failure] = ()
    failed_s: float = 0.0


class OrderlyWorkers:
    """Owner: the event loop. Functions pulled in threads, which see only what they were handed."""

    def __init__(
        self,
        listener: Listener,
        options: ConsumerOptions,
        ready: Ready,
        acknowledger: Acknowledger,
        tasks: Tasks,
    ) -> None:
        self._listener = listener
        self._options = options
        self._ready = ready
        self._acknowledger = acknowledger
        self._tasks = tasks
        self._slots = asyncio.Semaphore(options.concurrency)
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
        """None: an ordered queue waits as long as it takes."""
        return []

    async def stop(self) -> None:
        if self._threads is not None:
            self._threads.stop()

    async def _serve(self, assigned: AssignedQueue) -> None:
        arrival = self._arrivals[assigned]
        self._listener.enter()
        while not assigned.is_dropped:
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
        """Some messages, one after the other. False when one failed."""
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
        while assigned.waiting and len(parts) < TURN and not assigned.is_dropped:
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
            if assigned.is_dropped or begun >= assigned.locked_until or begun > deadline:
                break
            failures = await self._listener.call(part.messages(AFTER_THE_CALL))
            ended = monotonic()
            if failures:
                return _Served(took_s, failures, ended - begun)
            took_s.append(ended - begun)
            begun = ended
        return _Served(took_s)

    def _call_here(self, assigned: AssignedQueue, parts: list[RecordSlice]) -> _Served:
        """The same in a thread."""
        self._listener.enter()
        took_s: list[float] = []
        begun = monotonic()
        deadline = begun + TURN_S
        for part in parts:
            if assigned.is_dropped or begun >= assigned.locked_until or begun > deadline:
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
        """Finish what comes before the first failure, bury what failed too often; what is left."""
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
        """Whether it was tried often enough, or given up, and is a dead letter now."""
        limit = self._options.max_reconsume_times
        is_over = level == DEAD or 0 <= limit <= message.reconsume_times
        if self._options.broadcasting or not is_over:
            return False
        try:
            await self._acknowledger.send_back(assigned, message, DEAD)
        except ClientError:
            return False  # it is tried again, and so is this
        assigned.finish((message.queue_offset,))
        self._ready.settle(assigned)
        return True

    def _put_back(self, assigned: AssignedQueue, parts: list[RecordSlice]) -> None:
        """In front of everything that came meanwhile."""
        for _, records, first, end, times in reversed(parts):
            if first == end:
                continue
            self._ready.settle(assigned, end - first)
            if not assigned.is_dropped:
                assigned.waiting.appendleft(
                    PulledRecords(assigned, _slice(records, first, end), times)
                )


def _slice(records: Records, first: int, end: int) -> Records:
    buffer, starts, offsets, sizes = records
    return Records(buffer, starts[first:end], offsets[first:end], sizes[first:end])
