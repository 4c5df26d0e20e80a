"""Messages for administrators: found by id, key, time or offset, and lists of waiting ones.

With RocketMQ's requests a page would need one request for each queue and step, so these requests
are Tianzhou's own. Found messages are returned as they are stored, oldest first, from the log of
this broker only: the address in an id is ignored. Waiting messages are timed messages, and
undecided or parked transactions; actions on them use RocketMQ's requests RECALL_MESSAGE,
END_TRANSACTION and RESUME_CHECK_HALF_MESSAGE.
"""

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import QueueKey, QueueOffset, queue_key
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.scheduled.timer import TIMER_QUEUE, Timers
from tianzhou.broker.topics.store_times import store_time
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.transactions.checks import TransactionChecks
from tianzhou.broker.transactions.half_queue import HALF_QUEUE, HalfQueue, root_of
from tianzhou.broker.transactions.parked import PARKED_QUEUE
from tianzhou.broker.writing import recall_handle as recall
from tianzhou.broker.writing.durable_reply import reply_when_durable
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.broker.writing.stored import Stored, at_offset, records, require_ready
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.record import names as keys
from tianzhou.record.ids import decode_offset_id
from tianzhou.record.message import MessageView
from tianzhou.store.protocols import QueueReader
from tianzhou.store.read import ReadLimit, ReadResult
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import ListWaitingRequest, ViewMessagesRequest
from tianzhou.wire._generated_headers_send import ResumeCheckHalfMessageRequest
from tianzhou.wire.admin_bodies import HalfMessage, HalfMessages, TimedMessage, TimedMessages

COUNT_MAX: Final = 256
BYTES_MAX: Final = 4 * 1024 * 1024
"""Of one response, unless a single message is larger: a page shows the beginning of each."""
COPIES_MAX: Final = 32
"""Messages with one unique id that are read: the first is returned, the others are resends."""
STEPS_MAX: Final = 4_096
"""Offsets that are tried for one response, if messages of a queue have expired."""
_ONE: Final = ReadLimit(count=1)

_Place = tuple[int, QueueKey, int]
"""Store time, queue, offset."""
log: Final = logging.getLogger("tianzhou.broker")

LISTED_MAX: Final = 1_000
"""Waiting messages in one response; each is read from the log."""
READS_MAX: Final = 4_096
"""Waiting messages that are read for one response, if few belong to the requested topic."""


