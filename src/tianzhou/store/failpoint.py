"""Named places where tests inject faults.

On the way of every message a place costs no call in production: `if armed: failpoint(...)`.
"""

from collections.abc import Callable
from typing import Final

POINTS: Final = (
    "log.before_append",
    "log.after_write",
    "log.after_append",
    "log.before_roll",
    "log.after_blank",
    "log.after_roll",
    "flush.before_sync",
    "flush.after_sync",
    "flush.before_checkpoint",
    "flush.after_checkpoint",
    "dispatch.before_queues",
    "dispatch.before_index",
    "dispatch.after",
    "queue.before_write",
    "queue.after_write",
    "queue.after_create",
    "index.before_put",
    "index.after_entries",
    "index.after_put",
    "index.before_create",
    "index.after_create",
    "table.after_temporary",
    "table.after_backup",
    "table.after_rename",
    "recovery.before_cut",
    "recovery.after_cut",
    "rewind.before_cut",
    "rewind.after_cut",
    "recovery.before_rebuild",
    "recovery.after_rebuild",
    "recovery.before_abort",
    "retention.after_record",
    "retention.before_remove",
    "retention.after_remove",
    "close.before_flush",
    "close.before_abort",
)
"""Tests kill the process at each of these; other names cannot be armed."""

armed: Final[dict[str, Callable[[], None]]] = {}
"""The faults to inject, by the name of their place; empty in production."""


def failpoint(name: str) -> None:
    """Run the fault of this point, if a test armed it."""
    if (action := armed.get(name)) is not None:
        action()


def arm(name: str, action: Callable[[], None]) -> None:
    assert name in POINTS, f"{name!r} is not a fail point"
    armed[name] = action


def disarm() -> None:
    armed.clear()
