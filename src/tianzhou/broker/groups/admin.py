"""Administration of consumer groups: create, update, list and delete them, forbid topics, and
inspect their connected clients."""

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.base.errors import TianzhouError, UsageError
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import Client, Groups, Sessions
from tianzhou.broker.stats import Stats
from tianzhou.broker.topics.topics import QUEUES_MAX
from tianzhou.broker.writing.stored import require_ready
from tianzhou.net.router import encode_reply
from tianzhou.net.rpc import Handler, OnAnswer, Reply, Request, RequestRejected
from tianzhou.record.ids import decode_offset_id
from tianzhou.record.message import MessageView
from tianzhou.store.protocols import QueueReader
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import (
    DeleteGroupRequest,
    GetAllGroupConfigRequest,
    GetAllGroupConfigResponse,
    GroupForbiddenRequest,
    GroupRequest,
    GroupTopicRequest,
    ProducerGroupRequest,
)
from tianzhou.wire._generated_headers_client import (
    ConsumeMessageDirectlyRequest,
    ConsumerGroupRequest,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusRequest,
)
from tianzhou.wire.admin_bodies import (
    GroupForbidden,
    GroupSubscription,
    ProducerClient,
    ProducerTable,
    decode_client_status,
    decode_group_config_list,
    encode_group_status,
)
from tianzhou.wire.codec import Header
from tianzhou.wire.heartbeat import (
    ClientConnection,
    ConsumerConnections,
    ConsumerData,
    ProducerConnections,
)
from tianzhou.wire.queues import MessageQueue
from tianzhou.wire.tables import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicList,
    decode_data_version,
    decode_group_config,
)

log: Final = logging.getLogger("tianzhou.broker")

RETRIES_MAX: Final = 100_000
"""A limit, so that a message that no consumer can process becomes a dead letter eventually."""
ASK_S: Final = 10.0
"""Timeout of a request to a client, as in RocketMQ; tools wait a little longer."""
STATUS_S: Final = 5.0


