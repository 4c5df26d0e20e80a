"""Administration of topics: create, update, list, inspect and delete them.

`TopicRemoval` removes the state of a deleted topic: its queues, its groups' offsets, its
statistics. A broker without a Raft group removes them at once, and responds when the flush thread
has recorded the deletion: until then a crash could bring the topic back. In a Raft group the log
contains the record that deletes the topic, and every member, the leader included, removes what is
older than that record when the record is committed: a leader that is deposed before that has
removed nothing.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import msgspec

from tianzhou.base.clock import Clock
from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import PhysicalOffset, queue_key
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import Sessions
from tianzhou.broker.stats import MINUTE, Stats
from tianzhou.broker.topics.store_times import last_store_time
from tianzhou.broker.topics.topics import QUEUES_MAX, Topics
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.record.light_queues import is_light
from tianzhou.store.store import MessageStore
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import (
    CreateTopicRequest,
    GetAllTopicConfigRequest,
    GetAllTopicConfigResponse,
    GetTopicConfigRequest,
    TopicRequest,
)
from tianzhou.wire.admin_bodies import GroupList
from tianzhou.wire.names import PERM_INHERIT, PERM_READ, PERM_WRITE
from tianzhou.wire.queues import MessageQueue, TopicOffset, TopicStats, encode_topic_stats
from tianzhou.wire.replication_bodies import LOG_END
from tianzhou.wire.tables import (
    TopicConfig,
    TopicConfigTable,
    TopicList,
    decode_data_version,
    decode_topic_config_list,
)

OnDurable = Callable[[str], None]
"""Called with the reason why a restart may undo the deletion; empty if it is durable."""
log: Final = logging.getLogger("tianzhou.broker")
_PERM_ALL: Final = PERM_READ | PERM_WRITE | PERM_INHERIT
_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
TOPIC_ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = {
    "message.type": ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"),
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
}
"""The attributes of a topic, and the values that each may have."""


@dataclass(slots=True)
class TopicRemoval:
    """Owner: the broker loop."""

    store: MessageStore
    offsets: ConsumerOffsets
    stats: Stats
    settle: Callable[[], None]
    """Makes everything that was written visible and notifies its waiters."""
    is_replicated: bool = False
    """Whether a Raft group decides when a topic is removed."""
    pending: set[str] = field(default_factory=set[str])
    """Topics whose deletion is not committed yet. They can't be created again before that."""
    written: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """What the log writer calls after every flush: `release`, while a deletion waits for one."""

    _waiting: deque[tuple[int, OnDurable]] = field(default_factory=deque[tuple[int, OnDurable]])

    def request(self, topic: str) -> None:
        """Remove the state of a topic: now, or once its deletion is committed."""
        if self.is_replicated:
            self.pending.add(topic)
        else:
            self.remove(topic)

    def remove(self, topic: str, *, before: PhysicalOffset | None = None) -> None:
        """Remove queues whose messages all precede this log offset, or all queues."""
        self.pending.discard(topic)
        # Other clients wait for messages sent meanwhile; notify them before the store drops the
        # queues.
        self.settle()
        self.offsets.remove_topic(topic)
        if self.is_replicated:
            self.offsets.save()
        else:
            self.offsets.save_later()  # queued before the deletion, so that it is on disk first
        self.store.delete_topic(topic, before=before)
        self.stats.topic_deleted(topic)

    def unused(self, topics: Topics) -> list[str]:
        """Topics that no longer exist, but still have queues."""
        stored = {queue.key.topic for queue in self.store.queues}
        gone = stored - topics.all().keys() - self.pending
        return sorted(name for name in gone if not topics.is_system(name) and not is_light(name))

    def holds(self, on_durable: OnDurable) -> bool:
        """Whether `on_durable` is called later, once every deletion so far is durable."""
        removals = self.store.removals
        if removals.durable == removals.begun:
            return False
        if not self._waiting:
            self.written.append(self.release)
        self._waiting.append((removals.begun, on_durable))
        return True

    def release(self) -> None:
        """Call the callbacks of durable deletions, or all of them if the store failed."""
        removals, waiting = self.store.removals, self._waiting
        while waiting and waiting[0][0] <= removals.durable:
            waiting.popleft()[1]("")
        while waiting and self.store.is_broken:
            waiting.popleft()[1](self.store.broken_reason)
        if not waiting and self.release in self.written:
            self.written.remove(self.release)


