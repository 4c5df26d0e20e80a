"""Concurrent delivery: messages to a listener, a bounded number of calls at once.

Coroutine functions run in tasks of the event loop, functions in threads. Neither needs a task or a
thread for each message: workers take one message after the other. One worker starts; others join
while messages wait, so a fast listener needs one worker and a slow one gets as many as allowed.
"""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Final, Protocol

from tianzhou.client.consume.acknowledger import Acknowledger
from tianzhou.client.consume.context import ConsumerContext
from tianzhou.client.consume.listener import Failure, Listener
from tianzhou.client.consume.ready import PulledRecords, Ready, RecordSlice
from tianzhou.client.core.assigned_queue import AssignedQueue
from tianzhou.client.core.received import AFTER_THE_CALL, ReceivedMessage

TURN: Final = 64
"""Messages that a worker processes before it yields to the event loop."""

SPREAD_S: Final = 0.001
"""How long messages wait for a busy thread before another one is woken. With a shorter wait, woken
threads would often find nothing to do."""


class Delivery(Protocol):
    """How messages get to the user."""

    def start(self) -> None: ...
    def offer(self, pulled: PulledRecords) -> None: ...
    def discard(self, assigned: AssignedQueue) -> None:
        """Drop messages of this queue that are not started."""
        ...

    def overdue(self, before: float) -> list[tuple[RecordSlice, ReceivedMessage]]:
        """Return messages in flight since before a monotonic time. Each is returned once."""
        ...

    async def stop(self) -> None: ...


InFlight = dict[int, tuple[float, RecordSlice, list[ReceivedMessage]]]
"""The messages of each worker and their start times, to find calls that take too long."""


def overdue(in_flight: InFlight, before: float) -> list[tuple[RecordSlice, ReceivedMessage]]:
    """Remove and return overdue messages; their workers notice when they are done."""
    late = [worker for worker, (since, _, _) in list(in_flight.items()) if since < before]
    rows = [row for worker in late if (row := in_flight.pop(worker, None)) is not None]
    return [(part, message) for _, part, messages in rows for message in messages]


class TaskWorkers:
    """Call a coroutine function in tasks.

    Owner: the event loop.
    """

    def __init__(
        self, context: ConsumerContext, listener: Listener, ready: Ready, acknowledger: Acknowledger
    ) -> None:
        self._context = context
        self._concurrency = context.options.concurrency
        self._listener = listener
        self._ready = ready
        self._acknowledger = acknowledger
        self._in_flight: InFlight = {}
        self._idle: deque[asyncio.Future[None]] = deque()
        self._started = 0
        self._is_spreading = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def offer(self, pulled: PulledRecords) -> None:
        self._ready.put(pulled)
        self._wake()
        if not self._is_spreading:
            self._is_spreading = True
            self._loop.call_soon(self._spread)

    def _spread(self) -> None:
        """Start more workers for messages that still wait after the workers had their turn."""
        self._is_spreading = False
        for _ in range(min(self._ready.count, self._concurrency)):
            if not self._wake():
                return

    def _wake(self) -> bool:
        while self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return True
        if self._started < self._concurrency:
            self._context.tasks.run(self._work(self._started))
            self._started += 1
            return True
        return False

    async def _work(self, number: int) -> None:
        ready, listener, in_flight = self._ready, self._listener, self._in_flight
        settle, count_max, turn = self._acknowledger.settle, listener.count_max, 0
        listener.enter()
        while True:
            part = ready.take(count_max)
            if part is None:
                waiting = self._loop.create_future()
                self._idle.append(waiting)
                await waiting
                turn = 0
                continue
            messages = part.messages(AFTER_THE_CALL)
            begun = monotonic()
            in_flight[number] = (begun, part, messages)
            failures = None
            try:
                failures = await listener.call(messages)
            finally:
                is_ours = in_flight.pop(number, None) is not None
                if failures is None:  # cancelled: neither finished nor in flight
                    ready.settle(part.assigned, part.end - part.first)
            if is_ours and failures is not None:
                settle(part, failures, monotonic() - begun)
            turn += 1
            if turn >= TURN:
                turn = 0
                await asyncio.sleep(0)

    def discard(self, assigned: AssignedQueue) -> None:
        self._ready.discard(assigned)

    def overdue(self, before: float) -> list[tuple[RecordSlice, ReceivedMessage]]:
        return overdue(self._in_flight, before)

    async def stop(self) -> None:
        """Nothing to do: the consumer cancels its tasks."""


