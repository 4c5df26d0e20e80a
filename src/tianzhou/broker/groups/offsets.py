"""Offsets: of consumers, and of queues."""

from dataclasses import dataclass

from tianzhou.base.kinds import QueueOffset, queue_key
from tianzhou.broker.groups.accepted_offsets import FORWARD_ONLY, RESET_SEEN
from tianzhou.broker.groups.commit_bound import end_if_beyond
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import Groups, check_commit
from tianzhou.broker.topics.topics import QUEUES_MAX, Topics
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.record.message import decode_all
from tianzhou.store.read import ReadLimit
from tianzhou.store.search import Boundary
from tianzhou.store.store import MessageStore
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_pull import (
    GetMaxOffsetRequest,
    QueryConsumerOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    UpdateConsumerOffsetRequest,
)


@dataclass(slots=True)
class Offsets:
    store: MessageStore
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
        """Where a group goes on. A new group on a topic that still has its first message begins
        there: clients that get no answer would begin at the end and miss it."""
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
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {asked.topic} does not exist"
            )
        if not 0 <= asked.queue_id < QUEUES_MAX or asked.commit_offset < 0:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"offset {asked.commit_offset} of queue {asked.queue_id} can't be: queues go from "
                f"0 to {QUEUES_MAX - 1}, offsets from 0",
            )
        row = asked.consumer_group, asked.topic, asked.queue_id
        if request.header.ext.get(FORWARD_ONLY) != "true":
            end = end_if_beyond(self.store, asked.topic, asked.queue_id, asked.commit_offset)
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
        with self.store.read(key, self.store.min_offset(key), ReadLimit(1)) as found:
            for span in found.spans:
                timestamp = next(decode_all(span)).store_timestamp
        return Reply(ext={"timestamp": str(timestamp)})


def _offset(offset: QueueOffset) -> Reply:
    return Reply(ext={"offset": str(offset)})
