"""Limits on what peers can cause in the log: escaped text, and few lines of one kind.

A peer that repeats the same event gets a few lines per window. An unexpected error gets fewer,
whatever its text and however many peers cause it, because its traceback is long and the same each
time. Suppressed lines are counted: the count is in every tenth, hundredth, thousandth… line of a
burst, and in the first line after it, as `left_out`.
"""

import logging
from types import TracebackType
from typing import Final, NamedTuple

LINES_MAX: Final = 20
"""Lines of one event, about one peer, in one window."""
TRACES_MAX: Final = 3
"""Traces of one error, raised at one place in the code, in one window."""
WINDOW_S: Final = 10.0
KEYS_MAX: Final = 1_024
"""Events that are remembered; bounded because peers choose their addresses."""
TEXT_CHARS_MAX: Final = 16 * 1024
"""Of a message with its trace."""


class _Window(NamedTuple):
    began_s: float
    lines: int = 0
    """Lines in the current window."""
    left_out: int = 0
    """Lines that were suppressed and not yet reported in a later line."""


class RateLimit(logging.Filter):
    """Takes the time from the records. Owner: the holder of the handler's lock."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[tuple[str, str], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key, lines_max = _kind_of(record)
        window = self._windows.pop(key, None) or _Window(record.created)
        if record.created - window.began_s >= WINDOW_S:
            window = _Window(record.created, left_out=window.left_out)
        count = window.lines + 1
        is_written = count <= lines_max or _is_power_of_ten(count)
        if is_written and window.left_out:
            record.left_out = window.left_out
        left_out = 0 if is_written else window.left_out + 1
        # The key was removed above and is inserted again, so the oldest come first.
        self._windows[key] = _Window(window.began_s, count, left_out)
        if len(self._windows) > KEYS_MAX:
            del self._windows[next(iter(self._windows))]
        return is_written


def _kind_of(record: logging.LogRecord) -> tuple[tuple[str, str], int]:
    """The key that identifies repeated events, and how many lines a window may contain."""
    if record.exc_info and record.exc_info[0] is not None:
        kind, _, trace = record.exc_info
        return (kind.__qualname__, _place_of(trace)), TRACES_MAX
    peer = getattr(record, "peer", "")
    host = peer.rpartition(":")[0] if isinstance(peer, str) else ""
    return (str(record.msg)[:128], host), LINES_MAX


def _place_of(trace: TracebackType | None) -> str:
    """Where an exception was raised."""
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def _is_power_of_ten(count: int) -> bool:
    while count > 1 and count % 10 == 0:
        count //= 10
    return count == 1


def one_entry(text: str) -> str:
    """Format untrusted text as one log entry: later lines are indented, so that none passes for
    a second entry, and control characters are escaped."""
    shown = "".join(
        sign if sign.isprintable() or sign == "\n" else ascii(sign)[1:-1]
        for sign in text[:TEXT_CHARS_MAX]
    )
    return shown.replace("\n", "\n    ")