class _IdleThreads:
    """Threads that wait for messages. Any thread may call any method."""

    def __init__(self) -> None:
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """Wakes one idle thread each; False ends the thread."""
        self._count = 0
        self._lock = threading.Lock()

    def wait(self, ready: Ready) -> bool:
        """Wait until this thread is woken; return False if it must end."""
        with self._lock:
            self._count += 1
        # Messages may have arrived since this thread found none and before it was counted.
        if ready.count:
            self._tokens.put(True)
            with self._lock:
                self._count -= 1
        return self._tokens.get()

    def wake(self) -> bool:
        """Wake one thread; return False if none is idle."""
        with self._lock:
            is_idle = self._count > 0
            self._count -= is_idle
        if is_idle:
            self._tokens.put(True)
        return is_idle

    def dismiss(self, count: int) -> None:
        """End this many threads when they wait next."""
        for _ in range(count):
            self._tokens.put(False)


class ThreadWorkers:
    """Call a function in threads.

    Owner: the event loop. The threads share `_ready`, `_idle`, `_in_flight` and `_done` with it;
    each of them is thread-safe.
    """

    def __init__(
        self, context: ConsumerContext, listener: Listener, ready: Ready, acknowledger: Acknowledger
    ) -> None:
        self._context = context
        self._listener = listener
        self._ready = ready
        self._acknowledger = acknowledger
        self._in_flight: InFlight = {}
        self._idle = _IdleThreads()
        self._done: deque[tuple[RecordSlice, Sequence[Failure] | None, float]] = deque()
        self._is_settling = False
        self._is_spreading = False
        self._threads: list[threading.Thread] = []
        self._is_stopped = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def offer(self, pulled: PulledRecords) -> None:
        self._ready.put(pulled)
        self._wake()
        if not self._is_spreading:
            self._is_spreading = True
            self._loop.call_later(SPREAD_S, self._spread)

    def _spread(self) -> None:
        self._is_spreading = False
        for _ in range(min(self._ready.count, self._context.options.concurrency)):
            if not self._wake():
                break
        if self._ready.count:
            self._is_spreading = True
            self._loop.call_later(SPREAD_S * 5, self._spread)

    def _wake(self) -> bool:
        if self._idle.wake():
            return True
        if len(self._threads) < self._context.options.concurrency:
            number = len(self._threads)
            # A daemon: a listener that does not return must not keep the process from ending.
            thread = threading.Thread(
                target=self._run, args=(number,), name=f"listener-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
            return True
        return False

    def _run(self, number: int) -> None:
        try:
            self._work(number)
        except BaseException as error:
            # A listener may raise a BaseException that is not an Exception, such as SystemExit.
            if not self._is_stopped:
                self._loop.call_soon_threadsafe(self._context.tasks.fail, error)

    def _work(self, number: int) -> None:
        ready, listener, in_flight, done = self._ready, self._listener, self._in_flight, self._done
        count_max = listener.count_max
        listener.enter()
        while True:
            part = ready.take(count_max)
            if part is None:
                if not self._idle.wait(ready):
                    return
                continue
            messages = part.messages(AFTER_THE_CALL)
            begun = monotonic()
            in_flight[number] = (begun, part, messages)
            failures = None
            try:
                failures = listener.call_here(messages)
            finally:
                if in_flight.pop(number, None) is not None and not self._is_stopped:
                    done.append((part, failures, monotonic() - begun))
                    if not self._is_settling:
                        self._is_settling = True
                        self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        # Before the loop, so that a thread that is done later schedules another call.
        self._is_settling = False
        while self._done:
            part, failures, took_s = self._done.popleft()
            if failures is None:
                self._ready.settle(part.assigned, part.end - part.first)
            else:
                self._acknowledger.settle(part, failures, took_s)

    def discard(self, assigned: AssignedQueue) -> None:
        self._ready.discard(assigned)

    def overdue(self, before: float) -> list[tuple[RecordSlice, ReceivedMessage]]:
        return overdue(self._in_flight, before)

    async def stop(self) -> None:
        """End waiting threads. A thread whose listener does not return is abandoned."""
        self._is_stopped = True
        self._idle.dismiss(len(self._threads))
