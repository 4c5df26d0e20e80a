"""Topics, groups, offsets and progress of a Raft group, replicated through its log.

They are records in a topic of the broker's own, which every member reads. The leader writes the
rows that changed: new topics at once, so that they precede the first message that is sent to them;
groups within a tick; offsets, resets and the progress of delays every two seconds. From time to
time, and when it starts to lead, it writes all tables. A new leader therefore knows everything that
the last one wrote, in the order of the log, and a start reads back no further than to the last
record with all tables. One such record is always in a file that does not expire next.

Slaves of a master request the tables instead. In a Raft group the outcome of a change that was
requested shortly before the leader died would then depend on which member is elected. Here it is
part of what is committed.
"""

import logging
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

import msgspec

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import PhysicalOffset, QueueKey, QueueOffset, queue_key
from tianzhou.broker import names
from tianzhou.broker.groups.accepted_offsets import AcceptedOffsets, accepted_table
from tianzhou.broker.replica.expiry_floor import Progress
from tianzhou.broker.replica.mode import TableOwners
from tianzhou.broker.scheduled.timer_progress import TimerProgress, progress_table
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.broker.writing.stored import Stored, records
from tianzhou.net.rpc import RequestRejected
from tianzhou.record import names as keys
from tianzhou.record.chunk import Entry, RecordChunk, build
from tianzhou.replication.durability import Outcome
from tianzhou.store.commit_log import Appended
from tianzhou.store.read import ReadLimit, ReadStatus
from tianzhou.store.store import MessageStore
from tianzhou.store.tables import Tables as StoredTables
from tianzhou.wire.names import SYSTEM_PREFIX
from tianzhou.wire.tables import DelayOffsetTable, SubscriptionGroupConfig, TopicConfig

log: Final = logging.getLogger("tianzhou.raft")

TOPIC: Final = SYSTEM_PREFIX + "raft_metadata"
QUEUE: Final[QueueKey] = queue_key(TOPIC, 0)
OFFSETS_S: Final = 2.0
"""How often offsets and progress are written. A failover undoes at most this much progress."""
WHOLE_S: Final = 3_600.0
"""How often all tables are written even if nothing changed: records expire with the log."""
CHANGES_MAX: Final = 64
"""All tables are written after this many changes: a start reads no more records than that."""
_BATCH: Final = ReadLimit(count=64, size=1 << 24)
_ONE: Final = ReadLimit(count=1)
_NO_HOST: Final = bytes(8)

Rows = dict[str, Any]
"""A table by its keys. None: the row was deleted."""
Numbered = dict[str, dict[int, int]]
"""By `topic@group` and queue."""


