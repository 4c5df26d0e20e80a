"""Random operations of a broker on a store, with a record of the guarantees given so far.

The workload keeps the bytes of every message it sent and, at each call that reaches the disk, the
guarantees given so far: a crash at this point must not break any of them.
"""

from random import Random
from typing import Any, Final, NamedTuple

from tianzhou.base.kinds import QueueKey, QueueOffset, queue_key
from tianzhou.record import flags, light_queues
from tianzhou.record.chunk import Entry, RecordChunk, build
from tianzhou.record.message import MessageView
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.store.read import ReadLimit, ReadStatus
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.sim.disk_images import CrashPoint
from tianzhou.wire.tables import ConsumerOffsetTable

ROOT: Final = "data/store"
QUEUES: Final = (queue_key("A", 0), queue_key("A", 1), queue_key("B", 0), queue_key("C", 3))
LIGHT: Final = (queue_key("%LMQ%x", 0), queue_key("%LMQ%y", 0))
GROUP: Final = "readers"
ALL: Final = ReadLimit(count=800, size=1 << 24)
HOST: Final = b"\x0a\0\0\x01\0\0\x2a\x9f"

Offsets = dict[str, dict[int, int]]


class Sent(NamedTuple):
    """One message as the log stores it."""

    queue: QueueKey | None
    """None: invisible, half of a transaction."""
    queue_offset: int
    start: int
    end: int
    record: bytes
    topic: str
    key: str
    store_time: int


class Deletion(NamedTuple):
    """A topic was deleted when the log ended here."""

    topic: str
    at: int
    done: bool


class Guarantees(NamedTuple):
    """What held when the disk stopped."""

    flushed: int = 0
    """Reported as flushed, or visible in a mode that shows only flushed data: must survive."""
    appended: int = 0
    """Acknowledged in asynchronous mode: survives the death of the process."""
    minimum: int = 0
    """Older messages were removed on purpose."""
    deletions: tuple[Deletion, ...] = ()
    committed: tuple[Offsets, ...] = ({},)
    """Consumer offsets of which one must be found: those last saved, and those being saved."""


class Cut(NamedTuple):
    """A point at which the disk may stop."""

    point: CrashPoint
    guarantees: Guarantees


def config_of(dice: Random) -> StoreConfig:
    """Small files, so that everything that happens at their edges happens often."""
    return StoreConfig(
        commit_log_file_bytes=dice.choice((2048, 4096, 8192)),
        consume_queue_file_bytes=20 * dice.choice((4, 7, 16)),
        index_slots=dice.choice((3, 16)),
        index_entries=dice.choice((18, 24, 64)),
        commit_log_preallocate_bytes=dice.choice((512, 4096)),
        flush_mode=dice.choice(tuple(FlushMode)),
        retention_hours=1,
    )


def is_equal_message(record: bytes, entry: Entry) -> bool:
    """Whether a stored record holds this message: its body, topic and properties, apart from the
    offsets that the store assigns."""
    topic = entry.queue.topic.encode()
    body_at = 88
    body_end = body_at + len(entry.body)
    properties_at = body_end + 1 + len(topic) + 2
    return (
        record[body_at:body_end] == entry.body
        and record[body_end + 1 : properties_at - 2] == topic
        and record[properties_at:].startswith(
            entry.properties.partition(light_queues.OFFSETS_BEGIN)[0]
        )
    )


class SteppedStore(MessageStore):
    """A store without a flush thread: the workload takes each step of that thread itself."""

    def prepare_next(self) -> None:
        """Prepare the next file, as the flush thread does between two flushes."""
        self._flusher.prepare_next()


