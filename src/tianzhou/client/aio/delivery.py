"""Concurrent delivery: messages to a listener, a bounded number of calls at once.

Coroutines pulled as tasks of the event loop, functions in threads. In both cases there is no task
and no thread for a message: workers take messages one after the other. One worker begins; others
join only while it is seen that messages wait, so that a quick listener costs one worker and a slow
one gets as many as it may have.
"""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final, Protocol

from tianzhou.client.aio.acknowledger import Acknowledger
from tianzhou.client.aio.assigned_queue import AssignedQueue, PulledRecords, Ready, RecordSlice
from tianzhou.client.aio.listener import Failure, Listener
from tianzhou.client.aio.tasks import Tasks
from tianzhou.client.core.received import AFTER_THE_CALL, ReceivedMessage

TURN: Final = 64
"""Messages that a worker handles before the event loop gets something else done."""

SPREAD_S: Final = 0.001
"""How long messages wait for a busy thread before another one is woken. Less would wake threads
that find nothing to do."""


class Delivery(Protocol):
    """How messages get to the user."""

    def start(self) -> None: ...
    def offer(self, pulled: PulledRecords) -> None: ...
    def discard(self, assigned: AssignedQueue) -> None:
        """What of this queue has not begun."""
        ...

    def overdue(self, before: float) -> list[tuple[RecordSlice, ReceivedMessage]]:
        """Return messages in flight since before a monotonic time. Each is returned once."""
        ...

    async def stop(self) -> None: ...


InFlight = dict[int, tuple[float, RecordSlice, list[ReceivedMessage]]]
"""What each worker has at present, and since when, to find those that take too long."""


def overdue(in_flight: InFlight, before: float) -> list[tuple[RecordSlice, ReceivedMessage]]:
    """Taken away from the workers, who find that when they are done."""
    late = [worker for worker, (since, _, _) in list(in_flight.items()) if since < before]
    rows = [row for worker in late if (row := in_flight.pop(worker, None)) is not None]
    return [(part, message) for _, part, messages in rows for message in messages]


class TaskWorkers:
    """Owner: the event loop."""

    def __init__(
        self,
        listener: Listener,
        concurrency: int,
        ready: Ready,
        acknowledger: Acknowledger,
        tasks: Tasks,
    ) -> None:
        self._listener = listener
        self._concurrency = concurrency
        self._ready = ready
        self._acknowledger = acknowledger
        self._tasks = tasks
        self._in_hand: InFlight = {}
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
        """Runs after the workers had their turn: whatever still waits needs more of them."""
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
            self._tasks.run(self._work(self._started))
            self._started += 1
            return True
        return False

    async def _work(self, number: int) -> None:
        ready, listener, in_flight = self._ready, self._listener, self._in_hand
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
        return overdue(self._in_hand, before)

    async def stop(self) -> None:
        """The tasks end with all others of the consumer."""


class ThreadWorkers:
    """Owner: the event loop; what the threads share with it is in `Ready`, `_tokens` and `_done`,
    each safe by itself."""

    def __init__(
        self, listener: Listener, concurrency: int, ready: Ready, acknowledger: Acknowledger,
        on_error: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._listener = listener
        self._concurrency = concurrency
        self._ready = ready
        self._acknowledger = acknowledger
        self._on_error = on_error
        self._in_hand: InFlight = {}
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """One for each thread that is to look for messages; False sends it home."""
        self._idle = 0
        self._idle_lock = threading.Lock()
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
        for _ in range(min(self._ready.count, self._concurrency)):
            if not self._wake():
                break
        if self._ready.count:
            self._is_spreading = True
            self._loop.call_later(SPREAD_S * 5, self._spread)

    def _wake(self) -> bool:
        with self._idle_lock:
            is_idle = self._idle > 0
            self._idle -= is_idle
        if is_idle:
            self._tokens.put(True)
        elif len(self._threads) < self._concurrency:
            number = len(self._threads)
            # Nobody may be kept from ending the process by a listener that does not return.
            thread = threading.Thread(
                target=self._run, args=(number,), name=f"listener-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        else:
            return False
        return True

    def _run(self, number: int) -> None:
        try:
            self._work(number)
        except BaseException as error:
            # A listener may raise what is no Exception, such as SystemExit.
            if not self._is_stopped:
                self._loop.call_soon_threadsafe(self._on_error, error)

    def _work(self, number: int) -> None:
        ready, listener, in_flight, done = self._ready, self._listener, self._in_hand, self._done
        count_max = listener.count_max
        listener.enter()
        while True:
            part = ready.take(count_max)
            if part is None:
                with self._idle_lock:
                    self._idle += 1
                # Something may have come between the look and the count.
                if ready.count:
                    self._tokens.put(True)
                    with self._idle_lock:
                        self._idle -= 1
                if not self._tokens.get():
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
        self._is_settling = False  # first: what comes after the last look asks for another
        while self._done:
            part, failures, took_s = self._done.popleft()
            if failures is None:
                self._ready.settle(part.assigned, part.end - part.first)
            else:
                self._acknowledger.settle(part, failures, took_s)

    def discard(self, assigned: AssignedQueue) -> None:
        self._ready.discard(assigned)

    def overdue(self, before: float) -> list[tuple[RecordSlice, ReceivedMessage]]:
        return overdue(self._in_hand, before)

    async def stop(self) -> None:
        """Threads that wait end; one whose listener does not return is left behind."""
        self._is_stopped = True
        for _ in self._threads:
            self._tokens.put(False)
