"""What strangers can do to a log: nothing. Their words are escaped, and they can't fill it.

A peer that makes us log the same event again and again gets a few lines in a while; the line after
that says how many were left out.
"""

import logging
from typing import Final

LINES_MAX: Final = 20
"""Lines of one event, about one peer, in one window."""
WINDOW_S: Final = 10.0
KEYS_MAX: Final = 1_024
"""Pairs of peer and event that are remembered; strangers choose their addresses."""
TEXT_CHARS_MAX: Final = 16 * 1024
"""Of a message with its trace."""


class RateLimit(logging.Filter):
    """Time comes with the records. Owner: whoever holds the lock of the handler."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[tuple[str, str], tuple[float, int]] = {}
        """By event and peer: when the window began, and how many lines came in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        key = (str(record.msg)[:128], _host_of(record))
        began, count = self._windows.get(key, (record.created, 0))
        if record.created - began >= WINDOW_S:
            if count > LINES_MAX:
                record.left_out = count - LINES_MAX
            began, count = record.created, 0
        # Taken out and put in again: the oldest stand first.
        self._windows.pop(key, None)
        self._windows[key] = (began, count + 1)
        if len(self._windows) > KEYS_MAX:
            del self._windows[next(iter(self._windows))]
        return count < LINES_MAX


def _host_of(record: logging.LogRecord) -> str:
    peer = getattr(record, "peer", "")
    return peer.rpartition(":")[0] if isinstance(peer, str) else ""


def one_entry(text: str) -> str:
    """Text that may hold anything, as one entry of a log: what looks like a second entry is
    indented, and no sign does anything to a terminal."""
    shown = "".join(
        sign if sign.isprintable() or sign == "\n" else ascii(sign)[1:-1]
        for sign in text[:TEXT_CHARS_MAX]
    )
    return shown.replace("\n", "\n    ")