class Tables:
    """The tables of a broker as rows that can be compared, written and applied."""

    def __init__(self, store: MessageStore, host: TableOwners) -> None:
        self._store = store
        self._removal = host.removal
        self._topics = host.topics
        self._groups = host.groups
        self._offsets = host.offsets
        self._delays = host.delays
        self._timers = host.timers

    def now(self) -> dict[str, Rows]:
        """The present rows. Progress is the present one, not the saved one: the messages that it
        refers to precede in the log the record that contains it."""
        delays = self._delays.table().offset_table
        return {
            "topics": dict(self._topics.all()),
            "groups": dict(self._groups.all()),
            "forbidden": {name: dict(row) for name, row in self._groups.forbidden.items()},
            "resets": numbered_texts(self._offsets.resets.rows()),
            "offsets": numbered_texts(self._offsets.table().offset_table),
            "delays": {str(level): offset for level, offset in delays.items()},
            "timers": {"progress": self._timers.progress()},
        }

    def names(self, table: str) -> set[str]:
        """Rows that only a leader creates and deletes: a row that the leader does not list does not
        exist, even if this member created it as a leader and was deposed before it was
        committed."""
        match table:
            case "topics":
                return {name for name in self._topics.all() if not self._topics.is_system(name)}
            case "groups":
                return {name for name in self._groups.all() if not names.is_system_group(name)}
            case "forbidden":
                return set(self._groups.forbidden)
            case "offsets":
                return set(self._offsets.table().offset_table)
            case _:
                return set()

    def deleted(self, topics: list[str], *, at: PhysicalOffset) -> None:
        """Apply the record at this log offset, which deletes these topics."""
        for name in topics:
            self._removal.remove(name, before=at)

    def forget_deletions(self) -> None:
        """Drop deletions that are not committed: the next leader decides about them."""
        self._removal.pending.clear()

    def take(self, table: str, rows: Rows) -> None:
        """Apply rows that a leader wrote."""
        gone = [key for key, row in rows.items() if row is None]
        there = {key: row for key, row in rows.items() if row is not None}
        match table:
            case "topics":
                for name in gone:
                    self._topics.remove(name)
                self._topics.put(*msgspec.convert(list(there.values()), list[TopicConfig]))
            case "groups":
                for name in gone:
                    self._groups.remove(name)
                wanted = msgspec.convert(list(there.values()), list[SubscriptionGroupConfig])
                self._groups.put(*wanted)
            case "forbidden":
                self._groups.forbid(there, gone)
            case "resets":
                for key in gone:
                    self._offsets.resets.forget(key)
                self._offsets.resets.merge(msgspec.convert(there, Numbered, strict=False))
            case _:
                pass  # offsets: see below; a new leader takes over progress

    def take_offsets(self, changed: Iterable[str], committed: Rows) -> None:
        """Apply these rows once the resets that were written with them are known. Rows of a deleted
        topic or group are dropped: they must not apply to a new one of the same name."""
        self._offsets.follow_committed(changed, committed)

    def begin_following(self, committed: Rows) -> None:
        """Keep offsets that consumers commit here apart from now on, to send them to the leader."""
        if self._offsets.accepted is None:
            self._offsets.begin_following(AcceptedOffsets(accepted_table(self._store)))
            self._offsets.keep_uncommitted(committed)

    def take_progress(self, committed: Mapping[str, Rows]) -> None:
        """Resume where the last leader was. The progress that this member saved when it led may
        refer to deliveries and decisions that were never committed."""
        self._offsets.end_following()
        delays = {int(level): offset for level, offset in committed.get("delays", {}).items()}
        self._store.tables.delay_offsets.save(DelayOffsetTable(offset_table=delays))
        progress = cast("Rows", committed.get("timers", {}).get("progress") or {})
        progress_table(self._store).save(msgspec.convert(progress, TimerProgress))
        for key, row in committed.get("offsets", {}).items():
            topic, _, group = key.partition("@")
            if group == names.TRANSACTION_GROUP:
                for number, offset in row.items():
                    self._offsets.put(group, topic, int(number), offset)


class _FullRecord(NamedTuple):
    """The last record with all tables that this leader wrote."""

    written_s: float
    place: int
    """Its offset in the log."""


