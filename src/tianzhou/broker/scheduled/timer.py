"""Messages scheduled for a timestamp: they wait in the timer's topic in the order of arrival.

Memory holds the delivery time and the queue offset of each waiting message in a `Schedule`: 16 to
32 bytes each. Everything else stays in the log. The queue is read once, after a start from the
saved progress, in slices, by the same code that handles new messages.

A recall is a message in the same topic that names the one to cancel and has its timestamp. It is
stored later in the queue, so the scan finds it before the timestamp, and it leaves the schedule
right after the message it cancels. Until the queue has been read to its end, only messages due
before the last message read was stored are delivered: a recall of one of these must have been
stored earlier.

A message must outlive the retention of the log. One that waits longer than `roll_ms` is appended to
the topic again when that time has passed; the schedule holds it under the time of this roll.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import QueueOffset, queue_key
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.role import Permission
from tianzhou.broker.scheduled.timer_progress import TimerProgress, progress_table
from tianzhou.broker.writing import incoming
from tianzhou.broker.writing import recall_handle as recall
from tianzhou.broker.writing.delivery import deliver
from tianzhou.broker.writing.due_queue import Schedule
from tianzhou.broker.writing.durable_reply import reply_when_durable
from tianzhou.broker.writing.flushed_checkpoint import FlushedCheckpoint
from tianzhou.broker.writing.incoming import Incoming
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.broker.writing.recall_handle import Handle, cancel_key
from tianzhou.broker.writing.stored import (
    Stored,
    at_offset,
    listed_count,
    read_waiting,
    records,
    require_ready,
)
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.record import names as keys
from tianzhou.record.chunk import Entry
from tianzhou.store.read import ReadLimit, ReadStatus
from tianzhou.store.store import MessageStore
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import ListWaitingRequest
from tianzhou.wire._generated_headers_send import RecallMessageRequest, RecallMessageResponse
from tianzhou.wire.admin_bodies import TimedMessage, TimedMessages

log: Final = logging.getLogger("tianzhou.broker")

TIMER_QUEUE: Final = queue_key(names.TIMER_TOPIC, 0)
SCAN_SLICES_MAX: Final = 1
"""Reads of up to 800 messages in one tick: about 8 ms. The server ticks again soon if there is
more."""
CHUNK_COUNT_MAX: Final = 256
CHUNK_BYTES_MAX: Final = 1024 * 1024
TICK_COUNT_MAX: Final = 512
"""Messages delivered per tick: about 15 ms of work, since each is read separately."""
ROLL_MS_MAX: Final = 172_800_000
"""RocketMQ rolls after two days, of the three for which a log keeps messages."""
TIMERS_MAX: Final = 5_000_000
"""Messages that may wait at once: 80 to 160 MB."""
_SLICE: Final = ReadLimit(count=800, size=1 << 26)


class Timers:
    """Owner: the broker loop.

    Invariant: a scanned message is in the schedule, delivered or cancelled
    """

    def __init__(
        self, store: MessageStore, writer: Writer, clock: Clock, *, save_every_ms: int
    ) -> None:
        self._store = store
        self._writer = writer
        self._clock = clock
        self._save_every_ms = save_every_ms
        retention_ms = store.config.retention_hours * 3_600_000
        self._roll_ms = max(60_000, min(ROLL_MS_MAX, retention_ms * 2 // 3))
        self.begin()

    def begin(self) -> None:
        """Resume at the saved progress."""
        store, clock = self._store, self._clock
        table = progress_table(store)
        self._before = table.load()
        end = store.max_offset(TIMER_QUEUE)
        self._scanned = min(self._before.low, end)
        # A crash may have lost the end of the queue: the next messages with these offsets are new.
        self._scanned_before = min(self._before.scanned, end)
        self._schedule = Schedule()
        self._cancelled: set[bytes] = set()
        self._seen_ms = 0
        self._saving = FlushedCheckpoint(
            store,
            self._progress,
            table.save,
            every_ms=self._save_every_ms,
            now_s=clock.monotonic_s(),
        )

    def __len__(self) -> int:
        return len(self._schedule)

    def is_full(self) -> bool:
        return len(self._schedule) >= TIMERS_MAX

    def soonest(self) -> Iterator[int]:
        """Queue offsets of the waiting messages, in the order in which they are due."""
        return iter(self._schedule)

    def is_cancelled(self, stored: Stored) -> bool:
        """Whether a message that waits, or is a recall, will not be delivered."""
        if stored.get(keys.TIMER_DELETE_UNIQ_KEY) is not None:
            return True
        return _key_of(stored) in self._cancelled

    def cancel(self, key: bytes) -> None:
        """A recall was accepted; its message in the topic may become visible only later."""
        self._cancelled.add(key)

    def tick(self) -> bool:
        now_ms = self._clock.now_ms()
        is_complete = self.scan()
        until_ms = now_ms if is_complete else min(now_ms, self._seen_ms)
        count = 0
        while self._schedule and count < TICK_COUNT_MAX:
            moved = self._deliver(now_ms, until_ms)
            if not moved:
                break
            count += moved
        if self._scanned >= self._scanned_before:
            self._saving.tick(self._clock.monotonic_s())
        return not is_complete or count >= TICK_COUNT_MAX

    def finish(self) -> None:
        # The saved progress covers everything that was read before the start. Until it is read
        # again, the saved progress is better than the current one.
        if self._scanned >= self._scanned_before:
            self._saving.finish()

    # Reading the topic

    def scan(self) -> bool:
        """Read the next slice; returns whether the end was reached."""
        for _ in range(SCAN_SLICES_MAX):
            if self._scanned >= self._store.max_offset(TIMER_QUEUE):
                return True
            with self._store.read(TIMER_QUEUE, QueueOffset(self._scanned), _SLICE) as found:
                for stored in records(found):
                    self._add(stored)
                self._scanned = found.next_offset
        return self._scanned >= self._store.max_offset(TIMER_QUEUE)

    def _add(self, stored: Stored) -> None:
        offset = int(stored.view.queue_offset)
        stored_ms = self._seen_ms = stored.view.store_timestamp
        deliver_ms = max(0, stored.number(keys.TIMER_DELIVER_MS, 0))
        if offset < self._scanned_before:
            before = self._before
            due_ms = min(deliver_ms, stored_ms + before.roll_ms)
            if (due_ms, offset) < (before.moment, before.offset):
                return
        cancels = stored.get(keys.TIMER_DELETE_UNIQ_KEY)
        if cancels is not None:
            self._cancelled.add(cancels)
        self._schedule.push(min(deliver_ms, stored_ms + self._roll_ms), offset)

    # Delivering

    def _deliver(self, now_ms: int, until_ms: int) -> int:
        """Deliver one chunk; returns how many messages left the schedule."""
        taken: list[tuple[int, int]] = []
        entries: list[Entry] = []
        ended: list[bytes] = []
        size = 0
        while len(taken) < CHUNK_COUNT_MAX and size < CHUNK_BYTES_MAX:
            first = self._schedule.first()
            if first is None or first[0] > until_ms:
                break
            found, stored = at_offset(self._store, TIMER_QUEUE, first[1])
            with found:
                if found.status is ReadStatus.NOT_READY:
                    break  # it stays in the schedule, and the next tick reads it again
                taken.append(self._schedule.pop())
                if stored is None:
                    log.error("timer.message_unreadable", extra={"offset": first[1]})
                    continue
                entry = self._due(stored, now_ms, ended)
            if entry is not None:
                entries.append(entry)
                size += len(entry.body)
        if not deliver(self._writer, entries):
            for time_ms, offset in taken:
                self._schedule.push(time_ms, offset)
            return 0
        self._cancelled.difference_update(ended)
        return len(taken)

    def _due(self, stored: Stored, now_ms: int, ended: list[bytes]) -> Entry | None:
        """The entry to write for a message that is due, or must be rolled; None if it was cancelled
        or is a recall. Recalls that are over are added to `ended`."""
        is_roll = stored.number(keys.TIMER_DELIVER_MS, 0) > now_ms
        cancels = stored.get(keys.TIMER_DELETE_UNIQ_KEY)
        if cancels is not None and not is_roll:
            ended.append(cancels)
            return None
        if cancels is None and _key_of(stored) in self._cancelled:
            return None
        message = _rolled(stored) if is_roll else stored.destination()
        return None if message is None else message.to_entry()

    # Progress

    def progress(self) -> TimerProgress:
        """The progress as it would be saved now."""
        return self._progress() if self._scanned >= self._scanned_before else self._before

    def _progress(self) -> TimerProgress:
        first, low = self._schedule.first(), self._schedule.lowest_offset()
        if first is None or low is None:
            return TimerProgress(low=self._scanned, scanned=self._scanned, roll_ms=self._roll_ms)
        return TimerProgress(
            low=low, scanned=self._scanned, moment=first[0], offset=first[1], roll_ms=self._roll_ms
        )


def _key_of(stored: Stored) -> bytes:
    topic, unique_id = stored.get(keys.REAL_TOPIC), stored.get(keys.UNIQ_KEY)
    return cancel_key(topic or b"", unique_id or b"")


def _rolled(stored: Stored) -> Incoming:
    """The message to be appended again, so that it outlives the retention."""
    times = stored.number(keys.TIMER_ROLL_TIMES, 0) + 1
    return stored.to_incoming().with_properties({keys.TIMER_ROLL_TIMES: b"%d" % times})


@dataclass(slots=True, kw_only=True)
class TimerRequests:
    """Requests about timed messages: list and cancel them."""

    config: BrokerConfig
    store: MessageStore
    permission: Permission
    timers: Timers
    writer: Writer
    clock: Clock

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.RECALL_MESSAGE: self.recall,
            RequestCode.LIST_TIMERS: self.list_timers,
        }

    def list_timers(self, request: Request) -> Reply:
        """One of Tianzhou's own requests; to cancel a listed message, a client recalls it."""
        asked = ListWaitingRequest.from_ext(request.header.ext)
        self.timers.scan()  # so that messages sent just now are listed
        rows = map(self._timed, read_waiting(self.store, TIMER_QUEUE, self.timers.soonest()))
        wanted = (row for row in rows if row and asked.topic in (None, row.topic))
        found = tuple(islice(wanted, listed_count(asked)))
        return Reply(body=fastjson.encode(TimedMessages(messages=found, total=len(self.timers))))

    def _timed(self, stored: Stored) -> TimedMessage | None:
        if self.timers.is_cancelled(stored):
            return None
        return TimedMessage(
            deliver_timestamp=stored.number(keys.TIMER_DELIVER_MS, 0),
            msg_id=stored.view.message_id,
            offset_msg_id=stored.view.offset_id,
            recall_handle=recall.handle_of(stored.properties, self.config.name),
            store_timestamp=stored.view.store_timestamp,
            topic=stored.real_topic,
        )

    def recall(self, request: Request) -> Reply | None:
        asked = RecallMessageRequest.from_ext(request.header.ext)
        self.permission.check_write()
        handle = self._checked(asked)
        cancelling = Incoming(
            handle.topic,
            0,
            b"0",
            b"TAGS\x01_RECALL_TAG_\x02",
            born_timestamp=self.clock.now_ms(),
            born_host=request.peer.remote_host,
        )
        record = incoming.timed(cancelling, handle.deliver_ms).with_properties(
            {keys.TIMER_DELETE_UNIQ_KEY: handle.cancel_key()}
        )
        appended = self.writer.put([record.to_entry()])
        self.timers.cancel(handle.cancel_key())
        reply = Reply(ext=RecallMessageResponse(msg_id=handle.unique_id).to_ext())
        reply_when_durable(self.writer, request, appended.end, reply)
        return None

    def _checked(self, asked: RecallMessageRequest) -> Handle:
        handle = recall.decode(asked.recall_handle)
        if handle is None:
            raise _refused("invalid recall handle")
        if handle.topic != asked.topic:
            raise _refused(f"the handle is of topic {handle.topic}, not {asked.topic}")
        if handle.broker != self.config.name:
            raise _refused(f"the message is at broker {handle.broker}, not {self.config.name}")
        left_ms = handle.deliver_ms - self.clock.now_ms()
        if left_ms <= 0:
            raise _refused(f"the message was delivered {-left_ms} ms ago")
        if not self._waits(handle):
            raise _refused(f"no message {handle.unique_id} waits for {handle.deliver_ms}")
        return handle

    def _waits(self, handle: Handle) -> bool:
        """Whether the message waits; True without an index, which would be needed to check it."""
        if self.store.index is None:
            return True
        with require_ready(self.store.find(names.TIMER_TOPIC, handle.unique_id)) as found:
            return any(
                stored.get(keys.REAL_TOPIC) == handle.topic.encode()
                and stored.number(keys.TIMER_DELIVER_MS, -1) == handle.deliver_ms
                for stored in records(found)
            )


def _refused(reason: str) -> RequestRejected:
    return RequestRejected(ResponseCode.ILLEGAL_OPERATION, f"recall failed: {reason}")
