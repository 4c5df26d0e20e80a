"""All consume queues of a store, by topic and queue."""

import contextlib
import resource
import threading
from collections.abc import Iterator
from itertools import count
from typing import Final, NamedTuple

from tianzhou.base.kinds import PhysicalOffset, QueueKey, queue_key
from tianzhou.store.consume_queue import UNIT_BYTES, ConsumeQueue
from tianzhou.store.derive import is_topic_name
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.file_cache import FileCache
from tianzhou.store.files import Files, list_visible

OPEN_FILES_MAX: Final = 256
_NOTHING: Final = PhysicalOffset(0)
DELETED: Final = ".deleted"
"""Directory for files of deleted queues that still have to be removed. Listings skip it."""


class Census(NamedTuple):
    """Totals of all queues, as a checkpoint records them."""

    used: int
    """Queues that ever had a unit. A crash may leave the file of a queue that the checkpoint does
    not know of; it is not counted, because its units were truncated."""
    units: int
    """Units of all queues: a number that shows when a queue, or either end of one, is lost."""
    unwritten: list[ConsumeQueue]
    """Queues with units that are in memory only."""


def open_files_max() -> int:
    """Queue files that stay open: a quarter of what the process may open, at most 256."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return OPEN_FILES_MAX
    return max(1, min(OPEN_FILES_MAX, soft // 4))


class Queues:
    """Owner: the store's writer."""

    def __init__(
        self, files: Files, directory: str, file_units: int, *, create: bool = True
    ) -> None:
        self.directory = directory
        self.cache = FileCache(files, open_files_max())
        self._files = files
        self._file_units = file_units
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self._by_topic: dict[str, dict[QueueKey, ConsumeQueue]] = {}
        """The same queues: a deletion must not search all of them."""
        self._leaving: dict[str, list[ConsumeQueue]] = {}
        """By topic: deleted queues whose files are still in their place."""
        self._aside: dict[str, list[str]] = {}
        """By topic: their files once moved, until they are removed."""
        self._moving = threading.Lock()
        """Guards both, because the writer and the flush thread use them."""
        self._deleted = f"{directory}/{DELETED}"
        self._places = (f"{self._deleted}/{number:020d}" for number in count())
        self.log_min = PhysicalOffset(0)
        """The start of the log: messages below it have expired."""
        if create:
            files.make_dirs(directory)

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def get(self, key: QueueKey) -> ConsumeQueue | None:
        queue = self._queues.get(key)
        if queue is not None and queue.log_min < self.log_min:
            # Retention has removed files of the log but not yet visited this queue.
            queue.raise_minimum(self.log_min)
        return queue

    def has(self, queue: ConsumeQueue) -> bool:
        """Whether this object is still the current one of its queue: the topic may have been
        deleted."""
        return self._queues.get(queue.key) is queue

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        return list(self._by_topic.get(topic, {}).values())

    def obtain(self, key: QueueKey) -> ConsumeQueue:
        """Return the queue, creating it if it is new."""
        queue = self._queues.get(key)
        if queue is None:
            topic_directory = f"{self.directory}/{key.topic}"
            if key.topic in self._leaving:
                self.move_aside(key.topic)  # the new queue has the same path
            self.cache.dirty_dirs |= {self.directory, topic_directory}
            queue = self._make(key)
            self._add(queue)
        return queue

    def _add(self, queue: ConsumeQueue) -> None:
        self._queues[queue.key] = queue
        self._by_topic.setdefault(queue.key.topic, {})[queue.key] = queue

    def _drop(self, queue: ConsumeQueue) -> None:
        del self._queues[queue.key]
        siblings = self._by_topic[queue.key.topic]
        del siblings[queue.key]
        if not siblings:
            del self._by_topic[queue.key.topic]

    def load(
        self, *, below: PhysicalOffset, clean: bool, log_min: PhysicalOffset = _NOTHING
    ) -> None:
        """Open the queues on disk up to messages below one offset, and raise the minimum of each
        queue to the other."""
        self.log_min = log_min
        for key in self.on_disk():
            queue = self._make(key)
            queue.load(below=below, clean=clean)
            # Done while the file is open: with many queues it would have to be opened again.
            queue.raise_minimum(log_min)
            self._add(queue)

    def on_disk(self) -> Iterator[QueueKey]:
        for topic in list_visible(self._files, self.directory):
            for name in list_visible(self._files, f"{self.directory}/{topic}"):
                if not name.isdecimal():
                    raise StoreDamaged(
                        f"{self.directory}/{topic}/{name}", "is not a queue number; move it away"
                    )
                yield queue_key(topic, int(name))

    def ends_on_disk(self) -> dict[QueueKey, int]:
        """The ends of queues according to their files alone. A queue with inconsistent files is
        left out. Changes nothing."""
        found: dict[QueueKey, int] = {}
        for key in self.on_disk():
            queue = self._make(key)
            with contextlib.suppress(StoreDamaged):
                queue.load(below=PhysicalOffset(1 << 62), clean=True)
                found[key] = queue.end
        return found

    def census(self) -> Census:
        """Count the queues in one pass with plain attributes: there may be 50,000, and the event
        loop waits."""
        used = units = 0
        unwritten: list[ConsumeQueue] = []
        for queue in self._queues.values():
            end = queue.written
            if tail := queue.tail:
                unwritten.append(queue)
                end += len(tail) // UNIT_BYTES
            if end:
                used += 1
                units += end - queue.first
        return Census(used, units, unwritten)

    def write_out(self) -> None:
        for queue in self._queues.values():
            queue.write_out()

    def remove_topic(self, topic: str, *, before: PhysicalOffset | None = None) -> int:
        """Remove every queue of a topic, or those that end before a log offset; returns how
        many."""
        queues = self._ending(topic, before)
        for queue in queues:
            queue.remove_all()
            self._drop(queue)
        directory = f"{self.directory}/{topic}"
        if queues and self._files.exists(directory):
            if not self._files.list(directory):
                self._files.remove_dir(directory)
                self.cache.dirty_dirs.discard(directory)
            self._files.sync_dir(self.directory)
        return len(queues)

    def detach(self, topic: str, *, before: PhysicalOffset | None) -> int:
        """Like `remove_topic`, but leave the files to `move_aside` and `remove_aside`: while a
        thread syncs, changing a directory may take 100 ms. The queues may be created again at
        once."""
        queues = self._ending(topic, before)
        for queue in queues:
            queue.let_go()
            self._drop(queue)
        with self._moving:
            self._leaving.setdefault(topic, []).extend(queues)
        if topic in self._by_topic:
            self.move_aside(topic)  # queues that stay use the directory
        else:
            self.cache.dirty_dirs.discard(f"{self.directory}/{topic}")
        return len(queues)

    def move_aside(self, topic: str) -> None:
        """Rename the files of a topic's deleted queues. May be called from any thread, and again
        after an error."""
        with self._moving:
            queues, directory = self._leaving.get(topic, []), f"{self.directory}/{topic}"
            if queues:
                self._files.make_dirs(self._deleted)
            while queues:
                queues[-1].move_files(self._places, self._aside.setdefault(topic, []))
                queues.pop()
            if topic in self._leaving:
                if self._files.exists(directory) and not self._files.list(directory):
                    self._files.remove_dir(directory)
                del self._leaving[topic]

    def remove_aside(self, topic: str) -> None:
        """Remove the renamed files of a topic. Called like `move_aside`."""
        with self._moving:
            moved = self._aside.get(topic, [])
            while moved:
                self._files.remove(moved[-1])
                moved.pop()
            self._aside.pop(topic, None)

    def _ending(self, topic: str, before: PhysicalOffset | None) -> list[ConsumeQueue]:
        """The queues of a topic, or those that end before a log offset."""
        queues = self.of_topic(topic)
        if before is None:
            return queues
        return [queue for queue in queues if queue.last_physical_offset() < before]

    def remove_set_aside(self) -> None:
        """Remove the remaining files of deleted queues now."""
        if self._files.exists(self._deleted):
            for name in self._files.list(self._deleted):
                self._files.remove(f"{self._deleted}/{name}")
            self._files.remove_dir(self._deleted)

    def keep_expired(self, log_min: PhysicalOffset) -> None:
        """Remove, on disk too, every unit that can be derived from the log again. Units of expired
        messages stay: only they record how many there were, and a queue that restarted at 0 would
        make groups skip the next messages."""
        self._queues.clear()
        self._by_topic.clear()
        for key in tuple(self.on_disk()):
            queue = self.obtain(key)
            try:
                queue.load(below=log_min, clean=False, repair=True)
                is_needed = log_min > 0 and queue.end > 0
            except StoreDamaged:
                is_needed = False  # its end is then what the log says
            if not is_needed:
                queue.remove_all()
                self._drop(queue)
        for topic in list_visible(self._files, self.directory):
            if not self._files.list(f"{self.directory}/{topic}"):
                self._files.remove_dir(f"{self.directory}/{topic}")

    def close(self) -> None:
        self.cache.close()

    def _make(self, key: QueueKey) -> ConsumeQueue:
        # Admission and `derive` check names too; this is the last line of defence.
        if not is_topic_name(key.topic):
            raise StoreDamaged(self.directory, f"{key.topic!r} is not a valid directory name")
        directory = f"{self.directory}/{key.topic}/{key.queue_id}"
        return ConsumeQueue(self.cache, directory, key, self._file_units)
