"""Queries for single messages: by key, by log offset, and by queue offset."""

from dataclasses import dataclass
from typing import Final

from tianzhou.base.kinds import queue_key
from tianzhou.base.limits import PULL_BYTES_MAX
from tianzhou.broker.groups.sessions import Sessions
from tianzhou.broker.writing.stored import require_ready
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.store.consume_queue import MISSING_SIZE
from tianzhou.store.key_index import QUERY_COUNT_MAX
from tianzhou.store.store import MessageStore
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import QueryConsumeQueueRequest
from tianzhou.wire._generated_headers_pull import (
    QueryMessageRequest,
    QueryMessageResponse,
    ViewMessageRequest,
)
from tianzhou.wire.admin_bodies import QueueUnit, QueueUnits

UNIQUE_COUNT: Final = 32
"""Messages returned for a unique id, as in RocketMQ: the message and its copies in retry topics."""
UNITS_MAX: Final = 1_000
"""Entries of a queue in one response."""


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
