"""Checkpoints of progress that never get ahead of the log.

A service that moves messages records its progress. If the record survived a power failure and the
moved messages did not, they would be lost. So a checkpoint is taken together with the end of the
log, and written once the log is on the disk up to there.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.store.commit_log import CommitLog

T = TypeVar("T")


class FlushedLog(Protocol):
    """A log that knows how far it is on the disk."""

    log: CommitLog

    @property
    def flushed(self) -> PhysicalOffset: ...


class FlushedCheckpoint(Generic[T]):
    """Owner: the broker loop. `current` returns an immutable value."""

    def __init__(
        self,
        store: FlushedLog,
        current: Callable[[], T],
        save: Callable[[T], None],
        *,
        every_ms: int,
        now_s: float,
    ) -> None:
        self._store = store
        self._current = current
        self._save = save
        self._every_s = every_ms / 1000
        self._next_s = now_s + self._every_s
        self._saved = current()
        self._waiting: tuple[PhysicalOffset, T] | None = None

    def tick(self, now_s: float) -> None:
        if self._waiting is None and now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            self._waiting = (self._store.log.end, self._current())
        if self._waiting is not None and self._store.flushed >= self._waiting[0]:
            self._write(self._waiting[1])
            self._waiting = None

    def finish(self) -> None:
        """Save the last state, if the whole log is on the disk."""
        if self._store.flushed >= self._store.log.end:
            self._write(self._current())

    def _write(self, state: T) -> None:
        if state != self._saved:
            self._save(state)
            self._saved = state
