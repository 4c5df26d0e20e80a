"""Topics, groups, offsets and progress of a Raft group: they move with its log.

They are a topic of the broker's own that every member reads. The leader writes what has changed:
new topics at once, so that they stand before the first message that goes to them; groups within a
tick; offsets, resets and the progress of delays every two seconds. Every so often, and when it
begins to lead, it writes everything. So a new leader knows everything that the last one wrote, in
the order of the log, and a start reads back no further than to the last record that holds
everything. One such record is always in a file that does not expire next.

Why not ask the leader, as slaves of a master do: what was asked for a moment before it died, and
what became of it, would depend on who is elected. Here it is part of what is committed.
"""

import logging
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import PhysicalOffset, QueueKey, QueueOffset, queue_key
from tianzhou.broker import names
from tianzhou.broker.groups.accepted_offsets import AcceptedOffsets, accepted_table
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import Groups
from tianzhou.broker.replica.expiry_floor import Progress
from tianzhou.broker.scheduled.delay import Delays
from tianzhou.broker.scheduled.timer import Timers
from tianzhou.broker.scheduled.timer_progress import TimerProgress, progress_table
from tianzhou.broker.topics.removal import TopicRemoval
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.broker.writing.stored import Stored, records
from tianzhou.net.rpc import RequestRejected
from tianzhou.record import names as keys
from tianzhou.record.chunk import Entry
from tianzhou.replication.durability import Outcome
from tianzhou.store.commit_log import Appended
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.wire.names import SYSTEM_PREFIX
from tianzhou.wire.tables import DelayOffsetTable, SubscriptionGroupConfig, TopicConfig

log: Final = logging.getLogger("tianzhou.raft")

TOPIC: Final = SYSTEM_PREFIX + "raft_metadata"
QUEUE: Final[QueueKey] = queue_key(TOPIC, 0)
OFFSETS_S: Final = 2.0
"""How often offsets and progress are written. A failover takes back no more than this."""
WHOLE_S: Final = 3_600.0
"""So often everything is written, changed or not: records expire with the log."""
CHANGES_MAX: Final = 64
"""After so many changes everything is written again: a start reads no more records than that."""
_BATCH: Final = ReadLimit(count=64, size=1 << 24)
_ONE: Final = ReadLimit(count=1)

Rows = dict[str, Any]
"""A table by its keys. None: the row is gone."""
Numbered = dict[str, dict[int, int]]
"""By `topic@group` and queue."""


