"""A short workload in which any call to the disk may fail, and what must hold then."""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.record.chunk import Entry, build
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.store.errors import DiskFull, StoreError, StoreFenced
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import Cause, SimDisk
from tianzhou.testing.sim.disk_checks import Contents, all_contents, contents_of, demand
from tianzhou.testing.sim.disk_images import Fate
from tianzhou.testing.sim.disk_images import build as build_image
from tianzhou.testing.sim.workload import HOST, ROOT
from tianzhou.wire.tables import ConsumerOffsetTable

QUEUES: Final = (queue_key("A", 0), queue_key("B", 1))
STEPS: Final = 14
T = TypeVar("T")


class Fault(NamedTuple):
    """The n-th call that changes the disk fails, or every call from it on."""

    number: int
    error: Cause
    onward: bool


class Run:
    """A broker on a disk that fails, and the responses to its producers."""

    def __init__(self, mode: FlushMode, fault: Fault | None = None, *, drops: bool = False) -> None:
        self.config = StoreConfig(
            commit_log_file_bytes=2048,
            consume_queue_file_bytes=20 * 4,
            index_slots=4,
            index_entries=12,
            commit_log_preallocate_bytes=512,
            flush_mode=mode,
            retention_hours=1,
        )
        self.clock = ManualClock()
        self.disk = SimDisk()
        self.disk.failed_sync_drops = drops
        self.sent: list[tuple[QueueKey, bytes]] = []
        """Records that may be in the log, in its order."""
        self.acked = 0
        self.flushed = 0
        """How many of them were acknowledged, and how many are on the medium."""
        self.refused: list[bytes] = []
        """Bodies that were rejected with the guarantee that they are not stored."""
        self.errors: list[StoreError] = []
        if fault is not None:
            self.disk.fail_at(fault.number, fault.error, onward=fault.onward)
        self._orphans_max = 1 if fault is not None and fault.onward else 0
        """On a disk that keeps failing, a created file cannot be deleted either."""

    @property
    def fenced(self) -> StoreFenced | None:
        return next((one for one in self.errors if isinstance(one, StoreFenced)), None)

    def open(self, disk: SimDisk | None = None) -> MessageStore:
        return MessageStore(disk or self.disk, ROOT, self.config, self.clock)

    def work(self) -> None:
        """Run all operations of a store. An error ends its step; the broker continues."""
        store = self._try(self.open)
        if store is None:
            self.disk.heal()
            store = self.open()  # the directory must not stay locked
        for step in range(STEPS):
            self._step(store, step)
        if not store.is_broken:
            self._try(store.close)

    def _step(self, store: MessageStore, step: int) -> None:
        self.clock.advance(ms=7)
        was_broken, acked = store.is_broken, self.acked
        if store.refusal:
            self._try(store.clean)  # what housekeeping does every ten seconds
        self._try(lambda: self._send(store, step))
        self._try(lambda: self._flush(store))
        self._try(store.dispatch_all)
        if step % 5 == 3:
            self._try(store.checkpoint)
        if step == 7:
            offsets = ConsumerOffsetTable(offset_table={"A@g": {0: step}})
            self._try(lambda: store.tables.consumer_offsets.save(offsets))
        if step == 9:
            self.clock.advance(hours=2)
            self._try(lambda: store.clean(by_hand=True))
        if step == 11:
            self._try(lambda: store.delete_topic("none"))
        demand(not was_broken or self.acked == acked, "acknowledged by a store that is fenced")
        orphans = self._orphans(store)
        demand(len(orphans) <= self._orphans_max, f"files are left behind: {orphans}")

    def _orphans(self, store: MessageStore) -> set[str]:
        """Files of log and index that the store does not know: each failed attempt to create one
        could leave another."""
        log, index = store.log, store.index
        assert index is not None
        segments = [*log.segments, *([log.prepared] if log.prepared else [])]
        known = {segment.file.path for segment in segments} | {
            file.file.path for file in index.files
        }
        return {
            path
            for directory in (log.directory, index.directory)
            for name in self.disk.list(directory)
            if (path := f"{directory}/{name}") not in known
        }

    def _try(self, step: Callable[[], T]) -> T | None:
        try:
            return step()
        except StoreError as error:  # anything else ends the test
            self.errors.append(error)
            text = f"{error} {error.__cause__}"
            is_clear = "failed: [Errno" in text or "out of memory" in text
            demand(
                is_clear or isinstance(error, DiskFull),
                f"the error does not name the cause: {error!r}",
            )
            return None

    def _send(self, store: MessageStore, step: int) -> None:
        bodies = [b"<%d.%d>" % (step, rank) + b"x" * 60 * (step % 5) for rank in range(3)]
        entries = [
            Entry(QUEUES[rank % 2], body, b"KEYS\x01k%d-%d\x02" % (step, rank))
            for rank, body in enumerate(bodies)
        ]
        chunk = build(entries, store_host=HOST, record_crc=True)
        count = len(self.sent)
        try:
            store.append(chunk)
        except DiskFull:
            self.refused += bodies
            raise
        finally:
            if self.refused[-3:] != bodies:
                records = zip(chunk.starts, chunk.ends, strict=True)
                self.sent += [
                    (entry.queue, bytes(chunk.data[start:end]))
                    for entry, (start, end) in zip(entries, records, strict=True)
                ]
        if self.config.flush_mode is FlushMode.ASYNC:
            self.acked = count + len(entries)

    def _flush(self, store: MessageStore) -> None:
        count = len(self.sent)
        store.flush()
        demand(store.flushed == store.log.end, "flush returned without flushing")
        self.acked = self.flushed = count

    # Afterwards

    def check_restart(self) -> None:
        """Kill the process and restart it on a working disk."""
        self.disk.heal()
        self.disk.kill()
        store = self.open()
        self.check(store, self.acked)
        before = all_contents(store)
        # Everything that is visible now is on the medium, even after a failed sync.
        again = all_contents(self.open(SimDisk(lost(self.disk))))
        for queue, found in before.items():
            # A file whose deletion was not synced may reappear with older messages.
            other = again.get(queue, Contents(0, 0, b""))
            demand(
                other.end == found.end and other.records.endswith(found.records),
                f"what {queue} showed after the restart is lost",
            )

    def check_power_loss(self) -> None:
        store = self.open(SimDisk(lost(self.disk)))
        self.check(store, self.flushed)

    def check(self, store: MessageStore, required: int) -> None:
        """Check that all required messages exist, and otherwise only messages that were sent."""
        for queue in QUEUES:
            found = contents_of(store, queue)
            records = [record for other, record in self.sent if other == queue]
            least = sum(other == queue for other, _ in self.sent[:required])
            demand(
                least <= found.end <= len(records), f"{found.end} of {least}..{len(records)} found"
            )
            expected = b"".join(records[found.first : found.end])
            demand(found.records == expected, f"{queue} does not hold what was sent")
            for body in self.refused:
                demand(body not in found.records, "a refused message was stored")
            self._check_keys(store, queue, records[found.first : found.end])

    def _check_keys(self, store: MessageStore, queue: QueueKey, records: list[bytes]) -> None:
        for record in records:
            key = record.partition(b"KEYS\x01")[2].partition(b"\x02")[0].decode()
            with store.find(queue.topic, key) as found:
                spans = [bytes(span) for span in found.spans]
            demand(spans == [record], f"{key} is found {len(spans)} times")


def lost(disk: SimDisk) -> dict[str, bytes | None]:
    """Return what is left if the power fails now and no unsynced data is written."""
    point = disk.crash_point()
    return build_image(point, [(Fate.LOST, 0)] * len(point.numbers))
