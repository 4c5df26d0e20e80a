"""Threads that call listeners which are functions: concurrently, or in order for each queue."""

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Final, Generic, TypeVar

from tianzhou.client.consume.context import ConsumerContext
from tianzhou.client.consume.deliveries import Acknowledger, Ready
from tianzhou.client.consume.listener import InFlight, Listener, overdue
from tianzhou.client.core.assigned_queue import AssignedQueue
from tianzhou.client.core.received import (
    AFTER_THE_CALL,
    Failure,
    PulledRecords,
    ReceivedMessage,
    RecordSlice,
)

SPREAD_S: Final = 0.001
"""How long messages wait for a busy thread before another one is woken. With a shorter wait, woken
threads would often find nothing to do."""


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
