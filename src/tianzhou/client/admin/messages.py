"""Stored messages: find them by id, key, offset or time, and read their traces."""

import asyncio
from collections.abc import Iterable
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.client.admin.calls import AdminCalls
from tianzhou.client.admin.offsets import Offsets
from tianzhou.client.core.routing import TopicRoute
from tianzhou.client.core.trace import TraceRecord, decode_trace
from tianzhou.client.errors import BrokerSystemError, QueryNotFound
from tianzhou.record.ids import decode_offset_id
from tianzhou.record.message import MessageView, decode_all
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_pull import QueryMessageRequest, ViewMessageRequest
from tianzhou.wire.names import TRACE_TOPIC
from tianzhou.wire.queues import MessageQueue

COUNT: Final = 32
ALWAYS_MS: Final = (1 << 62) - 1
TRACES_MAX: Final = 64


class Messages:
    """Stored messages: find them by id, key, offset or time, and read traces (`admin.messages`).

        for message in await admin.messages.by_key("orders", "T1"):
            print(message.message_id, message.body)

    Methods raise TopicNotFound if the topic does not exist.

    Owner: the event loop.
    """

    def __init__(self, calls: AdminCalls, offsets: Offsets) -> None:
        self._calls = calls
        self._offsets = offsets

    async def by_id(self, topic: str, message_id: str) -> MessageView | None:
        """Return the message with this id, the producer's or the broker's; None if there is none.

        Raises TopicNotFound.
        """
        found = await self._stored_at(topic, message_id)
        if found is not None:
            return found
        copies = await self.by_unique_id(topic, message_id)
        return copies[0] if copies else None

    async def _stored_at(self, topic: str, message_id: str) -> MessageView | None:
        """Find a message by the broker's id. Both kinds of id have the same form, and the address
        in the id may not be the one clients use, so all brokers of the topic are asked, and the
        message must have the id.
        """
        try:
            fields = ViewMessageRequest(offset=decode_offset_id(message_id).physical_offset)
        except UsageError:
            return None

        async def one(address: str) -> MessageView | None:
            try:
                _, body = await self._calls.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, fields)
            except BrokerSystemError:
                return None  # no message starts at this offset
            found = MessageView(body)
            return found if (found.offset_id, found.topic) == (message_id, topic) else None

        masters = await self._calls.masters_of(topic)
        answers = await asyncio.gather(*map(one, masters.values()))
        return next((message for message in answers if message is not None), None)

    async def by_unique_id(self, topic: str, unique_id: str) -> list[MessageView]:
        """Return the message with the producer's id, oldest first if it was sent more than once.

        Raises TopicNotFound.
        """
        return await self._query(topic, unique_id, is_unique=True)

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = ALWAYS_MS,
        count: int = COUNT,
    ) -> list[MessageView]:
        """Return messages with this key that were stored between two times, oldest first.

        Each broker returns its newest `count`. Raises TopicNotFound.
        """
        return await self._query(topic, key, begin_ms=begin_ms, end_ms=end_ms, count=count)

    async def _query(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = ALWAYS_MS,
        count: int = COUNT,
        is_unique: bool = False,
    ) -> list[MessageView]:
        fields = QueryMessageRequest(
            topic=topic,
            key=key,
            max_num=count,
            begin_timestamp_ms=begin_ms,
            end_timestamp_ms=end_ms,
            unique_key_query=is_unique,
        )

        async def one(address: str) -> list[MessageView]:
            try:
                _, body = await self._calls.ask(address, RequestCode.QUERY_MESSAGE, fields)
            except QueryNotFound:
                return []
            return list(decode_all(body))

        masters = await self._calls.masters_of(topic)
        answers = await asyncio.gather(*map(one, masters.values()))
        return _sorted(message for answer in answers for message in answer)

    async def between(
        self, topic: str, *, begin_ms: int, end_ms: int, count: int = COUNT
    ) -> list[MessageView]:
        """Return messages stored from `begin_ms` to before `end_ms`, oldest first.

        Each queue returns at most `count`. Raises UsageError if the start is not before the end,
        and TopicNotFound.
        """
        if begin_ms >= end_ms:
            raise UsageError(f"begin_ms {begin_ms} must be before end_ms {end_ms}")
        route = await self._calls.route(topic)

        async def one(queue: MessageQueue) -> list[MessageView]:
            start = await self._offsets.by_time(queue, time_ms=begin_ms)
            end = await self._offsets.by_time(queue, time_ms=end_ms)
            last = await self._at(route, queue, end)
            # For a time after the last message the broker returns the last message.
            stop = end + 1 if last and last[0].store_timestamp < end_ms else end
            found = await self._read(route, queue, start=start, end=stop, count=count)
            return [m for m in found if begin_ms <= m.store_timestamp < end_ms]

        answers = await asyncio.gather(*map(one, route.read_queues))
        return _sorted(message for answer in answers for message in answer)

    async def at(self, queue: MessageQueue, offset: int, *, count: int = 1) -> list[MessageView]:
        """Return up to `count` messages of one queue, starting at an offset.

        Raises TopicNotFound, and UsageError if the broker does not have the queue.
        """
        route = await self._calls.route(queue.topic)
        return await self._read(route, queue, start=offset, end=offset + count, count=count)

    async def _at(self, route: TopicRoute, queue: MessageQueue, offset: int) -> list[MessageView]:
        return await self._read(route, queue, start=offset, end=offset + 1, count=1)

    async def _read(
        self, route: TopicRoute, queue: MessageQueue, *, start: int, end: int, count: int
    ) -> list[MessageView]:
        address = route.any_address(queue.broker_name)
        if address is None:
            known = ", ".join(sorted(route.brokers)) or "none"
            raise UsageError(
                f"broker {queue.broker_name} has no queue of {queue.topic}; these do: {known}"
            )
        return await self._calls.read(address, queue, start=start, end=end, count=count)

    async def trace(self, message_id: str, *, topic: str = TRACE_TOPIC) -> list[TraceRecord]:
        """Return what tracing producers and consumers recorded about a message, in order of time.

        `topic` is the trace topic. Raises TopicNotFound.
        """
        traces = await self._query(topic, message_id, count=TRACES_MAX)
        records = [
            record
            for message in traces
            for record in decode_trace(message.body)
            if record.message_id == message_id
        ]
        return sorted(set(records), key=lambda record: record.timestamp_ms)


def _sorted(messages: Iterable[MessageView]) -> list[MessageView]:
    return sorted(messages, key=lambda m: (m.store_timestamp, m.physical_offset))
