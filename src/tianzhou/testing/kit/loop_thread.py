"""An event loop in its own thread, for use by blocking code."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

WAIT_S: Final = 30.0
"""Calls into the loop take milliseconds; a call that takes this long hangs."""


class LoopThread:
    """Runs an event loop in a thread. Methods may be called from any thread except the loop's."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._note)
        self.errors: list[str] = []
        """Errors in callbacks, which no caller receives."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _note(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        said = f": {type(error).__name__}: {error}" if error is not None else ""
        self.errors.append(f"{context['message']}{said}")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result. Raises TimeoutError."""
        return self._wait(asyncio.run_coroutine_threadsafe(work, self._loop))

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a plain function in the loop and return its result. It blocks the loop."""

        async def called() -> T:
            return function(*args, **kwargs)

        return self.run(called())

    def _wait(self, future: "concurrent.futures.Future[T]") -> T:
        assert threading.current_thread() is not self._thread, "the loop would wait for itself"
        try:
            return future.result(WAIT_S)
        except concurrent.futures.TimeoutError as error:
            future.cancel()
            raise TimeoutError(f"the broker did not respond within {WAIT_S} s") from error

    def close(self) -> None:
        """Cancel pending tasks, then stop the loop and its thread."""
        self.run(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the loop of the test broker hangs"
        self._loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    # Aborted transports report their end in the next iteration of the loop.
    await asyncio.sleep(0)
