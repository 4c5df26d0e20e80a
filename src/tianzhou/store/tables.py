"""The small tables in `config/`: topics, groups, and the progress of consumers and delays.

JSON, in RocketMQ's shapes. A table is replaced atomically: written next to the old one, synced, and
renamed; the previous version stays as `.bak`. A crash leaves the old table or the new one. An
unreadable table is an error that names the file: starting with an empty one would lose topics, or
deliver everything again.

`save` waits for the disk; `save_later` leaves the write to the flush thread.
"""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from tianzhou.base.errors import TianzhouError
from tianzhou.base.kinds import QueueKey, QueueOffset, queue_key
from tianzhou.store.descriptors import is_shortage
from tianzhou.store.errors import DiskFull, StoreDamaged, StoreFenced
from tianzhou.store.failpoint import failpoint
from tianzhou.store.files import Files, creating, make_lasting_dirs
from tianzhou.wire import tables as wire
from tianzhou.wire.names import SCHEDULE_TOPIC

T = TypeVar("T")

_UNREADABLE: Final = (TianzhouError, msgspec.DecodeError, UnicodeError, RecursionError)
_OF_OTHERS: Final = ("derivation", "incidents", "timerProgress", "replication", "acceptedOffset")
"""Tables that other modules keep in the same directory; all are JSON objects."""

EndOf = Callable[[QueueKey], QueueOffset]
"""The end of a queue."""


class Table(Generic[T]):
    """One file, one value."""

    def __init__(
        self,
        files: Files,
        path: str,
        decode: Callable[[bytes], T],
        empty: T,
        *,
        needs: Sequence[str] = (),
    ) -> None:
        """`needs` are the members that every version of the file has had: without them the file is
        not this table, or a name in it is damaged and everything under that name would be lost."""
        self._files = files
        self.path = path
        self._decode = decode
        self._empty = empty
        self._needs = needs
        self._writing = threading.Lock()
        self._staged: bytes | None = None
        """The value of the last `save_later`, until it is written."""
        self.run_later: Callable[[Callable[[], None]], None] = lambda write: write()
        """Runs a call that waits for the disk. The store sets it to use its flush thread."""

    def load(self) -> T:
        """Return the stored value; the empty one if it was never saved."""
        for path in (self.path, f"{self.path}.bak"):
            # Between two renames there is only the backup, and it is the last whole table.
            if self._files.exists(path):
                return self._read(path)
        return self._empty

    def _read(self, path: str) -> T:
        file = self._files.open(path)
        try:
            data = file.pread(0, file.size())
        finally:
            file.close()
        try:
            value = self._decode(data)
        except _UNREADABLE as error:
            raise self._damaged(path, str(error)) from error
        missing = [name for name in self._needs if f'"{name}"'.encode() not in data]
        if missing:
            raise self._damaged(path, f"it has no {missing[0]!r}")
        return value

    def _damaged(self, path: str, reason: str) -> StoreDamaged:
        return StoreDamaged(
            path,
            f"can't be read: {reason}; the version before it is {self.path}.bak: "
            "repair the file, or put the older one in its place",
        )

    def save(self, value: T) -> None:
        """Replace the stored value; when this returns, the new one survives a crash. Raises
        DiskFull or StoreFenced; then the old one is there, or the new one."""
        with self._guard():
            data = msgspec.json.encode(value)
        with self._writing, self._guard():
            self._staged = None  # the staged value is older
            self._replace(data)

    def save_later(self, value: T) -> None:
        """Replace the stored value without waiting for the disk. A value that is replaced before it
        was written is never written. Called by the owner of the table."""
        with self._guard():
            self._staged = msgspec.json.encode(value)
        self.run_later(self._write_staged)

    @property
    def is_saved(self) -> bool:
        """Whether the last value is durable."""
        return self._staged is None

    def _write_staged(self) -> None:
        """May be called from any thread."""
        with self._writing, self._guard():
            data = self._staged
            if data is None:
                return  # written together with an earlier value, or replaced by `save`
            self._replace(data)
            if self._staged is data:
                self._staged = None

    @contextmanager
    def _guard(self) -> Generator[None]:
        """Translate errors of the disk and MemoryError."""
        try:
            yield
        except (OSError, MemoryError) as error:
            kind = DiskFull if is_shortage(error) else StoreFenced
            what = "out of memory" if isinstance(error, MemoryError) else f"{error}; check the disk"
            raise kind(f"saving {self.path} failed: {what}") from error

    def _replace(self, data: bytes) -> None:
        data = msgspec.json.format(data, indent=2)
        directory = self.path.rpartition("/")[0]
        temporary = f"{self.path}.tmp"
        make_lasting_dirs(self._files, directory)
        with creating(self._files, temporary, 0) as file:
            file.pwrite(0, data)
            file.sync()
            file.close()
        failpoint("table.after_temporary")
        if self._files.exists(self.path):
            self._files.rename(self.path, f"{self.path}.bak")
            failpoint("table.after_backup")
        self._files.rename(temporary, self.path)
        failpoint("table.after_rename")
        self._files.sync_dir(directory)


