"""Committed offsets of all groups, in memory; saved every few seconds and when the broker
stops. And the requests of clients about offsets."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import QueueOffset, queue_key
from tianzhou.broker import names
from tianzhou.broker.groups.accepted_offsets import FORWARD_ONLY, RESET_SEEN, AcceptedOffsets
from tianzhou.broker.groups.groups import Groups, check_commit
from tianzhou.broker.groups.offset_resets import EVERY_QUEUE, OffsetResets
from tianzhou.broker.topics.topics import QUEUES_MAX, Topics
from tianzhou.broker.writing.stored import require_ready
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.record.light_queues import is_light
from tianzhou.record.message import decode_all
from tianzhou.store.protocols import LogAppender, QueueReader
from tianzhou.store.read import ReadLimit
from tianzhou.store.search import Boundary
from tianzhou.store.tables import EndOf, Table
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_pull import (
    GetMaxOffsetRequest,
    QueryConsumerOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from tianzhou.wire.tables import ConsumerOffsetTable, DataVersion

log: Final = logging.getLogger("tianzhou.broker")


class ConsumerOffsets:
    """Owner: the broker loop. Keys are `topic@group`, as in the file."""

    def __init__(self, table: Table[ConsumerOffsetTable], clock: Clock) -> None:
        self._table = table
        self._clock = clock
        stored = table.load()
        self._offsets = _loaded(stored.offset_table)
        self._version = stored.data_version
        self.resets = OffsetResets(stored.tz_resets or {})
        self._moved_ms: dict[str, dict[int, int]] = {}
        self._is_dirty = False
        self.accepted: AcceptedOffsets | None = None
        """On a slave: offsets that consumers committed here and the master may not know."""

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        row = self._offsets.get(f"{topic}@{group}")
        return None if row is None else row.get(queue_id)

    def put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The last value counts, even a lower one: that is how offsets are reset."""
        key = f"{topic}@{group}"
        row = self._offsets.setdefault(key, {})
        known = row.get(queue_id, -1)
        if known != offset:
            row[queue_id] = offset
            if offset < known:
                self._note_reset(key, queue_id)
            # A first commit of 0 counts too: it is how a job that has just started shows itself.
            self._moved_ms.setdefault(key, {})[queue_id] = self._clock.now_ms()
        self._is_dirty = True
        if self.accepted is not None:
            self.accepted.note(key, queue_id, offset)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Reset a group to this offset; offsets that slaves accepted earlier become void."""
        self.put(group, topic, queue_id, offset)
        self._note_reset(f"{topic}@{group}", queue_id)

    def advance(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The same for an offset received from another broker: it never moves a group backwards."""
        if offset > (self.get(group, topic, queue_id) or 0):
            self.put(group, topic, queue_id, offset)

    def begin_following(self, accepted: AcceptedOffsets) -> None:
        """On a slave: restore offsets that consumers committed here and that a crash may have
        lost."""
        self.accepted = accepted
        accepted.resets.merge(self.resets.rows())
        for key, queue_id, offset in accepted.ahead():
            self._offsets.setdefault(key, {})[queue_id] = offset
            self._is_dirty = True

    def follow(self, master: ConsumerOffsetTable) -> None:
        """Adopt the master's offsets on a slave, except where consumers committed later ones
        here."""
        accepted = self.accepted
        assert accepted is not None, "only a slave follows"
        for key, row in master.offset_table.items():
            mine = self._offsets.setdefault(key, {})
            for queue_id, offset in row.items():
                mine[queue_id] = max(offset, accepted.of(key, queue_id))
        self.resets = OffsetResets(master.tz_resets or {})
        # A master that lost a row in a crash, and then deleted its topic or group, never reports
        # that the row is gone. If it stayed here, a topic of the same name would be skipped. Nor
        # does it report that of a light queue that expired.
        self.remove_rows(
            key
            for key in list(self._offsets)
            if key not in master.offset_table
            and not accepted.row(key)
            and (is_light(key) or self.resets.latest(key, EVERY_QUEUE))
        )
        self._is_dirty = True

    def end_following(self) -> None:
        """This broker becomes the master: offsets that consumers committed here are its own."""
        if self.accepted is not None:
            self.save()
            self.accepted.forget()
            self.accepted = None

    def follow_committed(
        self, changed: Iterable[str], committed: Mapping[str, Mapping[str, int]]
    ) -> None:
        """Adopt committed rows on a follower of a Raft group, except where consumers committed
        later offsets here."""
        stale = self.accepted.settle(committed, self.resets) if self.accepted is not None else []
        for key in {*changed, *stale}:
            row = {int(number): offset for number, offset in committed.get(key, {}).items()}
            if self.accepted is not None:
                mine = self.accepted.row(key).items()
                row |= {number: max(offset, row.get(number, 0)) for number, offset in mine}
            if not row:
                self.remove_rows([key])
                continue
            before, self._offsets[key] = self._offsets.get(key, {}), row
            for number, offset in row.items():
                if before.get(number, -1) != offset:
                    self._moved_ms.setdefault(key, {})[number] = self._clock.now_ms()
            self._is_dirty = True

    def keep_uncommitted(self, committed: Mapping[str, Mapping[str, int]]) -> None:
        """On a leader that was deposed: offsets that are not committed count as accepted."""
        self.accept_ahead_of(committed)
        self.follow_committed(list(self._offsets), committed)

    def accept_ahead_of(self, committed: Mapping[str, Mapping[str, int]]) -> None:
        """Let offsets that are ahead of these count as accepted, except the broker's own."""
        assert self.accepted is not None, "it follows already"
        for group, topic, row in self.rows():
            key = f"{topic}@{group}"
            for number, offset in row.items():
                known = committed.get(key, {}).get(str(number), 0)
                if offset > known and not names.is_own_group(group):
                    self.accepted.note(key, number, offset)

    def moved_ms(self, group: str, topic: str) -> dict[int, int]:
        """By queue: when the group last came to another offset; queues where it has not moved since
        the broker began are left out."""
        return self._moved_ms.get(f"{topic}@{group}", {})

    def of(self, group: str, topic: str) -> dict[int, int]:
        return self._offsets.get(f"{topic}@{group}", {})

    def rows(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        """Group, topic, and the offset of each queue that the group has confirmed anything of."""
        for key, row in self._offsets.items():
            topic, _, group = key.partition("@")
            yield group, topic, row

    def topics_of(self, group: str) -> list[str]:
        suffix = "@" + group
        return [key[: -len(suffix)] for key in self._offsets if key.endswith(suffix)]

    def groups_of(self, topic: str) -> list[str]:
        prefix = topic + "@"
        return [key[len(prefix) :] for key in self._offsets if key.startswith(prefix)]

    def remove_topic(self, topic: str) -> None:
        self._note_deleted(topic=topic)
        prefix = topic + "@"
        self._remove([key for key in self._offsets if key.startswith(prefix)])

    def remove_group(self, group: str) -> None:
        self._note_deleted(group=group)
        suffix = "@" + group
        self._remove([key for key in self._offsets if key.endswith(suffix)])

    def remove_light_queue(self, name: str) -> None:
        """Remove the offsets in a light queue whose messages have all expired."""
        self.remove_rows([f"{name}@{group}" for group in self.groups_of(name)])

    def remove_rows(self, keys: Iterable[str]) -> None:
        """Remove rows that another broker of the group has removed."""
        self._remove([key for key in keys if key in self._offsets])

    def clone(self, source: str, target: str, topic: str) -> None:
        for queue_id, offset in self.of(source, topic).items():
            self.reset(target, topic, queue_id, offset)

    def clamp(self, end_of: EndOf) -> None:
        """Lower offsets to the end of their queue, as a start does: a slave may have received them
        before the messages, which it will never get."""
        if self.accepted is not None:
            self.accepted.clamp(end_of)
        for key, row in self._offsets.items():
            topic = key.partition("@")[0]
            for queue_id, offset in row.items():
                end = end_of(queue_key(topic, queue_id))
                if offset > end:
                    row[queue_id] = end
                    self._is_dirty = True

    def table(self) -> ConsumerOffsetTable:
        return ConsumerOffsetTable(
            data_version=self._version,
            offset_table=self._offsets,
            tz_resets=self.resets.rows() or msgspec.UNSET,
        )

    def save(self) -> None:
        """Write the table if anything changed, and wait for the disk."""
        self._save(self._table.save)

    def save_later(self) -> None:
        """The same without waiting: the flush thread writes the table."""
        self._save(self._table.save_later)

    def _save(self, save: Callable[[ConsumerOffsetTable], None]) -> None:
        if self.accepted is not None:
            self.accepted.save()
        if not self._is_dirty:
            return
        self._version = DataVersion(
            counter=self._version.counter + 1, timestamp=self._clock.now_ms()
        )
        save(self.table())
        # Only after saving: rows that could not be saved are saved the next time.
        self._is_dirty = False

    def _note_reset(self, key: str, queue_id: int) -> None:
        if self.accepted is None:  # a slave gets them from its master
            self.resets.note(key, queue_id, self._clock.now_ms())

    def _note_deleted(self, *, topic: str = "", group: str = "") -> None:
        if self.accepted is None:  # a follower may only be reading the log again
            self.resets.note_deleted(topic=topic, group=group, now_ms=self._clock.now_ms())
            self._is_dirty = True

    def _remove(self, keys: list[str]) -> None:
        for key in keys:
            del self._offsets[key]
            self._moved_ms.pop(key, None)
            self.resets.forget(key)
        self._is_dirty |= bool(keys)


def _loaded(stored: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, int]]:
    """Copy stored offsets. A negative one, which only a damaged or edited file has, counts as 0:
    clients would take it for an error, or for the end of the queue."""
    rows = {key: dict(row) for key, row in stored.items()}
    for key, row in rows.items():
        for queue_id, offset in row.items():
            if offset < 0:
                row[queue_id] = 0
                facts = {"row": key, "queue": queue_id, "offset": offset}
                log.warning("offset.negative", extra=facts)
    return rows


