"""SIGTERM as a request to stop, which is how orchestrators and service managers end a process.

Several consumers may run in one process: the signal stops all of them. A handler of the program
itself is left alone, and the one of the system is put back when the last consumer has stopped.
"""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_stops: Final[list[Callable[[], object]]] = []
"""Owner: the main thread, the only one in which Python calls handlers."""


@contextmanager
def on_terminate(stop: Callable[[], object]) -> Generator[None]:
    """Call `stop` when the process gets SIGTERM while this block runs.

    Does nothing outside the main thread, where Python allows no handlers, and nothing where the
    program has a handler of its own. `stop` is called between two steps of the main thread,
    whatever that is doing: it must only pass the request on.
    """
    if not _is_handled():
        yield
        return
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops and signal.getsignal(signal.SIGTERM) is _terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_handled() -> bool:
    """Whether SIGTERM comes to us."""
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    return signal.getsignal(signal.SIGTERM) is _terminate


def _terminate(_number: int, _frame: FrameType | None) -> None:
    for stop in tuple(_stops):
        stop()
