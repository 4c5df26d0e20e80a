"""Queries for messages: by id, key, time or offset.

`Query` serves RocketMQ's requests. `AdminMessages` serves Tianzhou's own, with which a page of the
dashboard needs one request instead of one for each queue and step. Messages are returned as they
are stored, oldest first, from the log of this broker only: the address in an id is ignored.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import QueueKey, QueueOffset, queue_key
from tianzhou.base.limits import PULL_BYTES_MAX
from tianzhou.broker.groups.groups import Sessions
from tianzhou.broker.topics.store_times import store_time
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.writing.stored import require_ready
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.record.ids import decode_offset_id
from tianzhou.record.message import MessageView
from tianzhou.store.consume_queue import MISSING_SIZE
from tianzhou.store.key_index import QUERY_COUNT_MAX
from tianzhou.store.protocols import QueueReader
from tianzhou.store.read import ReadLimit, ReadResult
from tianzhou.store.store import MessageStore
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import QueryConsumeQueueRequest, ViewMessagesRequest
from tianzhou.wire._generated_headers_pull import (
    QueryMessageRequest,
    QueryMessageResponse,
    ViewMessageRequest,
)
from tianzhou.wire.admin_bodies import (
    QueueUnit,
    QueueUnits,
)

UNIQUE_COUNT: Final = 32
"""Messages returned for a unique id, as in RocketMQ: the message and its copies in retry topics."""
UNITS_MAX: Final = 1_000
"""Entries of a queue in one response."""
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


@dataclass(slots=True)
class Query:
    store: MessageStore
    sessions: Sessions

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_MESSAGE: self.by_key,
            RequestCode.VIEW_MESSAGE_BY_ID: self.by_place,
            RequestCode.QUERY_CONSUME_QUEUE: self.units,
        }

    def by_key(self, request: Request) -> Reply:
        asked = QueryMessageRequest.from_ext(request.header.ext)
        count = UNIQUE_COUNT if asked.unique_key_query else asked.max_num
        found = self.store.find(
            asked.topic,
            asked.key,
            begin_ms=asked.begin_timestamp_ms,
            end_ms=asked.end_timestamp_ms,
            count_max=min(max(count, 1), QUERY_COUNT_MAX),
        )
        with require_ready(found):
            body = _joined(found.spans)
        ext = self._index_state().to_ext()
        if not body:
            return Reply(
                ResponseCode.QUERY_NOT_FOUND,
                ext=ext,
                remark=f"no message of {asked.topic} with this key in this range of time",
            )
        return Reply(ext=ext, body=body)

    def _index_state(self) -> QueryMessageResponse:
        """How far the index has come; messages sent later cannot be found yet."""
        index = self.store.index
        newest = index.files[-1] if index is not None and index.files else None
        return QueryMessageResponse(
            index_last_update_timestamp_ms=newest.end_timestamp if newest else 0,
            index_last_update_physical_offset=newest.end_offset if newest else 0,
        )

    def by_place(self, request: Request) -> Reply:
        offset = ViewMessageRequest.from_ext(request.header.ext).offset
        with require_ready(self.store.record_at(offset)) as found:
            body = b"".join(found.spans)
        if not body:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR, f"no message begins at offset {offset}"
            )
        return Reply(body=body)

    def units(self, request: Request) -> Reply:
        """Entries of a consume queue, to compare it with the log."""
        asked = QueryConsumeQueueRequest.from_ext(request.header.ext)
        queue = self.store.queues.get(queue_key(asked.topic, asked.queue_id))
        if queue is None:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"queue {asked.queue_id} of {asked.topic[:128]} does not exist",
            )
        start = max(asked.index, queue.min_offset)
        end = min(start + min(max(asked.count, 0), UNITS_MAX), queue.end)
        found = [queue.unit(rank) for rank in range(start, end)]
        members = self.sessions.consumers.get(asked.consumer_group or "")
        body = QueueUnits(
            max_queue_index=queue.end,
            min_queue_index=queue.min_offset,
            queue_data=tuple(
                QueueUnit(
                    physic_offset=unit.physical_offset,
                    physic_size=unit.size,
                    tags_code=unit.tags_code,
                    msg="no longer in the log" if unit.size == MISSING_SIZE else None,
                )
                for unit in found
            ),
            subscription_data=members.subscriptions.get(asked.topic) if members else None,
        )
        return Reply(body=fastjson.encode(body))


def _joined(spans: list[memoryview]) -> bytes:
    """The newest messages that fit into one frame; at least one."""
    taken: list[memoryview] = []
    left = PULL_BYTES_MAX
    for span in spans:
        left -= len(span)
        if left < 0:
            break
        taken.append(span)
    return b"".join(taken)


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