_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Tables:
    """The tables of a broker."""

    def __init__(self, files: Files, directory: str) -> None:
        def table(name: str, needs: str, decode: Callable[[bytes], T], empty: T) -> Table[T]:
            return Table(files, f"{directory}/{name}.json", decode, empty, needs=(needs,))

        self._files = files
        self._directory = directory
        self.topics = table(
            "topics", "topicConfigTable", wire.decode_topic_table, wire.TopicConfigTable()
        )
        self.groups = table(
            "subscriptionGroup",
            "subscriptionGroupTable",
            wire.decode_group_table,
            wire.SubscriptionGroupTable(),
        )
        self.consumer_offsets = table(
            "consumerOffset",
            "offsetTable",
            wire.decode_consumer_offsets,
            wire.ConsumerOffsetTable(),
        )
        self.delay_offsets = table(
            "delayOffset", "offsetTable", wire.decode_delay_offsets, wire.DelayOffsetTable()
        )

    def check_all(self) -> None:
        """Read every table once, including those of other modules, before anything in the directory
        changes. Raises StoreDamaged for the first unreadable one."""
        for table in (self.topics, self.groups, self.consumer_offsets, self.delay_offsets):
            table.load()
        for name in _OF_OTHERS:
            Table(self._files, f"{self._directory}/{name}.json", _OBJECT.decode, {}).load()

    def run_later(self, runner: Callable[[Callable[[], None]], None]) -> None:
        """Use `runner` for the disk writes of `save_later`."""
        for table in (self.topics, self.groups, self.consumer_offsets, self.delay_offsets):
            table.run_later = runner

    def beyond(self, end_of: EndOf) -> list["SetBack"]:
        """Stored offsets that lie beyond the end of their queue."""
        consumers = (
            SetBack(name, queue_id, offset, end_of(queue_key(name.partition("@")[0], queue_id)))
            for name, row in self.consumer_offsets.load().offset_table.items()
            for queue_id, offset in row.items()
        )
        delays = (
            SetBack(SCHEDULE_TOPIC, level - 1, offset, end_of(queue_key(SCHEDULE_TOPIC, level - 1)))
            for level, offset in self.delay_offsets.load().offset_table.items()
        )
        return [one for one in (*consumers, *delays) if one.stored > one.end]

    def set_back(self, found: list["SetBack"]) -> None:
        """Replace offsets that lie beyond the end of their queue by that end.

        A crash may lose the end of a log. An offset beyond it would skip the messages that get
        these ranks next; lowered to the end, the group gets them.
        """
        offsets = self.consumer_offsets.load()
        delays = self.delay_offsets.load()
        rows = {name: dict(row) for name, row in offsets.offset_table.items()}
        levels = dict(delays.offset_table)
        for name, queue_id, _, end in found:
            if name == SCHEDULE_TOPIC:
                levels[queue_id + 1] = end
            else:
                rows[name][queue_id] = end
        if rows != offsets.offset_table:
            self.consumer_offsets.save(msgspec.structs.replace(offsets, offset_table=rows))
        if levels != delays.offset_table:
            self.delay_offsets.save(msgspec.structs.replace(delays, offset_table=levels))


class SetBack(NamedTuple):
    """A stored offset beyond the end of its queue."""

    name: str
    """`TOPIC@GROUP`, or the topic of delayed messages, whose progress has no group."""
    queue_id: int
    stored: int
    end: int