class RaftMetadata:
    """Owner: the broker loop."""

    def __init__(self, store: MessageStore, tables: Tables, writer: Writer, clock: Clock) -> None:
        self._store = store
        self._tables = tables
        self._writer = writer
        self._clock = clock
        self._committed: dict[str, Rows] = {}
        """The tables that leaders wrote, as plain values."""
        self._written: dict[str, Rows] = {}
        """As a leader: the tables that were written last, committed or not."""
        self._position: int | None = None
        self._changes = 0
        self._next_s = 0.0
        self._last_full = _FullRecord(written_s=0.0, place=0)
        self._unread: deque[tuple[int, Callable[[Outcome], None]]] = deque()
        """Callbacks that wait until the record of this rank is committed and read."""
        self.is_leading = False

    # Reading the records of a leader

    def read(self) -> None:
        """Apply the records that were committed since the last call."""
        end = self._store.max_offset(QUEUE)
        if self._position is None:
            self._position = self._last_whole(end)
        while self._position < end:
            with self._store.read(QUEUE, QueueOffset(self._position), _BATCH) as found:
                written = [
                    (tables, one.view.physical_offset)
                    for one in records(found)
                    if (tables := _decode(one)) is not None
                ]
                assert found.next_offset > self._position, f"stuck at {self._position}"
                following = found.next_offset
            for tables, place in written:
                self._take(tables, PhysicalOffset(place))
            self._position = following
        while self._unread and self._unread[0][0] < self._position:
            self._unread.popleft()[1](Outcome.DURABLE)

    def _last_whole(self, end: int) -> int:
        """The queue offset of the newest record with all tables."""
        first = int(self._store.min_offset(QUEUE))
        for offset in range(end - 1, first - 1, -1):
            with self._store.read(QUEUE, QueueOffset(offset), _ONE) as found:
                assert found.status is not ReadStatus.NOT_READY, f"not readable: {offset}"
                tables = [_decode(one) for one in records(found)]
                if any(one is not None and one[0] for one in tables):
                    return offset
        return first

    def _take(self, record: tuple[bool, dict[str, Rows]], place: PhysicalOffset) -> None:
        is_whole, tables = record
        moved: set[str] = set()
        for table, changes in tables.items():
            known = self._committed.setdefault(table, {})
            present = set(known) if self.is_leading else self._tables.names(table) | known.keys()
            rows = dict.fromkeys(present - changes.keys()) if is_whole else Rows()
            rows |= changes
            gone = [key for key, row in rows.items() if row is None]
            if not self.is_leading:
                self._tables.take(table, rows)
            if table == "topics":
                self._tables.deleted(gone, at=place)
            if table == "offsets":
                moved.update(rows)
            known.update(rows)
            for key in gone:
                known.pop(key, None)
        if not self.is_leading and tables.keys() & {"offsets", "resets"}:
            self._tables.take_offsets(moved, self._committed.get("offsets", {}))

    def settle_offsets(self) -> None:
        """Drop offsets that consumers committed here and that the group is ahead of."""
        self._tables.take_offsets((), self._committed.get("offsets", {}))

    def progress(self) -> Progress:
        """The progress from which a new leader resumes; the log from there on must be kept."""
        committed = self._committed
        timers = cast("Rows", committed.get("timers", {}).get("progress") or {})
        halves = f"{names.HALF_TOPIC}@{names.TRANSACTION_GROUP}"
        return Progress(
            timers=msgspec.convert(timers, TimerProgress).low,
            halves=committed.get("offsets", {}).get(halves, {}).get("0", 0),
            delays={int(level): low for level, low in committed.get("delays", {}).items()},
        )

    # Writing records as the leader

    def lead(self) -> None:
        """Read everything that is committed; the leader accepts no message before this."""
        self.read()
        self.settle_offsets()
        self._tables.take_progress(self._committed)
        self.is_leading = True

    def begin(self) -> None:
        """Write all tables, before the first message."""
        self._written = {}
        self._write(self._tables.now(), is_whole=True)
        self._next_s = self._clock.monotonic_s() + OFFSETS_S

    def follow(self) -> None:
        self.is_leading = False
        self._tables.forget_deletions()
        self._tables.begin_following(self._committed.get("offsets", {}))
        # Nothing is written between `lead` and `begin`: services have not started there.
        self._written = {}

    def tick(self) -> None:
        self.read()
        if self.is_leading and self._clock.monotonic_s() >= self._next_s:
            self._next_s = self._clock.monotonic_s() + OFFSETS_S
            self.write_changes()

    def write_changes(self, *, always: bool = False) -> Appended | None:
        """Write the changes, or with `always` a record even without changes; returns its
        position."""
        if not self.is_leading or not self._written:
            return None
        now = self._tables.now()
        is_old = self._clock.monotonic_s() >= self._last_full.written_s + WHOLE_S
        if is_old or self._changes >= CHANGES_MAX or self._is_expiring():
            return self._write(now, is_whole=True)
        changes = {table: _changed(self._written[table], rows) for table, rows in now.items()}
        changes = {table: rows for table, rows in changes.items() if rows}
        if changes or always:
            return self._write(changes, is_whole=False, now=now)
        return None

    def commit(self, then: Callable[[Outcome], None]) -> None:
        """Call `then` once every change made so far is committed, and this member has read it; or
        with the reason why that is not known.

        A record is written even if nothing changed: a leader that was deposed without noticing must
        not confirm what it found in its own tables."""
        put = self.write_changes(always=True)
        if put is None:
            then(Outcome.NOT_MASTER)
            return
        (rank,) = put.queue_offsets

        def committed(outcome: Outcome) -> None:
            if outcome is Outcome.DURABLE:
                self._unread.append((rank, then))
            else:
                then(outcome)

        self._writer.when_durable(put.end, committed)

    def _is_expiring(self) -> bool:
        """Whether the last record with all tables is in the file that expires next, or has expired.
        A member whose log starts after that record would know no topic, and as a leader would make
        all others delete theirs."""
        log = self._store.log
        return self._last_full.place < log.min_offset + log.file_bytes < log.end

    def on_topics_changed(self) -> None:
        """Write the change now: it must precede the first message that is sent to the topic."""
        self.write_changes()

    def _write(
        self, rows: dict[str, Rows], *, is_whole: bool, now: dict[str, Rows] | None = None
    ) -> Appended | None:
        body = encode_tables(rows, is_whole=is_whole)
        try:
            put = self._writer.put([Entry(QUEUE, body, born_timestamp=self._clock.now_ms())])
        except RequestRejected as refused:
            # Written with the next change, or by the next leader.
            log.warning("raft.metadata_waits", extra={"reason": refused.remark, "size": len(body)})
            return None
        self._written = now or rows
        self._changes = 0 if is_whole else self._changes + 1
        if is_whole:
            (place,) = put.physical_offsets()
            self._last_full = _FullRecord(self._clock.monotonic_s(), place)
        return put


