"""Work on all queues of a store, in slices, so that no slice stops the event loop for long.

Two tasks have to visit every queue. A checkpoint writes out the units that queues hold in memory.
Retention raises the minimum of every queue and removes the files below it. A broker with 50,000
queues would be blocked for seconds; here one call visits as many queues as fit into a slice.

A checkpoint that takes several slices describes the state at the first: the position of dispatch,
the number of queues and units, and the state of the index. Later units may be in the files when it
is saved; a start truncates them, as it does after every checkpoint.
"""

from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.store.consume_queue import ConsumeQueue
from tianzhou.store.dispatch import Dispatcher
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.flush import Derivations
from tianzhou.store.key_index import KeyIndex
from tianzhou.store.queues import Queues

SLICE_QUEUES: Final = 256
SLICE_S: Final = 0.01
"""A slice ends at either bound. A queue takes about 20 µs, or 120 µs if its file is new."""
_ROUND: Final = 16
"""Queues between two checks of the clock."""


class QueueWork:
    """Owner: the store's writer."""

    def __init__(
        self, queues: Queues, index: KeyIndex | None, dispatcher: Dispatcher, clock: Clock
    ) -> None:
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._clock = clock
        self._expiring: list[ConsumeQueue] = []
        """Queues that may have files below their minimum."""
        self._tails: list[ConsumeQueue] = []
        """Queues whose units must be in the files before the checkpoint is saved."""
        self._begun: Derivations | None = None
        self.slice_queues = SLICE_QUEUES

    @property
    def is_unfinished(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._expiring) or self._begun is not None

    def expire(self) -> None:
        """Handle removed files of the log. A checkpoint must follow, because it counts the
        units."""
        self._expiring = list(self._queues)

    def begin(self) -> None:
        """Start a checkpoint of the current queues; one that was started before is void."""
        index, dispatcher = self._index, self._dispatcher
        newest = index.files[-1] if index is not None and index.files else None
        census = self._queues.census()
        self._tails = census.unwritten
        if index is not None:
            index.begin_write()
        self._begun = Derivations(
            set(),
            set(),
            dispatcher.position,
            dispatcher.anchor,
            census.used,
            census.units,
            len(index.files) if index is not None else 0,
            newest.name if newest else "",
            newest.count if newest else 1,
            dispatcher.last_timestamp,
        )

    def step(self) -> Derivations | None:
        """Run one slice; returns what to sync and save once the checkpoint is ready."""
        try:
            self._slice()
            if self._expiring or self._tails or self._begun is None:
                return None
            if self._index is not None and not self._index.write_some():
                return None
        except (OSError, StoreDamaged):
            # It is now unknown which units are in the files; the next checkpoint starts with all
            # queues.
            self._tails, self._begun = [], None
            raise
        return self._finish(self._begun)

    def _slice(self) -> None:
        deadline_s, left = self._clock.monotonic_s() + SLICE_S, self.slice_queues
        while (self._expiring or self._tails) and left > 0:
            self._visit(min(_ROUND, left))
            left -= _ROUND
            if self._clock.monotonic_s() >= deadline_s:
                break

    def whole(self) -> Derivations:
        """Run a whole checkpoint at once, however long it takes."""
        while self._expiring:
            self._visit(len(self._expiring))
        self.begin()
        assert self._begun is not None
        self._queues.write_out()
        if self._index is not None:
            self._index.write_out()
        return self._finish(self._begun)

    def _visit(self, count: int) -> None:
        """Expire files first: a checkpoint that was started before would count their units."""
        queues = self._expiring or self._tails
        for queue in filter(self._queues.has, queues[-count:]):
            if queues is self._expiring:
                queue.raise_minimum(self._queues.log_min)
                queue.remove_expired()
            else:
                queue.write_out()
        del queues[-count:]
        if queues is self._expiring and not queues:
            self.begin()

    def _finish(self, begun: Derivations) -> Derivations:
        files, directories = self._queues.cache.take_dirty()
        if self._index is not None and (taken := self._index.take_dirty()):
            files |= taken
            directories.add(self._index.directory)
        self._tails, self._begun = [], None
        return begun._replace(files=files, directories=directories)
