"""All consume queues of a store, by topic and queue."""

import contextlib
import resource
from collections.abc import Iterator
from itertools import count
from typing import Final, NamedTuple

from tianzhou.base.kinds import PhysicalOffset, QueueKey, queue_key
from tianzhou.store.consume_queue import ConsumeQueue
from tianzhou.store.derive_record import is_topic_name
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.file_cache import FileCache
from tianzhou.store.files import Files, list_visible

OPEN_FILES_MAX: Final = 256
_NOTHING: Final = PhysicalOffset(0)
DELETED: Final = ".deleted"
"""Directory for files of deleted queues that still have to be removed. Listings skip it."""


class SetAside(NamedTuple):
    """Deleted queues, and their remaining files."""

    queues: int
    files: list[str]


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
        return [queue for key, queue in self._queues.items() if key.topic == topic]

    def obtain(self, key: QueueKey) -> ConsumeQueue:
        """The queue, made now if it is new."""
        queue = self._queues.get(key)
        if queue is None:
            topic_directory = f"{self.directory}/{key.topic}"
            self.cache.dirty_dirs |= {self.directory, topic_directory}
            queue = self._queues[key] = self._make(key)
        return queue

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
            self._queues[key] = queue

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

    def used(self) -> int:
        """Queues that ever had a unit. A crash may leave the file of a queue that the checkpoint
        does not know of; it is not counted, because its units were truncated."""
        return sum(queue.end > 0 for queue in self._queues.values())

    def units(self) -> int:
        """Units of all queues: a number that shows when a queue, or either end of one, is lost."""
        return sum(queue.count for queue in self._queues.values())

    def unwritten(self) -> list[ConsumeQueue]:
        """Queues with units that are in memory only."""
        return [queue for queue in self._queues.values() if queue.is_unwritten]

    def write_out(self) -> None:
        for queue in self._queues.values():
            queue.write_out()

    def remove_topic(self, topic: str, *, before: PhysicalOffset | None = None) -> int:
        """Remove every queue of a topic, or those that end before a log offset; returns how
        many."""
        queues = self._ending(topic, before)
        for queue in queues:
            queue.remove_all()
            del self._queues[queue.key]
        directory = f"{self.directory}/{topic}"
        if queues and self._files.exists(directory):
            if not self._files.list(directory):
                self._files.remove_dir(directory)
                self.cache.dirty_dirs.discard(directory)
            self._files.sync_dir(self.directory)
        return len(queues)

    def set_aside(self, topic: str, *, before: PhysicalOffset | None) -> SetAside:
        """Like `remove_topic`, but only rename the files, without removing or syncing any, which
        may take long. The queues may be created again at once."""
        queues, moved = self._ending(topic, before), list[str]()
        if queues:
            self._files.make_dirs(self._deleted)
        for queue in queues:
            moved += queue.move_files(self._places)
            del self._queues[queue.key]
        directory = f"{self.directory}/{topic}"
        if queues and self._files.exists(directory) and not self._files.list(directory):
            self._files.remove_dir(directory)
            self.cache.dirty_dirs.discard(directory)
        return SetAside(len(queues), moved)

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
        """Forget, on disk too, every unit that can be derived from the log again. Those of
        expired messages stay: only they know how many there were, and a queue that began at 0
        again would make groups skip what comes next."""
        self._queues.clear()
        for key in tuple(self.on_disk()):
            queue = self.obtain(key)
            try:
                queue.load(below=log_min, clean=False, mend=True)
                is_needed = log_min > 0 and queue.end > 0
            except StoreDamaged:
                is_needed = False  # its end is then what the log says
            if not is_needed:
                queue.remove_all()
                del self._queues[key]
        for topic in list_visible(self._files, self.directory):
            if not self._files.list(f"{self.directory}/{topic}"):
                self._files.remove_dir(f"{self.directory}/{topic}")

    def close(self) -> None:
        self.cache.close()

    def _make(self, key: QueueKey) -> ConsumeQueue:
        # Admission and `derive` check names too; this is the last line of defence.
        if not is_topic_name(key.topic):
            raise StoreDamaged(self.directory, f"{key.topic!r} can't be the name of a directory")
        directory = f"{self.directory}/{key.topic}/{key.queue_id}"
        return ConsumeQueue(self.cache, directory, key, self._file_units)