def encode_tables(rows: dict[str, Rows], *, is_whole: bool) -> bytes:
    """Return the body of a record."""
    return zlib.compress(msgspec.json.encode((is_whole, rows)), 1)


def numbered_texts(rows: Mapping[str, Mapping[int, int]]) -> Rows:
    """Rows with queue ids as text, because keys of JSON objects are."""
    return {key: {str(number): value for number, value in row.items()} for key, row in rows.items()}


def _changed(before: Rows, now: Rows) -> Rows:
    changed = {key: row for key, row in now.items() if before.get(key) != row}
    return changed | dict.fromkeys(before.keys() - now.keys())


def _decode(stored: Stored) -> tuple[bool, dict[str, Rows]] | None:
    """Decode a leader's record; None for a record that no leader wrote. All members skip the same
    records, so that their tables stay equal, and no record prevents a member from starting."""
    offset = int(stored.view.queue_offset)
    if stored.get(keys.MSG_REGION) is not None:
        # Every message of a client has it; earlier versions let clients send to this topic.
        log.warning("raft.metadata_forged", extra={"offset": offset})
        return None
    try:
        body = zlib.decompress(bytes(stored.view.stored_body))
        return msgspec.json.decode(body, type=tuple[bool, dict[str, Rows]])
    except (zlib.error, msgspec.DecodeError, UnicodeError, RecursionError) as error:
        log.warning("raft.metadata_unreadable", extra={"offset": offset, "reason": str(error)})
        return None


def first_tables(tables: StoredTables, timers: TimerProgress, *, now_ms: int) -> RecordChunk:
    """Return the first record with all tables of a group, from the tables that a broker without a
    group has saved: a member that leads adopts what is committed in its log."""
    groups, offsets = tables.groups.load(), tables.consumer_offsets.load()
    delays = tables.delay_offsets.load().offset_table
    resets = {} if offsets.tz_resets is msgspec.UNSET else offsets.tz_resets
    rows: dict[str, Rows] = {
        "topics": dict(tables.topics.load().topic_config_table),
        "groups": dict(groups.subscription_group_table),
        "forbidden": dict(groups.forbidden_table),
        "resets": numbered_texts(resets),
        "offsets": numbered_texts(offsets.offset_table),
        "delays": {str(level): offset for level, offset in delays.items()},
        "timers": {"progress": timers},
    }
    entry = Entry(QUEUE, encode_tables(rows, is_whole=True), born_timestamp=now_ms)
    return build([entry], store_host=_NO_HOST, record_crc=True)
