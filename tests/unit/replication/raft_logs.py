"""Small stores with the log of a group in them."""

from pathlib import Path

from tianzhou.base.kinds import PhysicalOffset, QueueKey, queue_key
from tianzhou.raft.membership import members_of
from tianzhou.raft.messages import Entry, Kind, LogIndex, Term
from tianzhou.raft.ready import HardState
from tianzhou.record.chunk import Entry as Message
from tianzhou.record.chunk import RecordChunk, build
from tianzhou.replication.raft_state import RaftFiles, Spacing, first_group
from tianzhou.replication.raft_storage import RaftStorage
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.store.files import Files, RealFiles, Usage
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock

FILE_BYTES = 4096
KEY = queue_key("orders", 0)
MEMBERS = members_of(["n0", "n1", "n2"])
MARKED = Spacing(step_bytes=500, walk_bytes=0)
"""A start goes by marks alone, as far as there are any."""
_SPACING = Spacing()


class CalmFiles(RealFiles):
    """How full the disk of this machine is must not decide a test."""

    def usage(self, path: str) -> Usage:
        return Usage(total=100, free=90)


class Log:
    """A member's store and storage. Nothing is visible that was not said to be committed."""

    def __init__(
        self,
        root: Path | str,
        files: Files | None = None,
        member: str = "n0",
        spacing: Spacing = _SPACING,
    ) -> None:
        disk = files or CalmFiles()
        config = StoreConfig(
            commit_log_file_bytes=FILE_BYTES,
            consume_queue_file_bytes=200,
            commit_log_preallocate_bytes=4096,
            index_slots=8,
            index_entries=40,
            retention_hours=1,
            retention_at_hours=(),
            flush_mode=FlushMode.SYNC,
        )
        self.files = RaftFiles(disk, str(root))
        self.state: HardState | None = HardState()
        if self.files.is_new:
            self.files.create(first_group("g", member, MEMBERS), HardState())
        else:
            self.state = self.files.load()
        committed = self.files.committed()[1]
        self.clock = ManualClock()
        self.store = MessageStore(disk, str(root), config, self.clock, visible=committed)
        self.visible = committed
        self.store.limit_visible(lambda: self.visible)
        self.storage = RaftStorage(self.store, self.files, spacing=spacing)

    def lead(self) -> None:
        """Everything in the log is committed, and messages are taken from now on."""
        self.commit(self.storage.last)
        self.store.begin_writing()

    def commit(self, index: int) -> None:
        self.store.flush()
        self.visible = self.storage.end_of(LogIndex(index))
        self.files.note_commit(LogIndex(index), self.visible)
        self.store.dispatch_all()

    def send(self, *bodies: bytes, term: int = 1, key: QueueKey = KEY) -> list[bytes]:
        parts: list[bytes] = []
        self.storage.append(chunk(*bodies, key=key), Term(term), parts.append)
        return parts

    def entries(self, first: int = 1, last: int | None = None) -> list[Entry]:
        end = self.storage.last if last is None else last
        return list(self.storage.entries(LogIndex(first), LogIndex(end), 1 << 30))

    def bytes(self) -> bytes:
        """Everything in the log."""
        log = self.store.log
        return b"".join(segment.read(0, log.file_bytes) for segment in log.segments)[
            : log.end - log.min_offset
        ]

    def close(self) -> None:
        self.files.close()
        self.store.close()

    def crash(self) -> None:
        self.files.close()
        self.store.abandon()


def chunk(*bodies: bytes, key: QueueKey = KEY) -> RecordChunk:
    return build([Message(key, body) for body in bodies], store_host=bytes(8), record_crc=True)


def barrier(index: int, term: int = 1) -> Entry:
    return Entry(LogIndex(index), Term(term), Kind.BARRIER, b"")


def members(index: int, *names: str, term: int = 1) -> Entry:
    return Entry(LogIndex(index), Term(term), Kind.MEMBERS, members_of(names).encode())


def offset(number: int) -> PhysicalOffset:
    return PhysicalOffset(number)
