"""Resets of a group to another time or offset: on the broker, and in its connected consumers.

RocketMQ 4 rejects a reset while no consumer is online, because consumers apply it; RocketMQ 5
changes the broker only. Tianzhou does both: the committed offsets change at once, so that a stopped
group can be reset, and every connected consumer is notified, so that it drops the messages in its
memory and resumes at the new offset.
"""

import logging
from dataclasses import dataclass
from typing import Final

from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import Groups, check_commit
from tianzhou.broker.groups.sessions import Sessions
from tianzhou.broker.topics.topics import Topics
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.store.protocols import QueueReader
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import ResetOffsetRequest
from tianzhou.wire._generated_headers_client import ResetClientOffsetRequest
from tianzhou.wire.header import Language
from tianzhou.wire.queues import (
    MessageQueue,
    encode_queue_offsets,
    encode_queue_offsets_as_list,
)

log: Final = logging.getLogger("tianzhou.broker")


def offset_at_time(store: QueueReader, key: QueueKey, timestamp_ms: int) -> int:
    """The offset for a reset to a timestamp; a negative one means the end of the queue."""
    return store.max_offset(key) if timestamp_ms < 0 else store.offset_by_time(key, timestamp_ms)


@dataclass(slots=True, kw_only=True)
class AdminReset:
    config: BrokerConfig
    store: QueueReader
    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets
    sessions: Sessions

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset}

    def reset(self, request: Request) -> Reply:
        asked = ResetOffsetRequest.from_ext(request.header.ext)
        check_commit(asked.group)
        targets = {queue_id: self._target(asked, queue_id) for queue_id in self._queues_of(asked)}
        for queue_id, offset in targets.items():
            self.offsets.reset(asked.group, asked.topic, queue_id, offset)
        self.offsets.save()
        table = {
            MessageQueue(broker_name=self.config.name, queue_id=queue_id, topic=asked.topic): offset
            for queue_id, offset in targets.items()
        }
        self._notify_members(asked, table)
        log.info(
            "offsets.reset",
            extra={"group": asked.group, "topic": asked.topic, "peer": request.peer.remote},
        )
        return Reply(body=encode_queue_offsets(table))

    def _queues_of(self, asked: ResetOffsetRequest) -> list[int]:
        topic = self.topics.get(asked.topic)
        if topic is None:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {asked.topic[:128]} does not exist"
            )
        if self.groups.get(asked.group) is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {asked.group[:128]} does not exist",
            )
        if asked.queue_id is None or asked.queue_id < 0:
            return list(range(topic.read_queue_nums))
        if asked.queue_id >= topic.read_queue_nums:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"topic {asked.topic} has {topic.read_queue_nums} queues to read; "
                f"queue {asked.queue_id} is not one of them",
            )
        return [asked.queue_id]

    def _target(self, asked: ResetOffsetRequest, queue_id: int) -> int:
        key = queue_key(asked.topic, queue_id)
        low, high = self.store.min_offset(key), self.store.max_offset(key)
        if asked.offset is not None and asked.offset >= 0:
            if not low <= asked.offset <= high:
                raise RequestRejected(
                    ResponseCode.SYSTEM_ERROR,
                    f"offset {asked.offset} is outside queue {queue_id} of {asked.topic}, which "
                    f"has offsets {low} to {high}",
                )
            return asked.offset
        target = offset_at_time(self.store, key, asked.timestamp_ms)
        committed = self.offsets.get(asked.group, asked.topic, queue_id)
        if asked.is_force or committed is None:
            return target
        # Without force a reset never skips messages that the group has not consumed yet.
        return min(target, committed)

    def _notify_members(self, asked: ResetOffsetRequest, table: dict[MessageQueue, int]) -> None:
        """Notify the members of the group, and no other client."""
        members = self.sessions.consumers.get(asked.group)
        if members is None:
            return
        ext = ResetClientOffsetRequest(
            topic=asked.topic,
            group=asked.group,
            timestamp_ms=asked.timestamp_ms,
            is_force=asked.is_force,
        ).to_ext()
        for client in list(members.clients.values()):
            is_cpp = client.language is Language.CPP
            encode = encode_queue_offsets_as_list if is_cpp else encode_queue_offsets
            client.peer.tell(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, encode(table))