@dataclass(slots=True)
class AdminMessages:
    """Owner: the broker loop."""

    store: QueueReader
    topics: Topics

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.VIEW_MESSAGES: self.view_messages}

    def view_messages(self, request: Request) -> Reply:
        asked = ViewMessagesRequest.from_ext(request.header.ext)
        ways: Mapping[str, Callable[[ViewMessagesRequest], list[bytes]]] = {
            "id": self._by_id,
            "key": self._by_key,
            "time": self._by_time,
            "newest": self._newest,
            "place": self._by_place,
        }
        way = ways.get(asked.by)
        if way is None or asked.count < 1:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"{asked.count} messages by {asked.by[:32]!r} cannot be found; use one of "
                f"{', '.join(ways)}, and a count of at least 1",
            )
        if self.topics.get(asked.topic) is None:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {asked.topic[:128]} does not exist"
            )
        return Reply(body=b"".join(way(asked)))

    # By id or key

    def _by_id(self, asked: ViewMessagesRequest) -> list[bytes]:
        """By either id of a message: the offset id, or the unique id of its producer."""
        word = asked.word or ""
        return self._stored_at(asked.topic, word) or self._find(asked, word, COPIES_MAX)[:1]

    def _stored_at(self, topic: str, word: str) -> list[bytes]:
        try:
            offset = decode_offset_id(word).physical_offset
        except UsageError:
            return []  # the other kind of id
        with require_ready(self.store.record_at(offset)) as found:
            messages = map(MessageView, found.spans)
            is_it = any((m.offset_id, m.topic) == (word, topic) for m in messages)
            return _taken(found) if is_it else []

    def _by_key(self, asked: ViewMessagesRequest) -> list[bytes]:
        return self._find(asked, asked.word or "", min(asked.count, COUNT_MAX))

    def _find(self, asked: ViewMessagesRequest, word: str, count: int) -> list[bytes]:
        begin_ms, end_ms = asked.begin_timestamp_ms, asked.end_timestamp_ms
        found = self.store.find(
            asked.topic, word, begin_ms=begin_ms, end_ms=end_ms, count_max=count
        )
        with require_ready(found):
            return _taken(found)[::-1]  # the index has the newest first

    # By offset or time

    def _by_place(self, asked: ViewMessagesRequest) -> list[bytes]:
        return self._at(queue_key(asked.topic, asked.queue_id), asked.offset)

    def _at(self, key: QueueKey, offset: int) -> list[bytes]:
        if not self.store.min_offset(key) <= offset < self.store.max_offset(key):
            return []
        with require_ready(self.store.read(key, QueueOffset(offset), _ONE)) as found:
            return _taken(found)

    def _by_time(self, asked: ViewMessagesRequest) -> list[bytes]:
        """The first messages of a time range."""
        merged = heapq.merge(*(self._places(key, span) for key, span in self._spans(asked)))
        return self._read(merged, asked.count)

    def _newest(self, asked: ViewMessagesRequest) -> list[bytes]:
        """The last messages before a timestamp."""
        backwards = (self._places(key, span[::-1]) for key, span in self._spans(asked))
        return self._read(heapq.merge(*backwards, reverse=True), asked.count)[::-1]

    def _spans(self, asked: ViewMessagesRequest) -> Iterator[tuple[QueueKey, range]]:
        topic = self.topics.get(asked.topic)
        for queue_id in range(topic.read_queue_nums if topic else 0):
            key = queue_key(asked.topic, queue_id)
            if not self.store.max_offset(key):
                continue
            start = self.store.offset_by_time(key, asked.begin_timestamp_ms)
            yield key, range(start, self.store.offset_by_time(key, asked.end_timestamp_ms))

    def _places(self, key: QueueKey, offsets: Iterable[int]) -> Iterator[_Place]:
        """Store times only: messages that are not chosen are not copied."""
        for offset in islice(offsets, STEPS_MAX):
            at_ms = store_time(self.store, key, offset)
            if at_ms is not None:
                yield at_ms, key, offset

    def _read(self, places: Iterable[_Place], count: int) -> list[bytes]:
        chosen = islice(places, min(count, COUNT_MAX))
        return _fitting(chain.from_iterable(self._at(key, offset) for _, key, offset in chosen))


def _taken(found: ReadResult) -> list[bytes]:
    return _fitting(bytes(span) for span in found.spans)


def _fitting(records: Iterable[bytes]) -> list[bytes]:
    taken, left = list[bytes](), BYTES_MAX
    for record in records:
        left -= len(record)
        if left < 0 and taken:
            break
        taken.append(record)
    return taken


