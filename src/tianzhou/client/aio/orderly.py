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

from tianzhou.client.aio.lane import Lane, Piece, Ready, Run
from tianzhou.client.aio.listener import Failure, Listener
from tianzhou.client.aio.listener_threads import ListenerThreads
from tianzhou.client.aio.settling import Settler
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
    """Owner: the event loop. Functions run in threads, which see only what they were handed."""

    def __init__(
        self, listener: Listener, options: ConsumerOptions, ready: Ready, settler: Settler,
        tasks: Tasks,
    ) -> None:  # fmt: skip
        self._listener = listener
        self._options = options
        self._ready = ready
        self._settler = settler
        self._tasks = tasks
        self._slots = asyncio.Semaphore(options.concurrency)
        self._arrivals: dict[Lane, asyncio.Event] = {}
        self._threads: ListenerThreads[_Served] | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        if not self._listener.is_async:
            self._threads = ListenerThreads()

    def offer(self, run: Run) -> None:
        run.lane.waiting.append(run)
        arrival = self._arrivals.get(run.lane)
        if arrival is None:
            self._arrivals[run.lane] = asyncio.Event()
            self._tasks.run(self._serve(run.lane))
        else:
            arrival.set()

    def discard(self, lane: Lane) -> None:
        lane.waiting.clear()
        if lane in self._arrivals:
            self._arrivals[lane].set()

    def overdue(self, before: float) -> list[tuple[Piece, ReceivedMessage]]:
        """None: an ordered queue waits as long as it takes."""
        return []

    async def stop(self) -> None:
        if self._threads is not None:
            self._threads.stop()

    async def _serve(self, lane: Lane) -> None:
        arrival = self._arrivals[lane]
        self._listener.enter()
        while not lane.is_dropped:
            if not lane.waiting:
                arrival.clear()
                await arrival.wait()
            elif lane.locked_until <= self._loop.time():
                await asyncio.sleep(LOCK_WAIT_S)
            else:
                async with self._slots:
                    is_sound = await self._turn(lane)
                await asyncio.sleep(0 if is_sound else self._options.suspend_s)
        del self._arrivals[lane]

    async def _turn(self, lane: Lane) -> bool:
        """Some messages, one after the other. False when one failed."""
        pieces = self._take(lane)
        if not pieces:
            return True
        with contextlib.ExitStack() as ended_from_outside:
            # Then they are not done, but not in hand either.
            count = sum(piece.end - piece.first for piece in pieces)
            ended_from_outside.callback(self._ready.settle, lane, count)
            if self._threads is None:
                served = await self._call(lane, pieces)
            else:
                served = await self._threads.run(partial(self._call_here, lane, pieces))
            ended_from_outside.pop_all()
        done = len(served.took_s)
        for piece, took_s in zip(pieces, served.took_s, strict=False):
            self._settler.settle(piece, (), took_s)
        rest = pieces[done:]
        if served.failures:
            rest[0] = await self._failed(rest[0], served.failures, served.failed_s)
        self._put_back(lane, rest)
        return not served.failures

    def _take(self, lane: Lane) -> list[Piece]:
        """The next messages in pieces of what one call gets; all in hand from now on."""
        pieces: list[Piece] = []
        while lane.waiting and len(pieces) < TURN and not lane.is_dropped:
            run = lane.waiting[0]
            pieces.append(run.take(self._listener.count_max))
            if not run.left:
                lane.waiting.popleft()
        return pieces

    async def _call(self, lane: Lane, pieces: list[Piece]) -> _Served:
        took_s: list[float] = []
        begun = monotonic()
        deadline = begun + TURN_S
        for piece in pieces:
            if lane.is_dropped or begun >= lane.locked_until or begun > deadline:
                break
            failures = await self._listener.call(piece.messages(AFTER_THE_CALL))
            ended = monotonic()
            if failures:
                return _Served(took_s, failures, ended - begun)
            took_s.append(ended - begun)
            begun = ended
        return _Served(took_s)

    def _call_here(self, lane: Lane, pieces: list[Piece]) -> _Served:
        """The same in a thread."""
        self._listener.enter()
        took_s: list[float] = []
        begun = monotonic()
        deadline = begun + TURN_S
        for piece in pieces:
            if lane.is_dropped or begun >= lane.locked_until or begun > deadline:
                break
            failures = self._listener.call_here(piece.messages(AFTER_THE_CALL))
            ended = monotonic()
            if failures:
                return _Served(took_s, failures, ended - begun)
            took_s.append(ended - begun)
            begun = ended
        return _Served(took_s)

    async def _failed(self, piece: Piece, failures: Sequence[Failure], took_s: float) -> Piece:
        """Finish what comes before the first failure, bury what failed too often; what is left."""
        lane, failed = piece.lane, {int(message.queue_offset): level for message, level in failures}
        offsets = piece.records.offsets[piece.first : piece.end]
        first = piece.first + next(rank for rank, at in enumerate(offsets) if at in failed)
        if first > piece.first:
            self._settler.settle(piece._replace(end=first), (), took_s)
        self._settler.pace.failed(lane.queue.topic, len(failures), monotonic())
        while first < piece.end and piece.records.offsets[first] in failed:
            message = piece._replace(first=first, end=first + 1).messages()[0]
            if not await self._buried(lane, message, failed[piece.records.offsets[first]]):
                break
            first += 1
        return Piece(lane, piece.records, first, piece.end, piece.times + 1)

    async def _buried(self, lane: Lane, message: ReceivedMessage, level: int) -> bool:
        """Whether it was tried often enough, or given up, and is a dead letter now."""
        limit = self._options.max_reconsume_times
        is_over = level == DEAD or 0 <= limit <= message.reconsume_times
        if self._options.broadcasting or not is_over:
            return False
        try:
            await self._settler.send_back(lane, message, DEAD)
        except ClientError:
            return False  # it is tried again, and so is this
        lane.finish((message.queue_offset,))
        self._ready.settle(lane)
        return True

    def _put_back(self, lane: Lane, pieces: list[Piece]) -> None:
        """In front of everything that came meanwhile."""
        for _, records, first, end, times in reversed(pieces):
            if first == end:
                continue
            self._ready.settle(lane, end - first)
            if not lane.is_dropped:
                lane.waiting.appendleft(Run(lane, _part(records, first, end), times))


def _part(records: Records, first: int, end: int) -> Records:
    buffer, starts, offsets, sizes = records
    return Records(buffer, starts[first:end], offsets[first:end], sizes[first:end])