@dataclass(slots=True, kw_only=True)
class AdminTopics:
    config: BrokerConfig
    store: MessageStore
    topics: Topics
    offsets: ConsumerOffsets
    sessions: Sessions
    stats: Stats
    clock: Clock
    removal: TopicRemoval

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.update_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.GET_TOPIC_CONFIG: self.topic_config,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all,
            RequestCode.GET_TOPIC_STATS_INFO: self.offsets_of_queues,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.consumed_by,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused,
        }

    # Changes

    def update(self, request: Request) -> Reply:
        asked = CreateTopicRequest.from_ext(request.header.ext)
        topic = TopicConfig(
            attributes=parse_attributes(asked.attributes),
            order=asked.order,
            perm=asked.perm,
            read_queue_nums=asked.read_queue_nums,
            topic_filter_type=asked.topic_filter_type,
            topic_name=asked.topic,
            topic_sys_flag=asked.topic_sys_flag or 0,
            write_queue_nums=asked.write_queue_nums,
        )
        self._put([topic], request)
        return Reply()

    def update_list(self, request: Request) -> Reply:
        self._put(list(decode_topic_config_list(request.body).topic_config_list), request)
        return Reply()

    def _put(self, asked: list[TopicConfig], request: Request) -> None:
        """Store all topics or none: each is checked before the first is stored."""
        checked = [self._checked(topic) for topic in asked]
        self.topics.put(*checked)
        self.topics.announce(topic.topic_name for topic in checked)
        for topic in checked:
            log.info(
                "topic.updated", extra={"topic": topic.topic_name, "peer": request.peer.remote}
            )

    def _checked(self, topic: TopicConfig) -> TopicConfig:
        name = self._own_name(topic.topic_name)
        if not 0 <= topic.perm <= _PERM_ALL:
            raise _invalid(f"topic {name} can't have permission {topic.perm}; 2, 4 or 6")
        for count in (topic.read_queue_nums, topic.write_queue_nums):
            if not 0 <= count <= QUEUES_MAX:
                raise _invalid(f"topic {name} can't have {count} queues; from 0 to {QUEUES_MAX}")
        if topic.topic_filter_type not in _FILTER_TYPES:
            raise _invalid(f"filter type of topic {name} must be {' or '.join(_FILTER_TYPES)}")
        known = self.topics.get(name)
        altered = altered_attributes(known.attributes if known else {}, topic.attributes)
        return msgspec.structs.replace(topic, attributes=altered)

    def _own_name(self, name: str) -> str:
        """The name of a topic that administrators may change."""
        try:
            names.checked_topic(name)
        except UsageError as error:
            raise _invalid(str(error)) from error
        if self.topics.is_system(name):
            raise _invalid(
                f"topic {name} is internal to the broker; it cannot be changed or deleted"
            )
        return name

    def delete(self, request: Request) -> Reply:
        """Delete settings, offsets and queues; the messages are deleted when their files expire. A
        missing topic is not an error: tools send the request to every broker."""
        name = self._own_name(TopicRequest.from_ext(request.header.ext).topic)
        # Only a Raft group must know that the table is saved; otherwise the response waits for the
        # deletion, which is recorded after the table.
        if is_light(name) and self.removal.is_replicated:
            raise _invalid(
                f"{name} is a light queue; in a Raft group it cannot be deleted, and disappears "
                "when its messages have expired"
            )
        is_known = self.topics.remove(name, wait=self.removal.is_replicated)
        if is_known or not self.removal.is_replicated:
            self.removal.request(name)
        log.info("topic.deleted", extra={"topic": name, "peer": request.peer.remote})
        return Reply()

    def clean_unused(self, request: Request) -> Reply:
        """Remove queues of topics that no longer exist."""
        for name in self.removal.unused(self.topics):
            self.removal.remove(name)
            log.info("topic.cleaned", extra={"topic": name, "peer": request.peer.remote})
        return Reply()

    # Queries

    def topic_config(self, request: Request) -> Reply:
        asked = GetTopicConfigRequest.from_ext(request.header.ext)
        return Reply(body=fastjson.encode(self._get(asked.topic)))

    def all(self, request: Request) -> Reply:
        """The whole table, or a page of it when the request has numbers."""
        asked = GetAllTopicConfigRequest.from_ext(request.header.ext)
        table = self.topics.table()
        log_end = {LOG_END: str(self.store.log.end)}
        if asked.max_topic_num is None:
            return Reply(ext=log_end, body=fastjson.encode(table))
        start = max(asked.topic_seq or 0, 0)
        if asked.data_version and (
            decode_data_version(asked.data_version.encode()) != table.data_version
        ):
            start = 0  # the table changed between two pages: restart with the first
        rows = sorted(table.topic_config_table.items())
        page = dict(islice(rows, start, start + max(asked.max_topic_num, 0)))
        body = TopicConfigTable(data_version=table.data_version, topic_config_table=page)
        gives = GetAllTopicConfigResponse(total_topic_num=len(rows))
        return Reply(ext=gives.to_ext() | log_end, body=fastjson.encode(body))

    def offsets_of_queues(self, request: Request) -> Reply:
        """Offsets of every queue that can be read or written, including empty ones."""
        topic = self._get(TopicRequest.from_ext(request.header.ext).topic)
        name, rows = topic.topic_name, dict[MessageQueue, TopicOffset]()
        for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums)):
            key = queue_key(name, queue_id)
            queue = MessageQueue(broker_name=self.config.name, queue_id=queue_id, topic=name)
            rows[queue] = TopicOffset(
                last_update_timestamp=last_store_time(self.store, key) or 0,
                max_offset=self.store.max_offset(key),
                min_offset=self.store.min_offset(key),
            )
        flow = self.stats.topic_puts.get(name)
        rate = flow.growth(MINUTE, self.clock.now_ms()).per_second if flow else 0.0
        return Reply(body=encode_topic_stats(TopicStats(offset_table=rows, topic_put_tps=rate)))

    def system(self, _request: Request) -> Reply:
        found = tuple(sorted(name for name in self.topics.all() if self.topics.is_system(name)))
        return Reply(body=fastjson.encode(TopicList(topic_list=found)))

    def consumed_by(self, request: Request) -> Reply:
        """Groups that have committed offsets or subscribe now."""
        topic = TopicRequest.from_ext(request.header.ext).topic
        groups = set(self.offsets.groups_of(topic))
        groups |= {
            group
            for group, members in self.sessions.consumers.items()
            if topic in members.subscriptions
        }
        return Reply(body=fastjson.encode(GroupList(group_list=tuple(sorted(groups)))))

    def _get(self, name: str) -> TopicConfig:
        topic = self.topics.get(name)
        if topic is None:
            raise self.topics.unknown(name)
        return topic


def parse_attributes(text: str | None) -> dict[str, str]:
    """`+name=value,-name` as a table whose keys keep their signs."""
    changes: dict[str, str] = {}
    for part in (text or "").split(","):
        name, _, value = part.strip().partition("=")
        if name:
            changes[name.strip()] = value.strip()
    return changes


def altered_attributes(current: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """The attributes after the changes; a name without a sign is set. Raises RequestRejected."""
    altered = dict(current)
    for signed, value in changes.items():
        name = signed.lstrip("+-")
        allowed = TOPIC_ATTRIBUTES.get(name)
        if allowed is None:
            raise _invalid(f"attribute {name[:64]!r} is not one of {', '.join(TOPIC_ATTRIBUTES)}")
        if signed.startswith("-"):
            altered.pop(name, None)
        elif value in allowed:
            altered[name] = value
        else:
            raise _invalid(f"attribute {name} can be {', '.join(allowed)}, not {value[:64]!r}")
    return altered


def _invalid(why: str) -> RequestRejected:
    return RequestRejected(ResponseCode.INVALID_PARAMETER, why)
