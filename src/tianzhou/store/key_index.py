"""The key index: its files in the order of time, rolled when full, searched newest first."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.base.java import key_hash
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.store.descriptors import is_unopened
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.failpoint import failpoint
from tianzhou.store.files import Files, creating, list_visible
from tianzhou.store.index_file import IndexFile, empty_slots, file_bytes

QUERY_COUNT_MAX: Final = 64
"""RocketMQ's limit for one query."""
_EVER_MS: Final = 1 << 62


class KeyIndexView:
    """Files of the index, for searching."""

    def __init__(self, files: list[IndexFile]) -> None:
        self.files = files
        self.damaged: dict[str, str] = {}
        """Maps the name of a file that could not be searched or written to the reason."""
        self.on_damage: Callable[[str, str], None] = lambda _path, _reason: None
        """Called with path and reason once for each of them."""

    def find(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int, count_max: int
    ) -> list[PhysicalOffset]:
        """Return the offsets where messages with this key may be, newest first, each once."""
        found = dict.fromkeys(self.candidates(topic, key, begin_ms=begin_ms, end_ms=end_ms))
        return list(found)[:count_max]

    def candidates(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int
    ) -> Iterator[PhysicalOffset]:
        """Iterate over these offsets. Hashes collide: the caller must compare the records."""
        wanted = key_hash(f"{topic}#{key}")
        last = -1
        for file in reversed(self.files):
            if file.overlaps(begin_ms, end_ms):
                for offset in self._found(file, wanted, begin_ms, end_ms):
                    if offset != last:  # two keys of one message may have one hash
                        yield PhysicalOffset(offset)
                    last = offset
            if file.begin_timestamp < begin_ms:
                break

    def holds(self, hash_: int, offset: int) -> bool:
        """Whether there is an entry for exactly this. Offsets only grow, whereas timestamps go back
        with the clock, or when a member with another clock becomes the master."""
        return any(
            offset in self._found(file, hash_, 0, _EVER_MS)
            for file in self.files
            if not file.is_empty and file.begin_offset <= offset <= file.end_offset
        )

    def _found(self, file: IndexFile, hash_: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """The matches in one file. A file that cannot be read is skipped."""
        try:
            yield from file.find(hash_, begin_ms, end_ms)
        except StoreDamaged as error:
            self._note(file, error)

    def _note(self, file: IndexFile, error: StoreDamaged) -> None:
        if file.name not in self.damaged:
            self.damaged[file.name] = error.reason
            self.on_damage(error.path, error.reason)

    def close(self) -> None:
        for file in self.files:
            file.close()


class KeyIndex(KeyIndexView):
    """Owner: the store's writer."""

    def __init__(
        self, files: Files, directory: str, clock: Clock, *, slots: int, entries: int
    ) -> None:
        super().__init__([])
        self._files = files
        self.directory = directory
        self._clock = clock
        self._slots = slots
        self._entries = entries
        self.dirty: set[str] = set()
        """Names of files written to since the last checkpoint collected them for syncing."""
        self._next_name = ""
        """The name of the file that is to be created next. A failed attempt is retried with the
        same name, so that attempts never leave more than one file behind."""
        files.make_dirs(directory)

    def load(self) -> None:
        for name in list_visible(self._files, self.directory):
            file = self._files.open(f"{self.directory}/{name}")
            self.files.append(IndexFile(file, slots=self._slots, entries=self._entries))

    # Writing

    def put(self, hashes: Sequence[int], offsets: Sequence[int], timestamps: Sequence[int]) -> None:
        """Add entries in the order of the log. Existing entries are skipped: a disk that became
        full may have accepted some of them."""
        at = self._count_from(offsets[0])
        while at < len(hashes):
            file = self._current()
            end = min(len(hashes), at + file.room)
            try:
                file.put(hashes[at:end], offsets[at:end], timestamps[at:end])
            except StoreDamaged as error:
                # The entries go into a new file; a search reports the losses of this one.
                self._abandon(file, error)
                continue
            self.dirty.add(file.file.path)
            at = end

    def _count_from(self, offset: int) -> int:
        """Count the entries of messages at or beyond this offset."""
        count = 0
        for file in reversed(self.files):
            if file.end_offset < offset:
                break
            try:
                count += file.count - file.count_below(offset)
            except StoreDamaged as error:
                # Its entries are added again: a search returns each offset once.
                self._abandon(file, error)
        return count

    def _abandon(self, file: IndexFile, error: StoreDamaged) -> None:
        """Stop writing to a damaged file."""
        file.damage = error.reason
        self._note(file, error)

    def _current(self) -> IndexFile:
        newest = self.files[-1] if self.files else None
        if newest is not None:
            if newest.room > 0 and not newest.damage:
                return newest
            try:
                newest.seal()
            except StoreDamaged as error:
                self._abandon(newest, error)
        failpoint("index.before_create")
        made = self._begin(newest)
        failpoint("index.after_create")
        return made

    def _begin(self, newest: IndexFile | None) -> IndexFile:
        # The slots take 20 MB by default; without that much memory no file is created.
        slots = empty_slots(self._slots)
        self._next_name = self._next_name or self._fresh_name()
        path = f"{self.directory}/{self._next_name}"
        with creating(self._files, path, file_bytes(self._slots, self._entries)) as file:
            made = IndexFile.begin(
                file,
                slots,
                entries=self._entries,
                offset=newest.end_offset if newest else 0,
                timestamp=newest.end_timestamp if newest else 0,
            )
            self.files.append(made)
        self._next_name = ""
        return made

    def _fresh_name(self) -> str:
        """Return a new file name: the local time in milliseconds, later than all existing names."""
        now_ms = self._clock.now_ms()
        name = _name_of(now_ms)
        while self.files and name <= self.files[-1].name:
            now_ms += 1
            name = _name_of(now_ms)
            if name <= self.files[-1].name and now_ms % 1000 == 0:
                # The clock was set back; counting up is slow over hours, so continue from the last
                # name.
                name = f"{int(self.files[-1].name) + 1:017d}"
        return name

    # Recovery and retention

    def cut(self, newest: str, count: int) -> bool:
        """Truncate to where file `newest` had `count` entries; False if that is impossible."""
        count_before = len(self.files)
        while self.files and self.files[-1].name > newest:
            self._remove(self.files[-1])
            self.files.pop()
        if len(self.files) < count_before:
            self._files.sync_dir(self.directory)
        if not newest:
            return not self.files
        if not self.files or self.files[-1].name != newest:
            return False
        try:
            is_cut = self.files[-1].cut(count)
        except StoreDamaged as error:
            self._note(self.files[-1], error)
            return False
        self.dirty.add(self.files[-1].file.path)
        return is_cut

    def cut_at(self, offset: PhysicalOffset, timestamp: int) -> bool:
        """Drop entries of messages from this offset on; `timestamp` is the store time of the
        last message before it. False if that can't be done."""
        newest, count = "", 1
        for file in reversed(self.files):
            try:
                count = file.count_below(offset)
            except StoreDamaged as error:
                self._note(file, error)
                return False
            if count > 1:
                newest = file.name
                break
        if not self.cut(newest, count):
            return False
        if self.files:
            self.files[-1].set_end(timestamp)
            self.dirty.add(self.files[-1].file.path)
        return True

    def remove_expired(self, log_min: PhysicalOffset) -> int:
        """Remove files that only refer to messages the log no longer has; never the newest. A file
        that cannot be removed for lack of memory is removed the next time."""
        removed = 0
        try:
            while len(self.files) > 1 and self.files[0].end_offset < log_min:
                self._remove(self.files[0])
                self.files.pop(0)
                removed += 1
            if removed:
                self._files.sync_dir(self.directory)
        except (OSError, MemoryError) as error:
            if not is_unopened(error):
                raise
        return removed

    def remove_all(self) -> None:
        """Remove every file, readable or not; they will be derived from the log again."""
        for file in self.files:
            file.close()
        self.files.clear()
        self.dirty.clear()
        for name in self._files.list(self.directory):
            self._files.remove(f"{self.directory}/{name}")
        # Later syncs come only with new entries, and there may be none.
        self._files.sync_dir(self.directory)

    # Checkpoints

    def begin_write(self) -> None:
        """Mark all changes so far to be written by `write_some`."""
        if self.files:
            self.files[-1].begin_write()

    def write_some(self) -> bool:
        """Write a slice of the marked changes; returns whether that was all. Only the newest file
        changes in memory."""
        if not self.files:
            return True
        try:
            return self.files[-1].write_some()
        except StoreDamaged as error:
            # The next start finds the damage too, and derives the index from the log again.
            self._abandon(self.files[-1], error)
            return True

    def write_out(self) -> None:
        """Write everything that changed."""
        self.begin_write()
        while not self.write_some():
            pass

    def take_dirty(self) -> set[str]:
        taken, self.dirty = self.dirty, set()
        return taken

    def _remove(self, file: IndexFile) -> None:
        # Remove the file first: one that could not be removed is still part of the index.
        self._files.remove(file.file.path)
        self.dirty.discard(file.file.path)
        file.close()


def _name_of(now_ms: int) -> str:
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"
