"""The following half of a store: bytes of another log in, and the way back.

Replication uses it. A log that follows another takes no messages of its own, because their queue
offsets are given by who has the other log; `begin_writing` and `stop_writing` change that.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager

from tianzhou.base.kinds import Bytes, PhysicalOffset, QueueKey
from tianzhou.store import recovery
from tianzhou.store.checkpoint import CheckpointFile
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.store.errors import DiskFull, RawRefused, StoreFenced
from tianzhou.store.flush import Derivations, Flusher, FlushThread
from tianzhou.store.replica_bytes import whole
from tianzhou.store.store_reader import StoreReader
from tianzhou.store.truncate import begin_again, rewind


class ReplicaStore(StoreReader, ABC):
    """Owner: the store's writer."""

    config: StoreConfig
    _checkpoint: CheckpointFile
    _flusher: Flusher
    _thread: FlushThread | None
    _parts: recovery.Parts
    _next_offsets: dict[QueueKey, int] | None
    """Queue offsets that the next messages get; None while the log follows another."""

    _refusal: str

    @property
    def refusal(self) -> str:
        """Why appends are currently refused; empty if they are not."""
        return self._refusal

    def _refuse(self, reason: str) -> None:
        self._refusal = reason

    @abstractmethod
    def start(self, on_progress: Callable[[], None] = lambda: None) -> None: ...
    @abstractmethod
    def _raise_if_broken(self) -> None: ...
    @abstractmethod
    def _guard(self, what: str, *, final: bool = False) -> AbstractContextManager[None]: ...
    @abstractmethod
    def _fence(self, what: str, error: Exception) -> StoreFenced: ...
    @abstractmethod
    def _derivations(self) -> Derivations: ...

    def append_raw(self, offset: PhysicalOffset, data: Bytes) -> PhysicalOffset:
        """Take bytes of another log as they are, blanks and ends of files included; the new end.

        Only what is whole and sound is taken. If the end does not move as far as the bytes reach,
        the rest begins a record of which more must come: bring it again, with what follows. An
        empty log begins wherever the first bytes stand, if that is the beginning of a file.
        Queues and index follow by `dispatch`, as far as `visible_bound` allows; queue offsets are
        those in the records. Raises RawRefused, DiskFull, StoreFenced or StoreClosed.
        """
        self._raise_if_broken()
        log = self.log
        if offset != log.end:
            if log.end != log.min_offset or offset % log.file_bytes:
                raise RawRefused(f"the log ends at {log.end}; bytes for {offset} do not fit")
            self.begin_again(offset)
        found = whole(memoryview(data), offset=offset, file_bytes=log.file_bytes)
        self._next_offsets = None
        if not found.is_checked:
            self._checkpoint.admit_unchecked()
        try:
            log.append_raw(memoryview(data)[: found.size], timestamp=found.timestamp)
        except OSError as error:
            raise self._fence("writing the commit log", error) from error
        if self._thread is not None and self.config.flush_mode is FlushMode.SYNC:
            self._thread.ask()
        return log.end

    def append_between(self, data: Bytes, *, timestamp: int) -> None:
        """Take bytes that are in no queue, while messages are appended: a blank, or records that
        belong to replication itself. Raises DiskFull, StoreFenced or StoreClosed."""
        self._raise_if_broken()
        try:
            self.log.append_raw(data, timestamp=timestamp)
        except OSError as error:
            raise self._fence("writing the commit log", error) from error
        if self._thread is not None and self.config.flush_mode is FlushMode.SYNC:
            self._thread.ask()

    def truncate(self, offset: PhysicalOffset) -> None:
        """Go back: log, queues, index and checkpoint end at `offset`, for good. It must be the end
        of a record or of a file; that nothing confirmed lies behind it, the caller knows. Raises
        RawRefused, and then nothing is changed."""
        self._rewind("cutting the log", lambda: rewind(self._parts, offset))

    def begin_again(self, offset: PhysicalOffset) -> None:
        """Discard everything and continue with an empty log that begins at `offset`, a multiple of
        the file size: what lies between is gone on the other side as well."""
        self._rewind("beginning again", lambda: begin_again(self._parts, offset))

    def _rewind(self, what: str, step: Callable[[], None]) -> None:
        self._raise_if_broken()
        told = self._stop_thread()
        try:
            with self._guard(what, final=True):
                step()
            self.derivation.cut(self.log.end)
            self._next_offsets = None
            self._flusher.restart(
                self._checkpoint.current.flushed, checked=self._checkpoint.current.checked
            )
            self._flusher.save(self._derivations())
        finally:
            if told is not None:
                self.start(told)

    def _stop_thread(self) -> Callable[[], None] | None:
        """Stop syncing in the background; returns the callback for the next thread."""
        thread, self._thread = self._thread, None
        if thread is None:
            return None
        unsaved = thread.stop()
        if unsaved is not None:
            self.queues.cache.mark_dirty(unsaved.files, unsaved.directories)
        return thread.on_progress

    def begin_writing(self) -> None:
        """Accept messages from now on: queue offsets continue where the queues end. The log
        must be dispatched to its end; see `dispatch_all` and `visible_bound`. Raises DiskFull if
        there was no room for that."""
        if self.dispatcher.position < self.log.end and self.refusal:
            raise DiskFull(self.refusal)
        assert self.dispatcher.position == self.log.end, (
            f"the log ends at {self.log.end}, and is dispatched up to {self.dispatcher.position}"
        )
        self._next_offsets = {queue.key: int(queue.end) for queue in self.queues}

    def stop_writing(self) -> None:
        """No messages are appended any more, until `begin_writing`."""
        self._next_offsets = None

    def _forget_offsets(self, topic: str) -> None:
        """Restart the queues of a deleted topic at 0, unless they exist."""
        if self._next_offsets is not None:
            kept = {queue.key for queue in self.queues.of_topic(topic)}
            for key in [key for key in self._next_offsets if key.topic == topic]:
                if key not in kept:
                    del self._next_offsets[key]

    @property
    def is_writing(self) -> bool:
        """Whether messages may be appended: the log does not follow another one."""
        return self._next_offsets is not None

    def assigned_end(self, key: QueueKey) -> int:
        """The rank the next message gets; those before it may not be visible yet."""
        assigned = self._next_offsets.get(key, 0) if self._next_offsets is not None else 0
        return max(assigned, self.max_offset(key))
