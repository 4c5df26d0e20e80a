"""Who is connected, and questions that only a consumer can answer.

The second kind is passed on: the handler returns nothing, asks the client, and answers when it does
or when its time is up. Only members of the group that was named are ever asked.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.base.errors import TianzhouError
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.sessions import Client, Sessions
from tianzhou.net.router import encode_reply
from tianzhou.net.rpc import Handler, OnAnswer, Reply, Request, RequestRejected
from tianzhou.record.ids import decode_offset_id
from tianzhou.record.message import MessageView
from tianzhou.store.store import MessageStore
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
"""RocketMQ's patience with a client that is asked for its state; tools wait a little longer."""
STATUS_S: Final = 5.0


@dataclass(slots=True)
class AdminClients:
    config: BrokerConfig
    store: MessageStore
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

    # Who is connected

    def consumers(self, request: Request) -> Reply:
        group = ConsumerGroupRequest.from_ext(request.header.ext).consumer_group
        members = self.sessions.consumers.get(group)
        if members is None:
            raise RequestRejected(
                ResponseCode.CONSUMER_NOT_ONLINE, f"no consumer of group {group[:128]} is online"
            )
        told = members.described or ConsumerData(group_name=group)
        body = ConsumerConnections(
            connection_set=_connections(members.clients.values()),
            consume_from_where=told.consume_from_where,
            consume_type=told.consume_type,
            message_model=told.message_model,
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
        # Heartbeats are remembered in monotonic time, and shown in everybody's.
        booted_ms = self.clock.now_ms() - int(self.clock.monotonic_s() * 1000)
        table = {
            group: [
                ProducerClient(
                    client_id=client.client_id,
                    language=client.language.name,
                    last_update_timestamp=booted_ms + client.heard_ms,
                    remote_ip=client.peer.remote,
                    version=client.version,
                )
                for client in clients.values()
            ]
            for group, clients in self.sessions.producers.items()
        }
        return Reply(body=fastjson.encode(ProducerTable(data=table)))

    # Passed on to clients

    def running(self, request: Request) -> None:
        """What a consumer does at the moment."""
        asked = GetConsumerRunningInfoRequest.from_ext(request.header.ext)
        client = self._member(asked.consumer_group, asked.client_id)
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        client.peer.ask(code, asked.to_ext(), b"", _pass_back(request, client), ASK_S)

    def consume_directly(self, request: Request) -> None:
        """Let one consumer handle one message, now."""
        asked = ConsumeMessageDirectlyRequest.from_ext(request.header.ext)
        client = self._member(asked.consumer_group, asked.client_id or "")
        body = self._record(asked.msg_id or "")
        # Fields that we don't know are passed on as well: they are between tool and client.
        ext = request.header.ext | {"brokerName": self.config.name}
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        client.peer.ask(code, ext, body, _pass_back(request, client), ASK_S)

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
            on_answer = round_.answer_of(client.client_id)
            client.peer.ask(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext, b"", on_answer, STATUS_S
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
        """The stored message, if it is one of ours and carries this very id."""
        place = decode_offset_id(message_id)
        with self.store.record_at(place.physical_offset) as found:
            for span in found.spans:
                if MessageView(span).offset_id == message_id.upper():
                    return bytes(span)
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"message {message_id} is not stored here")


@dataclass(slots=True)
class _StatusRound:
    """Several clients are asked; when the last has answered, or failed to, the tool is."""

    request: Request
    waiting: int
    found: dict[str, dict[MessageQueue, int]] = field(
        default_factory=dict[str, dict[MessageQueue, int]]
    )

    def answer_of(self, client_id: str) -> OnAnswer:
        def on_answer(header: Header | None, body: bytes) -> None:
            self.waiting -= 1
            if header is not None and header.code == ResponseCode.SUCCESS:
                self._take(client_id, body)
            if self.waiting == 0:
                _send(self.request, Reply(body=encode_group_status(self.found)))

        return on_answer

    def _take(self, client_id: str, body: bytes) -> None:
        # One client that answers nonsense must not hide the others.
        with suppress(TianzhouError):
            self.found[client_id] = decode_client_status(body)


def _pass_back(request: Request, client: Client) -> OnAnswer:
    """Hands the client's answer to the tool that asked."""

    def on_answer(header: Header | None, body: bytes) -> None:
        if header is None:
            reply = Reply(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                remark=f"consumer {client.client_id} did not answer within {ASK_S:.0f} s",
            )
        else:
            reply = Reply(header.code, header.ext, body, header.remark)
        _send(request, reply)

    return on_answer


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
