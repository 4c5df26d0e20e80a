"""An event loop in a thread of its own, which plain code can ask to do things."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

WAIT_S: Final = 30.0
"""Everything the kit asks of its loop takes milliseconds; whatever takes this long hangs."""


class LoopThread:
    """Owner: whoever made it. All methods may be called from any thread but the loop's own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._note)
        self.errors: list[str] = []
        """What went wrong in callbacks, where no caller hears of it."""
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
        """Let the loop do this; what came of it."""
        return self._wait(asyncio.run_coroutine_threadsafe(work, self._loop))

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for a plain function, which then owns the loop while it runs."""

        async def called() -> T:
            return function(*args, **kwargs)

        return self.run(called())

    def _wait(self, future: "concurrent.futures.Future[T]") -> T:
        assert threading.current_thread() is not self._thread, "the loop would wait for itself"
        try:
            return future.result(WAIT_S)
        except concurrent.futures.TimeoutError as error:
            future.cancel()
            raise TimeoutError(f"the broker did not answer within {WAIT_S} s") from error

    def close(self) -> None:
        """Cancel what still runs, then end the loop and its thread."""
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
    # Transports that were aborted say so in the next round.
    await asyncio.sleep(0)
