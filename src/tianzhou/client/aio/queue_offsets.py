"""Questions about offsets, asked of a broker that has the queue."""

from typing import Final

from tianzhou.client.aio.shared_client import SharedClient
from tianzhou.client.errors import QueryNotFound
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_pull import (
    GetMaxOffsetRequest,
    OffsetResponse,
    QueryConsumerOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from tianzhou.wire.fields import ExtFields
from tianzhou.wire.queues import MessageQueue

LOWER: Final = "LOWER"


class QueueOffsets:
    def __init__(self, group: str, shared: SharedClient) -> None:
        self.group = group
        self._shared = shared

    async def committed(self, queue: MessageQueue) -> int | None:
        """How far the group has come; None when the broker does not know."""
        fields = QueryConsumerOffsetRequest(
            consumer_group=self.group, topic=queue.topic, queue_id=queue.queue_id
        )
        try:
            return await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        except QueryNotFound:
            return None

    async def first(self, queue: MessageQueue) -> int:
        """The first message that is still there."""
        fields = QueueRequest(topic=queue.topic, queue_id=queue.queue_id)
        return await self._ask(queue, RequestCode.GET_MIN_OFFSET, fields)

    async def end(self, queue: MessageQueue) -> int:
        """What the next message will have."""
        fields = GetMaxOffsetRequest(topic=queue.topic, queue_id=queue.queue_id)
        return await self._ask(queue, RequestCode.GET_MAX_OFFSET, fields)

    async def at_time(self, queue: MessageQueue, moment_ms: int) -> int:
        """Return the offset of the first message stored at a time or later; else the end."""
        fields = SearchOffsetRequest(
            topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=moment_ms,
            boundary_type=LOWER,
        )  # fmt: skip
        return await self._ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)

    async def commit(self, queue: MessageQueue, offset: int, *, oneway: bool = False) -> None:
        """Commit an offset with a one-way request, without knowing whether it arrives."""
        ext = UpdateConsumerOffsetRequest(
            consumer_group=self.group, topic=queue.topic, queue_id=queue.queue_id,
            commit_offset=offset,
        ).to_ext()  # fmt: skip
        address = await self._where(queue)
        if oneway:
            await self._shared.send_oneway(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        else:
            await self._shared.call_ok(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)

    async def _ask(self, queue: MessageQueue, code: int, fields: ExtFields) -> int:
        address = await self._where(queue)
        header, _ = await self._shared.call_ok(address, code, fields.to_ext())
        return OffsetResponse.from_ext(header.ext).offset

    async def _where(self, queue: MessageQueue) -> str:
        """The master of the queue, or while there is none another broker that has copies."""
        route = await self._shared.route(queue.topic)
        found = route.any_address(queue.broker_name)
        return found or await self._shared.broker_address(queue.broker_name)