class Tables:
    """The tables of a broker as rows, to be compared, told and taken over."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        delays: Delays,
        timers: Timers,
        removal: TopicRemoval,
    ) -> None:
        self._store = store
        self._removal = removal
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delays = delays
        self._timers = timers

    def now(self) -> dict[str, Rows]:
        """Progress as it is, not as it was saved: what it speaks of stands in the log before the
        record that tells it."""
        delays = self._delays.table().offset_table
        return {
            "topics": dict(self._topics.all()),
            "groups": dict(self._groups.all()),
            "forbidden": {name: dict(row) for name, row in self._groups.forbidden.items()},
            "resets": _texts(self._offsets.resets.rows()),
            "offsets": _texts(self._offsets.table().offset_table),
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
        """What a leader has told."""
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
        """Take over these rows once the resets that were told with them are known. Rows of a topic
        or a group that was removed are gone: they must not meet a new one of the name."""
        self._offsets.follow_committed(changed, committed)

    def begin_following(self, committed: Rows) -> None:
        """From now on keep offsets that consumers commit here apart, to hand them over."""
        if self._offsets.accepted is None:
            self._offsets.begin_following(AcceptedOffsets(accepted_table(self._store)))
            self._offsets.keep_uncommitted(committed)

    def take_progress(self, told: Mapping[str, Rows]) -> None:
        """Begin to lead where the last leader was. What we saved ourselves, when we led, may speak
        of deliveries and decisions that were never committed."""
        self._offsets.end_following()
        delays = {int(level): offset for level, offset in told.get("delays", {}).items()}
        self._store.tables.delay_offsets.save(DelayOffsetTable(offset_table=delays))
        progress = cast("Rows", told.get("timers", {}).get("progress") or {})
        progress_table(self._store).save(msgspec.convert(progress, TimerProgress))
        for key, row in told.get("offsets", {}).items():
            topic, _, group = key.partition("@")
            if group == names.TRANSACTION_GROUP:
                for number, offset in row.items():
                    self._offsets.put(group, topic, int(number), offset)


class RaftMetadata:
    """Owner: the broker loop."""

    def __init__(self, store: MessageStore, tables: Tables, writer: Writer, clock: Clock) -> None:
        self._store = store
        self._tables = tables
        self._writer = writer
        self._clock = clock
        self._committed: dict[str, Rows] = {}
        """What leaders have told, as plain values."""
        self._told: dict[str, Rows] = {}
        """As a leader: what we have told, committed or not."""
        self._position: int | None = None
        self._changes = 0
        self._next_s = self._whole_s = 0.0
        self._whole_at = 0
        """Where in the log we told everything last."""
        self._unread: deque[tuple[int, Callable[[Outcome], None]]] = deque()
        """Callbacks that wait until the record of this rank is committed and read."""
        self.is_leading = False

    # Reading what a leader tells

    def read(self) -> None:
        """Take over what was told since the last time, as far as it is committed."""
        end = self._store.max_offset(QUEUE)
        if self._position is None:
            self._position = self._last_whole(end)
        while self._position < end:
            with self._store.read(QUEUE, QueueOffset(self._position), _BATCH) as found:
                told = [
                    (tables, one.view.physical_offset)
                    for one in records(found)
                    if (tables := _decode(one)) is not None
                ]
                assert found.next_offset > self._position, f"stuck at {self._position}"
                following = found.next_offset
            for tables, place in told:
                self._take(tables, PhysicalOffset(place))
            self._position = following
        while self._unread and self._unread[0][0] < self._position:
            self._unread.popleft()[1](Outcome.DURABLE)

    def _last_whole(self, end: int) -> int:
        """The newest record that holds everything."""
        first = int(self._store.min_offset(QUEUE))
        for offset in range(end - 1, first - 1, -1):
            with self._store.read(QUEUE, QueueOffset(offset), _ONE) as found:
                tables = [_decode(one) for one in records(found)]
                if any(one is not None and one[0] for one in tables):
                    return offset
        return first

    def _take(self, told: tuple[bool, dict[str, Rows]], place: PhysicalOffset) -> None:
        is_whole, tables = told
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

    # Telling others

    def lead(self) -> None:
        """Everything committed is read, and nothing is taken before this."""
        self.read()
        self.settle_offsets()
        self._tables.take_progress(self._committed)
        self.is_leading = True

    def begin(self) -> None:
        """Messages are taken from now on: tell everything first."""
        self._told = {}
        self._write(self._tables.now(), is_whole=True)
        self._next_s = self._clock.monotonic_s() + OFFSETS_S

    def follow(self) -> None:
        self.is_leading = False
        self._tables.forget_deletions()
        self._tables.begin_following(self._committed.get("offsets", {}))
        # Nothing is told between `lead` and `begin`: services have not begun there.
        self._told = {}

    def tick(self) -> None:
        self.read()
        if self.is_leading and self._clock.monotonic_s() >= self._next_s:
            self._next_s = self._clock.monotonic_s() + OFFSETS_S
            self.tell()

    def tell(self, *, always: bool = False) -> Appended | None:
        """Write the changes, or with `always` a record even without changes; returns its
        position."""
        if not self.is_leading or not self._told:
            return None
        now = self._tables.now()
        is_old = self._clock.monotonic_s() >= self._whole_s + WHOLE_S
        if is_old or self._changes >= CHANGES_MAX or self._is_expiring():
            return self._write(now, is_whole=True)
        changes = {table: _changed(self._told[table], rows) for table, rows in now.items()}
        changes = {table: rows for table, rows in changes.items() if rows}
        if changes or always:
            return self._write(changes, is_whole=False, now=now)
        return None

    def commit(self, then: Callable[[Outcome], None]) -> None:
        """Call `then` once every change made so far is committed, and this member has read it; or
        with the reason why that is not known.

        A record is written even if nothing changed: a leader that was deposed without noticing must
        not confirm what it found in its own tables."""
        put = self.tell(always=True)
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
        """Whether what tells everything is in the file that goes next, or gone. A member that
        begins behind it would know of no topic, and as a leader make all others forget theirs."""
        log = self._store.log
        return self._whole_at < log.min_offset + log.file_bytes < log.end

    def tell_at_once(self) -> None:
        """A topic or a group changed: others must know before anything is sent to it."""
        self.tell()

    def _write(
        self, rows: dict[str, Rows], *, is_whole: bool, now: dict[str, Rows] | None = None
    ) -> Appended | None:
        body = zlib.compress(msgspec.json.encode((is_whole, rows)), 1)
        try:
            put = self._writer.put([Entry(QUEUE, body, born_timestamp=self._clock.now_ms())])
        except RequestRejected as refused:
            # Told with the next change, or by the next leader.
            log.warning("raft.metadata_waits", extra={"reason": refused.remark, "size": len(body)})
            return None
        self._told = now or rows
        self._changes = 0 if is_whole else self._changes + 1
        if is_whole:
            self._whole_s = self._clock.monotonic_s()
            (self._whole_at,) = put.physical_offsets()
        return put


def _texts(rows: Numbered) -> Rows:
    """Rows with their queues as text, as JSON has them."""
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
