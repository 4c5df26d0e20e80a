"""Messages for a page: found by id, key, time or place, or the newest, each in one answer.

RocketMQ's own requests take one for each queue and step, so this one is of our own. The answer is
the records as they are stored, the oldest first. A broker looks nowhere but into its own log: what
address stands in an id is of no account.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import QueueKey, QueueOffset, queue_key
from tianzhou.broker.topics.store_times import store_time
from tianzhou.broker.topics.topics import Topics
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.record.ids import decode_offset_id
from tianzhou.record.message import MessageView
from tianzhou.store.read import ReadLimit, ReadResult
from tianzhou.store.store import MessageStore
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import ViewMessagesRequest

COUNT_MAX: Final = 256
BYTES_MAX: Final = 4 * 1024 * 1024
"""Of one answer, unless a single message has more: a page shows the beginning of each."""
COPIES_MAX: Final = 32
"""Messages with one unique id: the first of them is meant, the others were sent again."""
STEPS_MAX: Final = 4_096
"""Places that are looked at for one answer, when messages of a queue are gone."""
_ONE: Final = ReadLimit(count=1)

_Place = tuple[int, QueueKey, int]
"""Store time, queue, offset."""


@dataclass(slots=True)
class AdminMessages:
    """Owner: the broker loop."""

    store: MessageStore
    topics: Topics

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.VIEW_MESSAGES: self.look}

    def look(self, request: Request) -> Reply:
        asked = ViewMessagesRequest.from_ext(request.header.ext)
        ways: Mapping[str, Callable[[ViewMessagesRequest], list[bytes]]] = {
            "id": self._by_id, "key": self._by_key, "time": self._by_time,
            "newest": self._newest, "place": self._by_place,
        }  # fmt: skip
        way = ways.get(asked.by)
        if way is None or asked.count < 1:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"{asked.count} messages by {asked.by[:32]!r} can't be found; there are "
                f"{', '.join(ways)}, and at least one message",
            )
        if self.topics.get(asked.topic) is None:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {asked.topic[:128]} does not exist"
            )
        return Reply(body=b"".join(way(asked)))

    # By name

    def _by_id(self, asked: ViewMessagesRequest) -> list[bytes]:
        """Either id that a message has: where it is stored, or what its producer called it."""
        word = asked.word or ""
        return self._stored_at(asked.topic, word) or self._find(asked, word, COPIES_MAX)[:1]

    def _stored_at(self, topic: str, word: str) -> list[bytes]:
        try:
            offset = decode_offset_id(word).physical_offset
        except UsageError:
            return []  # the other kind of id
        with self.store.record_at(offset) as found:
            messages = map(MessageView, found.spans)
            is_it = any((m.offset_id, m.topic) == (word, topic) for m in messages)
            return _taken(found) if is_it else []

    def _by_key(self, asked: ViewMessagesRequest) -> list[bytes]:
        return self._find(asked, asked.word or "", min(asked.count, COUNT_MAX))

    def _find(self, asked: ViewMessagesRequest, word: str, count: int) -> list[bytes]:
        begin_ms, end_ms = asked.begin_timestamp_ms, asked.end_timestamp_ms
        with self.store.find(
            asked.topic, word, begin_ms=begin_ms, end_ms=end_ms, count_max=count
        ) as found:
            return _taken(found)[::-1]  # the index has the newest first

    # By place

    def _by_place(self, asked: ViewMessagesRequest) -> list[bytes]:
        return self._at(queue_key(asked.topic, asked.queue_id), asked.offset)

    def _at(self, key: QueueKey, offset: int) -> list[bytes]:
        if not self.store.min_offset(key) <= offset < self.store.max_offset(key):
            return []
        with self.store.read(key, QueueOffset(offset), _ONE) as found:
            return _taken(found)

    def _by_time(self, asked: ViewMessagesRequest) -> list[bytes]:
        """The first messages from one moment to before another."""
        merged = heapq.merge(*(self._places(key, span) for key, span in self._spans(asked)))
        return self._read(merged, asked.count)

    def _newest(self, asked: ViewMessagesRequest) -> list[bytes]:
        """The last messages before a moment."""
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
        """Times alone: what is not chosen is not copied."""
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
