"""Ctrl-C at any time: while the process starts, while a command runs, while the process ends.

Python turns SIGINT into a KeyboardInterrupt wherever the main thread happens to be. That is right
while a command runs, because it may have something to finish. Before and after, nothing would catch
it and the user would see a traceback of imports or of Python's own shutdown, so the process ends at
once instead. Until `install` is called a traceback is still possible, so this module imports
nothing that takes time, not even `typing`.
"""

import os
import signal
import sys

INTERRUPTED = 130
"""The exit code: 128 and the number of SIGINT, as shells report it."""
_REPEAT_S = 0.02


def install() -> None:
    """Make Ctrl-C end the process quietly, from now until it has ended, except in `Interruptible`.

    Leaves SIGINT alone if the caller ignores it, as shells do for commands in the background.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _quit)
        sys.unraisablehook = _repeat_lost_interrupt


class Interruptible:
    """A block in which Ctrl-C raises KeyboardInterrupt. Does nothing without `install`."""

    def __enter__(self) -> None:
        self._is_installed = signal.getsignal(signal.SIGINT) is _quit
        if self._is_installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, _quit)
        # Python 3.11 wraps what `__set_name__` raises while an import creates a class.
        if isinstance(error, RuntimeError) and isinstance(error.__cause__, KeyboardInterrupt):
            raise error.__cause__


def _quit(_number: int, _frame: object) -> None:
    os._exit(INTERRUPTED)


def _repeat_lost_interrupt(lost: "sys.UnraisableHookArgs") -> None:
    """Send SIGINT again after Python dropped a KeyboardInterrupt.

    Exceptions in finalizers and weak reference callbacks, of which each import has some, are
    printed and forgotten: the command would continue as if Ctrl-C had not been pressed. The signal
    is sent a little later, when the finalizer has returned.
    """
    if lost.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(lost)
        return
    import threading

    again = threading.Timer(_REPEAT_S, os.kill, (os.getpid(), signal.SIGINT))
    again.daemon = True
    again.start()
