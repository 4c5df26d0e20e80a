"""Deleting topics without waiting for the disk.

The writer only drops the queues. The thread that syncs the log does the rest, as errands: record
the deletion in `config/derivation.json`, rename the files of the queues into a directory that
listings skip, sync the renames and remove the files. A deletion is durable once it is recorded; the
next start removes files that a crash leaves behind. A topic that is created again in the meantime
makes the writer rename its old files itself.
"""

import contextlib
from functools import partial

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.store.derivation import Derivation
from tianzhou.store.files import Files
from tianzhou.store.flush import Flusher
from tianzhou.store.queues import Queues


class Removals:
    """Owner: the store's writer. The errands run wherever the flusher runs."""

    def __init__(
        self, files: Files, queues: Queues, derivation: Derivation, flusher: Flusher
    ) -> None:
        self._files = files
        self._queues = queues
        self._derivation = derivation
        self._flusher = flusher
        self.begun = 0
        """Deletions so far."""
        self.durable = 0
        """How many of them are durable. May be read from any thread."""

    def delete(self, topic: str, at: PhysicalOffset, *, before: PhysicalOffset | None) -> int:
        """Delete the records of a topic below `at`, and its queues or those that end below
        `before`; returns how many queues."""
        self._derivation.delete_topic(topic, at)
        count = self._queues.detach(topic, before=before)
        self.begun += 1
        errands = self._flusher.errands
        errands.append(partial(self._record, topic))
        errands.append(partial(self._queues.remove_aside, topic))
        return count

    def _record(self, topic: str) -> None:
        self._derivation.save()
        self._queues.move_aside(topic)
        directory = self._queues.directory
        for path in (f"{directory}/{topic}", directory):
            with contextlib.suppress(FileNotFoundError):  # the topic's own is usually gone
                self._files.sync_dir(path)
        self.durable += 1