@dataclass(slots=True)
class AdminGroups:
    groups: Groups
    offsets: ConsumerOffsets
    sessions: Sessions
    stats: Stats

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_list,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.group_config,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.forbid,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription_of,
        }

    # Changes

    def update(self, request: Request) -> Reply:
        self._put([decode_group_config(request.body)], request)
        return Reply()

    def update_list(self, request: Request) -> Reply:
        self._put(list(decode_group_config_list(request.body).group_config_list), request)
        return Reply()

    def _put(self, asked: list[SubscriptionGroupConfig], request: Request) -> None:
        """Store all groups or none: each is checked before the first is stored."""
        for group in asked:
            self._check(group)
        self.groups.put(*asked)
        for group in asked:
            log.info("group.updated", extra={"group": group.group_name, "peer": _from(request)})

    def _check(self, group: SubscriptionGroupConfig) -> None:
        name = self._own_name(group.group_name)
        if not 0 <= group.retry_queue_nums <= QUEUES_MAX:
            raise _invalid(f"group {name} can't have {group.retry_queue_nums} retry queues")
        if not -1 <= group.retry_max_times <= RETRIES_MAX:
            raise _invalid(f"group {name} can't retry {group.retry_max_times} times")
        if group.attributes:
            raise _invalid(f"group {name}: no attribute of groups is known here")

    def _own_name(self, name: str) -> str:
        try:
            names.checked_group(name)
        except UsageError as error:
            raise _invalid(str(error)) from error
        if names.is_system_group(name):
            raise _invalid(
                f"group {name} is internal to the broker; it cannot be changed or deleted"
            )
        return name

    def delete(self, request: Request) -> Reply:
        """Delete a group. A missing group is not an error: tools send the request to every
        broker."""
        asked = DeleteGroupRequest.from_ext(request.header.ext)
        name = self._own_name(asked.group_name)
        self.groups.remove(name)
        self.stats.group_deleted(name)
        if asked.clean_offset:
            self.offsets.remove_group(name)
            self.offsets.save()
        log.info("group.deleted", extra={"group": name, "peer": _from(request)})
        return Reply()

    def forbid(self, request: Request) -> Reply:
        """Allow or forbid a group to read a topic, if the request says so; returns whether it
        may."""
        asked = GroupForbiddenRequest.from_ext(request.header.ext)
        group, topic = asked.group or "", asked.topic or ""
        if not group or not topic:
            raise _invalid("a group and a topic must be named")
        if asked.readable is not None:
            self._get(group)
            _check_topic(topic)
            self.groups.allow_read(group, topic, allowed=asked.readable)
            log.info(
                "group.forbidden",
                extra={"group": group, "topic": topic, "peer": _from(request)},
            )
        readable = self.groups.may_read(group, topic)
        return Reply(
            body=fastjson.encode(GroupForbidden(group=group, topic=topic, readable=readable))
        )

    # Queries

    def all(self, request: Request) -> Reply:
        """The whole table, or a page of it when the request has numbers."""
        asked = GetAllGroupConfigRequest.from_ext(request.header.ext)
        table = self.groups.table()
        if asked.max_group_num is None:
            return Reply(body=fastjson.encode(table))
        start = max(asked.group_seq or 0, 0)
        if asked.data_version and (
            decode_data_version(asked.data_version.encode()) != table.data_version
        ):
            start = 0  # the table changed between two pages: restart with the first
        rows = sorted(table.subscription_group_table.items())
        page = dict(islice(rows, start, start + max(asked.max_group_num, 0)))
        body = SubscriptionGroupTable(
            data_version=table.data_version,
            forbidden_table=table.forbidden_table,
            subscription_group_table=page,
        )
        gives = GetAllGroupConfigResponse(total_group_num=len(rows))
        return Reply(ext=gives.to_ext(), body=fastjson.encode(body))

    def group_config(self, request: Request) -> Reply:
        """The group, created now if groups are created automatically: RocketMQ's Proxy asks for
        groups before any consumer of them connects."""
        name = GroupRequest.from_ext(request.header.ext).group
        try:
            names.checked_group(name)
        except UsageError as error:
            raise RequestRejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, str(error)) from error
        group = self.groups.obtain(name) or self._get(name)
        return Reply(body=fastjson.encode(group))

    def topics_of(self, request: Request) -> Reply:
        """Topics that the group has consumed."""
        group = GroupRequest.from_ext(request.header.ext).group
        found = tuple(sorted(self.offsets.topics_of(group)))
        return Reply(body=fastjson.encode(TopicList(topic_list=found)))

    def subscription_of(self, request: Request) -> Reply:
        """The subscription of the group to a topic; empty if no member is connected."""
        asked = GroupTopicRequest.from_ext(request.header.ext)
        members = self.sessions.consumers.get(asked.group)
        found = members.subscriptions.get(asked.topic) if members else None
        body = GroupSubscription(group=asked.group, topic=asked.topic, subscription_data=found)
        return Reply(body=fastjson.encode(body))

    def _get(self, name: str) -> SubscriptionGroupConfig:
        group = self.groups.get(name)
        if group is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {name[:128]} does not exist"
            )
        return group


def _check_topic(name: str) -> None:
    try:
        names.checked_topic(name)
    except UsageError as error:
        raise _invalid(str(error)) from error


def _from(request: Request) -> str:
    return request.peer.remote


def _invalid(why: str) -> RequestRejected:
    return RequestRejected(ResponseCode.INVALID_PARAMETER, why)