class SlicedStore(SteppedStore):
    """Visits one queue at a time for a checkpoint, as a store with thousands of queues does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._upkeep.is_sliced = True

    def visit_one_queue_at_a_time(self) -> None:
        self._upkeep.work.slice_queues = 1


class Workload:
    """Runs a store on a simulated disk. `cuts` are the points at which it may crash."""

    def __init__(
        self,
        seed: int,
        disk: SimDisk | None = None,
        *,
        sliced: bool = False,
        light: bool = False,
    ) -> None:
        """`sliced`: each checkpoint takes several steps, one queue in each. `light`: some messages
        are in light queues too."""
        self.seed = seed
        self._sliced = sliced
        self._queues = (*QUEUES, *LIGHT) if light else QUEUES
        self._dice = Random(seed)
        self.config = config_of(self._dice)
        self.clock = ManualClock()
        self.disk = disk or SimDisk()
        self.sent: list[Sent] = []
        self.guarantees = Guarantees()
        self.cuts: list[Cut] = []
        self._read_to: dict[QueueKey, int] = {}
        self.disk.on_call = self._note
        self.store = self._open()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        """One thing a broker does."""
        self.clock.advance(ms=self._dice.choice((0, 0, 1, 700)))
        (action,) = self._dice.choices(_ACTIONS, _WEIGHTS)
        action(self)
        if self._sliced:
            self.store.advance()
        self._learn()

    def _learn(self) -> None:
        """Record what the store has guaranteed since the last call."""
        if self.store.flushed > self.guarantees.flushed:
            self.guarantees = self.guarantees._replace(flushed=self.store.flushed)
        if self.config.flush_mode is FlushMode.ASYNC:
            self.guarantees = self.guarantees._replace(appended=self.store.log.end)

    def _note(self) -> None:
        names = self.disk.list(f"{ROOT}/commitlog")
        if names and int(names[0]) > self.guarantees.minimum:
            self.guarantees = self.guarantees._replace(minimum=int(names[0]))
        self.cuts.append(Cut(self.disk.crash_point(), self.guarantees))

    def _open(self) -> SteppedStore:
        if not self._sliced:
            return SteppedStore(self.disk, ROOT, self.config, self.clock)
        store = SlicedStore(self.disk, ROOT, self.config, self.clock)
        store.visit_one_queue_at_a_time()
        return store

    def _reopen(self) -> SteppedStore:
        store = self._open()
        committed = tuple(clamped(store, offsets) for offsets in self.guarantees.committed)
        self.guarantees = self.guarantees._replace(committed=committed)
        return store

    # Actions

    def append(self) -> None:
        count = self._dice.choice((1, 1, 2, 5, 12, 60))
        self.send([self._entry(small=count > 5) for _ in range(count)])

    def send(self, entries: list[Entry]) -> None:
        """Append messages, and remember their bytes."""
        chunk = build(entries, store_host=HOST, record_crc=True)
        now_ms = self.clock.now_ms()
        placed = self.store.append(chunk)
        starts = placed.physical_offsets()
        self._remember(entries, chunk, list(zip(placed.queue_offsets, starts, strict=True)), now_ms)

    def _remember(
        self,
        entries: list[Entry],
        chunk: RecordChunk,
        places: list[tuple[int, int]],
        now_ms: int,
    ) -> None:
        """Record what was appended. `places` has the queue offset and the physical offset of each
        message."""
        for rank, entry in enumerate(entries):
            record = bytes(chunk.data[chunk.starts[rank] : chunk.ends[rank]])
            assert is_equal_message(record, entry), "the stored record is not the message"
            (offset, start), key = places[rank], key_of(entry)
            one = Sent(
                chunk.queues[rank],
                offset,
                start,
                start + len(record),
                record,
                entry.queue.topic,
                key,
                now_ms,
            )
            self.sent.append(one)
            if one.queue is not None:
                for name, rank_there in light_queues.offsets_of(entry_text(record)):
                    queue = queue_key(name.decode(), 0)
                    self.sent.append(one._replace(queue=queue, queue_offset=rank_there))

    def _entry(self, *, small: bool) -> Entry:
        dice, number = self._dice, self._dice.getrandbits(40)
        size = dice.choice((0, 3, 20)) if small else dice.choice((0, 10, 90, 350, 900))
        body = b"%d.%d." % (self.seed, number) + dice.randbytes(size)
        kind = flags.TRANSACTION_PREPARED if dice.random() < 0.05 else 0
        properties = b"KEYS\x01k%010x\x02TAGS\x01t%d\x02" % (number, number % 3)
        light = [queue.topic.encode() for queue in self._queues[len(QUEUES) :]]
        if light and number % 4:
            # Decided without the dice, so that a seed does the same with and without light queues.
            properties = light_queues.with_room(properties, light[: number % 4])
        return Entry(dice.choice(QUEUES), body, properties, sys_flag=kind)

    def flush(self) -> None:
        self.store.flush()

    def dispatch(self) -> None:
        self.store.dispatch()

    def dispatch_all(self) -> None:
        """Everything that may be seen can be seen afterwards."""
        self.store.dispatch_all()
        is_sync = self.config.flush_mode is FlushMode.SYNC
        limit = self.store.flushed if is_sync else self.store.log.end
        for one in reversed(self.sent):
            if one.queue is not None and one.end <= limit:
                deleted = any(
                    d.topic == one.topic and one.start < d.at for d in self.guarantees.deletions
                )
                end = self.store.max_offset(one.queue)
                assert deleted or end > one.queue_offset, f"{one.queue} ends at {end}"
                break

    def checkpoint(self) -> None:
        self.store.checkpoint()

    def prepare(self) -> None:
        """Do what the flush thread does between two flushes."""
        self.store.prepare_next()

    def consume(self) -> None:
        """Read a queue. A message that was read in synchronous mode must survive."""
        queue = self._dice.choice(self._queues)
        start = max(self._read_to.get(queue, 0), self.store.min_offset(queue))
        with self.store.read(queue, QueueOffset(start), ALL) as found:
            if found.status is not ReadStatus.FOUND:
                return
            seen = b"".join(found.spans)
            self._read_to[queue] = found.next_offset
        wanted = [one for one in self.sent if one.queue == queue and one.record in seen]
        assert b"".join(one.record for one in wanted) == seen, (
            "a consumer got bytes that were never sent"
        )
        if wanted and self.config.flush_mode is FlushMode.SYNC:
            end = max(self.guarantees.flushed, wanted[-1].end)
            self.guarantees = self.guarantees._replace(flushed=end)

    def commit_offsets(self) -> None:
        offsets: Offsets = {}
        for queue, offset in self._read_to.items():
            offsets.setdefault(f"{queue.topic}@{GROUP}", {})[queue.queue_id] = offset
        self.guarantees = self.guarantees._replace(
            committed=(*self.guarantees.committed[-1:], offsets)
        )
        self.store.tables.consumer_offsets.save(ConsumerOffsetTable(offset_table=offsets))
        self.guarantees = self.guarantees._replace(committed=(offsets,))

    def expire(self) -> None:
        """Remove the oldest files, now and then all that can be removed."""
        self.clock.advance(ms=self._dice.choice((600_000, 1_800_000, 3_700_000)))
        self.store.clean(by_hand=True)

    def delete_topic(self) -> None:
        topic, done = self._dice.choice(("A", "C")), self.guarantees.deletions
        at = self.store.log.end
        self.guarantees = self.guarantees._replace(
            deletions=(*done, Deletion(topic, at, done=False))
        )
        self.store.delete_topic(topic)
        self.guarantees = self.guarantees._replace(
            deletions=(*done, Deletion(topic, at, done=True))
        )
        self._read_to = {queue: to for queue, to in self._read_to.items() if queue.topic != topic}

    def restart(self) -> None:
        self.store.close()
        self._learn()
        self.store = self._reopen()

    def kill(self) -> None:
        """kill -9 and a start: the page cache survives."""
        self.disk.kill()
        self.store = self._reopen()


def clamped(store: MessageStore, offsets: Offsets) -> Offsets:
    """Return the offsets after a start: none is beyond the end of its queue."""
    return {
        name: {
            queue_id: min(offset, store.max_offset(queue_key(name.partition("@")[0], queue_id)))
            for queue_id, offset in row.items()
        }
        for name, row in offsets.items()
    }


def entry_text(record: bytes) -> bytes:
    """The properties of a stored record."""
    return MessageView(record).stored_properties


def key_of(entry: Entry) -> str:
    return entry.properties[5:16].decode()


_CHANCES: Final = {
    Workload.append: 40,
    Workload.flush: 14,
    Workload.dispatch: 8,
    Workload.dispatch_all: 10,
    Workload.consume: 8,
    Workload.checkpoint: 5,
    Workload.prepare: 4,
    Workload.commit_offsets: 3,
    Workload.expire: 3,
    Workload.delete_topic: 2,
    Workload.restart: 3,
    Workload.kill: 2,
}
_ACTIONS: Final = tuple(_CHANCES)
_WEIGHTS: Final = tuple(_CHANCES.values())
