"""Progress that is saved behind the log, never ahead of it.

A service that moves messages notes how far it came. If that note outlived a loss of power and the
moved messages did not, they would be lost. So a note is taken together with the end of the log,
and written once the log is on the medium up to there.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.store.store import MessageStore

T = TypeVar("T")


class FlushedCheckpoint(Generic[T]):
    """Owner: the broker loop. `take` gives a value that does not change any more."""

    def __init__(
        self,
        store: MessageStore,
        take: Callable[[], T],
        save: Callable[[T], None],
        *,
        every_ms: int,
        now_s: float,
    ) -> None:
        self._store = store
        self._take = take
        self._save = save
        self._every_s = every_ms / 1000
        self._next_s = now_s + self._every_s
        self._saved = take()
        self._waiting: tuple[PhysicalOffset, T] | None = None

    def tick(self, now_s: float) -> None:
        if self._waiting is None and now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            self._waiting = (self._store.log.end, self._take())
        if self._waiting is not None and self._store.flushed >= self._waiting[0]:
            self._write(self._waiting[1])
            self._waiting = None

    def finish(self) -> None:
        """Save the last state, if all it speaks of is on the medium."""
        if self._store.flushed >= self._store.log.end:
            self._write(self._take())

    def _write(self, state: T) -> None:
        if state != self._saved:
            self._save(state)
            self._saved = state