@dataclass(slots=True)
class AdminClients:
    config: BrokerConfig
    store: QueueReader
    sessions: Sessions
    clock: Clock

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    # Connected clients

    def consumers(self, request: Request) -> Reply:
        group = ConsumerGroupRequest.from_ext(request.header.ext).consumer_group
        members = self.sessions.consumers.get(group)
        if members is None:
            raise RequestRejected(
                ResponseCode.CONSUMER_NOT_ONLINE, f"no consumer of group {group[:128]} is online"
            )
        described = members.described or ConsumerData(group_name=group)
        body = ConsumerConnections(
            connection_set=_connections(members.clients.values()),
            consume_from_where=described.consume_from_where,
            consume_type=described.consume_type,
            message_model=described.message_model,
            subscription_table=members.subscriptions,
        )
        return Reply(body=fastjson.encode(body))

    def producers(self, request: Request) -> Reply:
        group = ProducerGroupRequest.from_ext(request.header.ext).producer_group
        clients = self.sessions.producers.get(group)
        if clients is None:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR, f"no producer of group {group[:128]} is online"
            )
        body = ProducerConnections(connection_set=_connections(clients.values()))
        return Reply(body=fastjson.encode(body))

    def all_producers(self, _request: Request) -> Reply:
        # Heartbeats are recorded in monotonic time and shown in wall-clock time.
        booted_ms = self.clock.now_ms() - int(self.clock.monotonic_s() * 1000)
        table = {
            group: [
                ProducerClient(
                    client_id=client.client_id,
                    language=client.language.name,
                    last_update_timestamp=booted_ms + client.heartbeat_ms,
                    remote_ip=client.peer.remote,
                    version=client.version,
                )
                for client in clients.values()
            ]
            for group, clients in self.sessions.producers.items()
        }
        return Reply(body=fastjson.encode(ProducerTable(data=table)))

    # Forwarded to clients

    def running(self, request: Request) -> None:
        """The current state of a consumer."""
        asked = GetConsumerRunningInfoRequest.from_ext(request.header.ext)
        client = self._member(asked.consumer_group, asked.client_id)
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        client.peer.ask(code, asked.to_ext(), b"", _pass_back(request, client), timeout_s=ASK_S)

    def consume_directly(self, request: Request) -> None:
        """Make one consumer process one message now."""
        asked = ConsumeMessageDirectlyRequest.from_ext(request.header.ext)
        client = self._member(asked.consumer_group, asked.client_id or "")
        body = self._record(asked.msg_id or "")
        # Unknown fields are forwarded as well: they concern the tool and the client.
        ext = request.header.ext | {"brokerName": self.config.name}
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        client.peer.ask(code, ext, body, _pass_back(request, client), timeout_s=ASK_S)

    def status(self, request: Request) -> None:
        """The offsets that the consumers of a group hold in memory, from each of them."""
        asked = GetConsumerStatusRequest.from_ext(request.header.ext)
        members = self.sessions.consumers.get(asked.group)
        clients = [
            client
            for client in (members.clients.values() if members else ())
            if not asked.client_addr or asked.client_addr == client.client_id
        ]
        if not clients:
            raise RequestRejected(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"no consumer of group {asked.group[:128]} is online",
            )
        round_ = _StatusRound(request, waiting=len(clients))
        ext = {"topic": asked.topic, "group": asked.group}
        for client in clients:
            on_response = round_.callback_for(client.client_id)
            client.peer.ask(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
                ext,
                b"",
                on_response,
                timeout_s=STATUS_S,
            )

    def _member(self, group: str, client_id: str) -> Client:
        members = self.sessions.consumers.get(group)
        for client in members.clients.values() if members else ():
            if client.client_id == client_id:
                return client
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            f"consumer {client_id[:128]} of group {group[:128]} is not online",
        )

    def _record(self, message_id: str) -> bytes:
        """The stored message with this id, if it is in this log."""
        place = decode_offset_id(message_id)
        with require_ready(self.store.record_at(place.physical_offset)) as found:
            for span in found.spans:
                if MessageView(span).offset_id == message_id.upper():
                    return bytes(span)
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"message {message_id} is not stored here")


@dataclass(slots=True)
class _StatusRound:
    """Collects the responses of several clients; the tool gets a response after the last of
    them."""

    request: Request
    waiting: int
    found: dict[str, dict[MessageQueue, int]] = field(
        default_factory=dict[str, dict[MessageQueue, int]]
    )

    def callback_for(self, client_id: str) -> OnAnswer:
        def on_response(header: Header | None, body: bytes) -> None:
            self.waiting -= 1
            if header is not None and header.code == ResponseCode.SUCCESS:
                self._record(client_id, body)
            if self.waiting == 0:
                _send(self.request, Reply(body=encode_group_status(self.found)))

        return on_response

    def _record(self, client_id: str, body: bytes) -> None:
        # A malformed response of one client must not hide the others.
        with suppress(TianzhouError):
            self.found[client_id] = decode_client_status(body)


def _pass_back(request: Request, client: Client) -> OnAnswer:
    """Forward the client's response to the tool."""

    def on_response(header: Header | None, body: bytes) -> None:
        if header is None:
            reply = Reply(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                remark=f"consumer {client.client_id} did not answer within {ASK_S:.0f} s",
            )
        else:
            reply = Reply(header.code, header.ext, body, header.remark)
        _send(request, reply)

    return on_response


def _send(request: Request, reply: Reply) -> None:
    if request.peer.is_open and not request.header.is_oneway:
        request.peer.send(encode_reply(request.header, reply))


def _connections(clients: Iterable[Client]) -> tuple[ClientConnection, ...]:
    return tuple(
        ClientConnection(
            client_addr=client.peer.remote,
            client_id=client.client_id,
            language=client.language.name,
            version=client.version,
        )
        for client in clients
    )