def end_if_beyond(store: LogAppender, topic: str, queue_id: int, offset: int) -> int | None:
    """Return the end of the queue if the offset is beyond it; None if it may be committed.

    A larger offset would make the group skip every message up to it, and the next start would
    report a loss. Only a broker that writes its log knows the end: a slave may receive offsets of
    messages that it does not have yet, so it accepts them (see `accepted_offsets`). The end is that
    of assigned offsets, because a commit may arrive before its message is visible again here.
    """
    if not store.is_writing and not is_absent(store, topic):
        return None
    end = store.assigned_end(queue_key(topic, queue_id))
    return end if offset > end else None


def is_absent(store: LogAppender, topic: str) -> bool:
    """Whether this is the name of a light queue that does not exist. No offset is stored for it,
    not even 0: clients can invent any number of such names."""
    return is_light(topic) and store.assigned_end(queue_key(topic, 0)) == 0


@dataclass(slots=True, kw_only=True)
class Offsets:
    store: QueueReader
    log: LogAppender
    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.maximum,
            RequestCode.GET_MIN_OFFSET: self.minimum,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

    def query(self, request: Request) -> Reply:
        """The committed offset. A new group on a topic that still has its first message starts
        there: clients that get no offset would start at the end and miss messages."""
        asked = QueryConsumerOffsetRequest.from_ext(request.header.ext)
        offset = self.offsets.get(asked.consumer_group, asked.topic, asked.queue_id)
        if offset is None:
            key = queue_key(asked.topic, asked.queue_id)
            if asked.set_zero_if_not_found is False or self.store.min_offset(key) > 0:
                raise RequestRejected(
                    ResponseCode.QUERY_NOT_FOUND,
                    f"group {asked.consumer_group} has no offset for queue {asked.queue_id} of "
                    f"{asked.topic}, maybe this group consumes for the first time",
                )
            offset = 0
        return Reply(ext={"offset": str(offset)})

    def update(self, request: Request) -> Reply:
        asked = UpdateConsumerOffsetRequest.from_ext(request.header.ext)
        check_commit(asked.consumer_group)
        if self.groups.obtain(asked.consumer_group) is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {asked.consumer_group[:128]} does not exist and cannot be created "
                "automatically; create it first",
            )
        if self.topics.get(asked.topic) is None:
            raise self.topics.unknown(asked.topic)
        if not 0 <= asked.queue_id < QUEUES_MAX or asked.commit_offset < 0:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"offset {asked.commit_offset} of queue {asked.queue_id} is invalid; queues go "
                f"from 0 to {QUEUES_MAX - 1}, offsets start at 0",
            )
        if asked.commit_offset == 0 and is_absent(self.log, asked.topic):
            return Reply()
        row = asked.consumer_group, asked.topic, asked.queue_id
        if request.header.ext.get(FORWARD_ONLY) != "true":
            end = end_if_beyond(self.log, asked.topic, asked.queue_id, asked.commit_offset)
            if end is not None:
                raise RequestRejected(
                    ResponseCode.INVALID_PARAMETER,
                    f"offset {asked.commit_offset} is beyond the end of queue {asked.queue_id} of "
                    f"{asked.topic[:128]}; commit an offset from 0 to {end}; if the topic was "
                    "deleted and created again, seek to its new messages first",
                )
            self.offsets.put(*row, asked.commit_offset)
        elif self._takes_from_slave(asked, request.header.ext.get(RESET_SEEN)):
            self.offsets.advance(*row, asked.commit_offset)
        return Reply()

    def _takes_from_slave(self, asked: UpdateConsumerOffsetRequest, seen: str | None) -> bool:
        """Whether the master adopts an offset that a slave hands over. `seen` is the latest reset
        that the slave knows; slaves of an earlier version do not send it."""
        if seen is not None and not (seen.isascii() and seen.isdigit() and len(seen) < 20):
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"invalid {RESET_SEEN} {seen[:32]!r}; it must be a timestamp in milliseconds",
            )
        latest = self.offsets.resets.latest(f"{asked.topic}@{asked.consumer_group}", asked.queue_id)
        if seen is not None and latest > int(seen):
            return False
        return asked.commit_offset <= self.store.max_offset(queue_key(asked.topic, asked.queue_id))

    def search(self, request: Request) -> Reply:
        asked = SearchOffsetRequest.from_ext(request.header.ext)
        upper = (asked.boundary_type or "").upper() == "UPPER"
        boundary = Boundary.UPPER if upper else Boundary.LOWER
        key = queue_key(asked.topic, asked.queue_id)
        return _offset(self.store.offset_by_time(key, asked.timestamp_ms, boundary))

    def maximum(self, request: Request) -> Reply:
        asked = GetMaxOffsetRequest.from_ext(request.header.ext)
        return _offset(self.store.max_offset(queue_key(asked.topic, asked.queue_id)))

    def minimum(self, request: Request) -> Reply:
        asked = QueueRequest.from_ext(request.header.ext)
        return _offset(self.store.min_offset(queue_key(asked.topic, asked.queue_id)))

    def earliest(self, request: Request) -> Reply:
        asked = QueueRequest.from_ext(request.header.ext)
        key = queue_key(asked.topic, asked.queue_id)
        timestamp = -1
        first = self.store.read(key, self.store.min_offset(key), ReadLimit(1))
        with require_ready(first) as found:
            for span in found.spans:
                timestamp = next(decode_all(span)).store_timestamp
        return Reply(ext={"timestamp": str(timestamp)})


def _offset(offset: QueueOffset) -> Reply:
    return Reply(ext={"offset": str(offset)})
