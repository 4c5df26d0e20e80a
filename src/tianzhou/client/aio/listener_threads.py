"""Threads for listeners that are functions, of ordered consumption.

An executor of the standard library waits for its threads when the interpreter ends. Nobody may be
kept from ending the process by a listener that does not return, so these are daemons.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


class ListenerThreads(Generic[T]):
    """Owner: the event loop. There are as many as calls at once, which the caller bounds."""

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
        """Threads that wait end; one whose listener does not return is left behind."""
        for _ in self._threads:
            self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            work, ended = call
            try:
                result = work()
            except BaseException as error:  # it is raised where the call is awaited
                tell = partial(ended.set_exception, error)
            else:
                tell = partial(ended.set_result, result)
            self._tell(ended, tell)

    def _tell(self, ended: "asyncio.Future[T]", tell: Callable[[], None]) -> None:
        def told() -> None:
            self._busy -= 1
            if not ended.done():  # who waited may have been cancelled
                tell()

        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
            self._loop.call_soon_threadsafe(told)