@dataclass(slots=True, kw_only=True)
class AdminWaiting:
    config: BrokerConfig
    store: QueueReader
    writer: Writer
    timers: Timers
    halves: HalfQueue
    checks: TransactionChecks

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.LIST_TIMERS: self.list_timers,
            RequestCode.LIST_HALF_MESSAGES: self.list_halves,
            RequestCode.LIST_PARKED_MESSAGES: self.list_parked,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume,
        }

    def list_timers(self, request: Request) -> Reply:
        asked = ListWaitingRequest.from_ext(request.header.ext)
        self.timers.scan()  # so that messages sent just now are listed
        rows = map(self._timed, self._read(TIMER_QUEUE, self.timers.soonest()))
        wanted = (row for row in rows if row and asked.topic in (None, row.topic))
        found = tuple(islice(wanted, _count(asked)))
        return Reply(body=fastjson.encode(TimedMessages(messages=found, total=len(self.timers))))

    def list_halves(self, request: Request) -> Reply:
        asked = ListWaitingRequest.from_ext(request.header.ext)
        self.checks.scan()
        rows = map(self._half, self._read(HALF_QUEUE, self.halves.pending))
        wanted = (row for row in rows if asked.topic in (None, row.topic))
        found = tuple(islice(wanted, _count(asked)))
        total = len(self.halves.pending)
        return Reply(body=fastjson.encode(HalfMessages(messages=found, total=total)))

    def list_parked(self, request: Request) -> Reply:
        asked, parked = ListWaitingRequest.from_ext(request.header.ext), self.checks.parked
        parked.read_all()
        rows = map(_parked, self._read(PARKED_QUEUE, parked))
        wanted = (row for row in rows if asked.topic in (None, row.topic))
        found = tuple(islice(wanted, _count(asked)))
        return Reply(body=fastjson.encode(HalfMessages(messages=found, total=len(parked))))

    def _read(self, queue: QueueKey, offsets: Iterable[int]) -> Iterator[Stored]:
        for offset in islice(offsets, READS_MAX):
            found, stored = at_offset(self.store, queue, offset)
            with require_ready(found):
                if stored is not None:
                    yield stored

    def _timed(self, stored: Stored) -> TimedMessage | None:
        if self.timers.is_cancelled(stored):
            return None
        return TimedMessage(
            deliver_timestamp=stored.number(keys.TIMER_DELIVER_MS, 0),
            msg_id=stored.view.message_id,
            offset_msg_id=stored.view.offset_id,
            recall_handle=recall.handle_of(stored.properties, self.config.name),
            store_timestamp=stored.view.store_timestamp,
            topic=_real_topic(stored),
        )

    def _half(self, stored: Stored) -> HalfMessage:
        offset, pending = int(stored.view.queue_offset), self.halves.pending
        return HalfMessage(
            checks=pending.checks(offset),
            group=pending.group(offset),
            msg_id=stored.view.message_id,
            offset_msg_id=stored.view.offset_id,
            queue_offset=offset,
            store_timestamp=stored.view.store_timestamp,
            topic=_real_topic(stored),
        )

    # Resuming

    def resume(self, request: Request) -> Reply | None:
        """Restart the checks of a half message that is pending, or that was parked because no
        producer decided it."""
        asked = ResumeCheckHalfMessageRequest.from_ext(request.header.ext)
        with require_ready(self.store.record_at(_place(asked.msg_id))) as found:
            stored = next(records(found), None)
            if stored is None or stored.view.topic not in (
                names.HALF_TOPIC,
                names.CHECKED_OUT_TOPIC,
            ):
                raise RequestRejected(
                    ResponseCode.SYSTEM_ERROR, f"no half message is known as {asked.msg_id}"
                )
            log.info("transaction.resumed", extra={"id": asked.msg_id, "peer": request.peer.remote})
            if stored.view.topic == names.HALF_TOPIC:
                if not self.checks.recheck(root_of(stored)):
                    raise RequestRejected(
                        ResponseCode.ILLEGAL_OPERATION, f"{asked.msg_id} is decided already"
                    )
                return Reply()
            appended = self.checks.parked.resume(stored)
        reply_when_durable(self.writer, request, appended.end, Reply())
        return None


def _parked(stored: Stored) -> HalfMessage:
    return HalfMessage(
        checks=stored.number(keys.TRANSACTION_CHECK_TIMES, 0),
        group=(stored.get(keys.PRODUCER_GROUP) or b"").decode("utf-8", "replace"),
        msg_id=stored.view.message_id,
        offset_msg_id=stored.view.offset_id,
        queue_offset=int(stored.view.queue_offset),
        store_timestamp=stored.view.store_timestamp,
        topic=_real_topic(stored),
    )


def _count(asked: ListWaitingRequest) -> int:
    if asked.count < 1:
        raise RequestRejected(
            ResponseCode.INVALID_PARAMETER, f"count must be at least 1, got {asked.count}"
        )
    return min(asked.count, LISTED_MAX)


def _real_topic(stored: Stored) -> str:
    return (stored.get(keys.REAL_TOPIC) or b"").decode("utf-8", "replace")


def _place(message_id: str | None) -> int:
    try:
        return decode_offset_id(message_id or "").physical_offset
    except UsageError as error:
        raise RequestRejected(ResponseCode.INVALID_PARAMETER, str(error)) from error
