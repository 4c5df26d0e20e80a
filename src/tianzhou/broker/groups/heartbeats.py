"""Heartbeats, queue locks, and other requests by which clients register."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.base.errors import UsageError
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.groups import SQL92, Client, Filters, Groups, Sessions
from tianzhou.broker.groups.locks import Locks
from tianzhou.broker.groups.notices import Notices
from tianzhou.broker.topics.topics import Topics
from tianzhou.net.rpc import Handler, Peer, Reply, Request, RequestRejected
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_client import (
    ConsumerGroupRequest,
    UnregisterClientRequest,
)
from tianzhou.wire.heartbeat import (
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    decode_heartbeat,
)
from tianzhou.wire.queues import LockedQueues, decode_lock_batch

log: Final = logging.getLogger("tianzhou.broker")

HEARTBEAT_BYTES_MAX: Final = 1024 * 1024
HEARTBEAT_GROUPS_MAX: Final = 1_024
"""Groups of one client. Their subscriptions are kept for as long as the client is connected."""


@dataclass(slots=True, kw_only=True)
class Clients:
    config: BrokerConfig
    topics: Topics
    groups: Groups
    sessions: Sessions
    locks: Locks
    filters: Filters
    notices: Notices
    clock: Clock

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_client,
        }

    def adopt(self, config: BrokerConfig) -> None:
        """Apply settings that changed while the broker runs."""
        self.config = config

    def heartbeat(self, request: Request) -> Reply:
        if len(request.body) > HEARTBEAT_BYTES_MAX:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"a heartbeat of {len(request.body)} bytes; {HEARTBEAT_BYTES_MAX} are allowed",
            )
        data = decode_heartbeat(request.body)
        self._check_count(data)
        self._create_groups(data)
        header, peer = request.header, request.peer
        # Clients without an id must not be mistaken for one client that reconnects.
        client_id = data.client_id or peer.remote
        client = Client(client_id, peer, header.language, header.version, self._uptime_ms())
        for producer in data.producer_data_set:
            if _is_name(names.checked_group, producer.group_name):
                self.sessions.record_producer(producer.group_name, client)
        for consumer in data.consumer_data_set:
            if _is_name(names.checked_group, consumer.group_name):
                self._record_consumer(consumer, client)
        return Reply(ext={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"})

    def _check_count(self, data: HeartbeatData) -> None:
        """Raises RequestRejected if there are too many groups: each is kept in memory for as long
        as the client is alive."""
        count = len(data.producer_data_set) + len(data.consumer_data_set)
        if count > HEARTBEAT_GROUPS_MAX:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"a heartbeat names {count} groups; {HEARTBEAT_GROUPS_MAX} are allowed",
            )

    def _create_groups(self, data: HeartbeatData) -> None:
        """Create the groups that are new, and their retry topics, without waiting for the disk."""
        wanted = [
            consumer.group_name
            for consumer in data.consumer_data_set
            if self.groups.get(consumer.group_name) is None
            and _is_name(names.checked_group, consumer.group_name)
        ]
        created = self.groups.obtain_all(wanted)
        queues_of = {names.retry_topic(g.group_name): g.retry_queue_nums for g in created}
        self.topics.ensure_all(queues_of, wait=False)

    def _record_consumer(self, data: ConsumerData, client: Client) -> None:
        group = self.groups.obtain(data.group_name)
        if group is None:
            return
        # Consumers subscribe to the retry topic at once, so it must have a route.
        retry_topic = names.retry_topic(data.group_name)
        self.topics.ensure_all({retry_topic: group.retry_queue_nums}, wait=False)
        changed = self.sessions.record_consumer(data, client)
        members = self.sessions.consumers[data.group_name]
        if not members.is_consistent:
            log.warning(
                "group.subscriptions_differ",
                extra={"group": data.group_name, "client": client.client_id},
            )
        if changed and group.notify_consumer_ids_changed_enable:
            self.notices.members_changed(data.group_name)

    def remove_client(self, peer: Peer) -> None:
        """Remove a client whose connection closed or that stopped sending heartbeats."""
        left = [
            (group, members.clients[peer].client_id)
            for group, members in self.sessions.consumers.items()
            if peer in members.clients
        ]
        self.sessions.remove(peer)
        for group, client_id in left:
            self.locks.release(group, client_id)
            self.notices.members_changed(group)

    def expire(self) -> None:
        """Remove clients that have sent no heartbeat for too long."""
        before_ms = self._uptime_ms() - self.config.client_expiry_ms
        for peer in self.sessions.expired(before_ms):
            self.remove_client(peer)

    def _uptime_ms(self) -> int:
        """Monotonic time: if sessions and locks used the wall clock, setting it forward would
        expire every client at once."""
        return int(self.clock.monotonic_s() * 1000)

    def unregister(self, request: Request) -> Reply:
        asked = UnregisterClientRequest.from_ext(request.header.ext)
        if asked.producer_group:
            self.sessions.remove_producer(asked.producer_group, request.peer)
        group = asked.consumer_group
        if group and self.sessions.remove_consumer(group, request.peer):
            self.locks.release(group, asked.client_id)
            self.notices.members_changed(group)
        return Reply()

    def consumer_list(self, request: Request) -> Reply:
        group = ConsumerGroupRequest.from_ext(request.header.ext).consumer_group
        members = self.sessions.consumers.get(group)
        if members is None:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR, f"no consumer of group {group} is connected"
            )
        ids = tuple(sorted({client.client_id for client in members.clients.values()}))
        return Reply(body=fastjson.encode(ConsumerList(consumer_id_list=ids)))

    def lock(self, request: Request) -> Reply:
        asked = decode_lock_batch(request.body)
        granted = self.locks.lock(
            asked.consumer_group, asked.client_id, list(asked.mq_set), self._uptime_ms()
        )
        return Reply(body=fastjson.encode(LockedQueues(queues=tuple(granted))))

    def unlock(self, request: Request) -> Reply:
        asked = decode_lock_batch(request.body)
        self.locks.unlock(asked.consumer_group, asked.client_id, list(asked.mq_set))
        return Reply()

    def check_client(self, request: Request) -> Reply:
        """Check whether a SQL92 subscription compiles, before its consumer starts."""
        asked = fastjson.parse(request.body)
        data = asked.get("subscriptionData") if isinstance(asked, dict) else None
        if isinstance(data, dict) and data.get("expressionType") == SQL92:
            self.filters.get(SQL92, str(data.get("subString", "")))
        return Reply()


def _is_name(check: Callable[[str], str], name: str) -> bool:
    """Whether a name is valid. Invalid names are ignored, so that the rest of a heartbeat
    counts."""
    try:
        check(name)
    except UsageError:
        return False
    return True
