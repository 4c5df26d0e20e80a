"""Connected clients, and requests that only a consumer can serve.

The second kind is forwarded to the client; the response is sent when the client responds or the
timeout passes. Requests are forwarded to members of the named group only.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.base.errors import TianzhouError
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.sessions import Client, Sessions
from tianzhou.broker.writing.stored import require_ready
from tianzhou.net.router import encode_reply
from tianzhou.net.rpc import Handler, OnAnswer, Reply, Request, RequestRejected
from tianzhou.record.ids import decode_offset_id
from tianzhou.record.message import MessageView
from tianzhou.store.protocols import QueueReader
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import ProducerGroupRequest
from tianzhou.wire._generated_headers_client import (
    ConsumeMessageDirectlyRequest,
    ConsumerGroupRequest,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusRequest,
)
from tianzhou.wire.admin_bodies import (
    ProducerClient,
    ProducerTable,
    decode_client_status,
    encode_group_status,
)
from tianzhou.wire.header import Header
from tianzhou.wire.heartbeat import (
    ClientConnection,
    ConsumerConnections,
    ConsumerData,
    ProducerConnections,
)
from tianzhou.wire.queues import MessageQueue

ASK_S: Final = 10.0
"""Timeout of a request to a client, as in RocketMQ; tools wait a little longer."""
STATUS_S: Final = 5.0


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
