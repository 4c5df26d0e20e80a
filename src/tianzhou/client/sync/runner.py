"""One event loop in a thread of its own, for all blocking clients of the process.

A blocking client is a facade over the asyncio one: it submits each call to this loop and waits for
the result. So all of them share connections, routes and heartbeats, however many threads use them.

A child process does not have the threads of its parent: after a fork the first call creates a new
loop, and clients of the parent must not be used.
"""

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, Protocol, TypeVar

from tianzhou.base.errors import UsageError

Result = TypeVar("Result")

STOP_S: Final = 5.0

_making: Final = threading.Lock()
_runners: Final[dict[int, "Runner"]] = {}
"""By process."""


class Runner:
    """An event loop in a thread. Any thread may call it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="tianzhou-client", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as ending:  # in order, with its tasks
            ending.get_loop().run_forever()

    def submit(self, work: Coroutine[Any, Any, Result]) -> "concurrent.futures.Future[Result]":
        """Start a coroutine; return the future of its result. Cancelling the future cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError(
                "a blocking client was called in its own event loop, which would wait for"
                " itself; selectors and callbacks of the loop must not send"
            )
        if os.getpid() != self._pid:
            work.close()
            raise UsageError(
                f"this client was created by process {self._pid}, before a fork; create another one"
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        """Run a coroutine and return its result. Raises TimeoutError, and then cancels it."""
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        finally:
            # If it is not done, the timeout passed or a signal came. Cancel it, because nothing
            # waits for it: it would take messages that are never delivered.
            future.cancel()

    def call_soon(self, work: Callable[[], None]) -> None:
        """Call a function in the loop, without waiting for it."""
        self._loop.call_soon_threadsafe(work)

    def _stop(self) -> None:
        """Stop the loop when the interpreter ends; a loop that outlives its modules logs errors."""
        if self._thread.is_alive():  # in a child process it is not
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_S)


class _Changes(Protocol):
    def update_name_servers(self, nameserver: str) -> None: ...


Changing = TypeVar("Changing", bound=_Changes)


class ChangesNameServers(Generic[Changing]):
    """The part of every blocking client that replaces its NameServers while it runs."""

    _inner: Changing

    def update_name_servers(self, nameserver: str) -> None:
        """Use these NameServers from now on: `host:port;host:port`.

        Nothing is interrupted: requests that wait for a NameServer that is not in the list are
        sent to another one. The change applies to all blocking clients of this process that were
        started with the same NameServers and options, because they share their connections. Raises
        UsageError for an invalid list.

            producer.update_name_servers("10.0.0.1:9876;10.0.0.4:9876")
        """

        async def update() -> None:
            self._inner.update_name_servers(nameserver)

        runner().run(update())


def runner() -> Runner:
    """Return the runner of this process; it is created at first use."""
    pid = os.getpid()
    found = _runners.get(pid)
    if found is None:
        with _making:
            found = _runners.get(pid)
            if found is None:
                _runners.clear()
                found = _runners[pid] = Runner()
    return found
