"""SIGTERM as a request to stop, as orchestrators and service managers send it.

Several consumers may run in one process: the signal stops all of them. A handler that the program
installed is left alone, and the default one is restored when the last consumer has stopped.
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
    program has a handler of its own. `stop` is called between two steps of the main thread, at any
    point: it must do no more than forward the request.
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
    """Whether this module handles SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    return signal.getsignal(signal.SIGTERM) is _terminate


def _terminate(_number: int, _frame: FrameType | None) -> None:
    for stop in tuple(_stops):
        stop()
