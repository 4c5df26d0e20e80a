"""SIGTERM and SIGHUP handled like Ctrl-C, for commands that clean up or report before they exit."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def terminable() -> Generator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C while this block runs, so that its `finally` blocks run.

    A signal that the caller ignores, as `nohup` does with SIGHUP, stays ignored. Does nothing
    outside the main thread, where Python allows no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)


def _interrupt(_number: int, _frame: object) -> None:
    signal.raise_signal(signal.SIGINT)
