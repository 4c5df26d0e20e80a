"""Heartbeats: the producers and consumers of this process, as brokers see them."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from tianzhou.base.errors import TianzhouError, UsageError
from tianzhou.client.errors import ClientError, remote_error
from tianzhou.client.transport.aio import Connection
from tianzhou.client.transport.pool import Connections
from tianzhou.net.rpc import Request
from tianzhou.record.message import MessageView
from tianzhou.record.names import PRODUCER_GROUP
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.codec import Header
from tianzhou.wire.fastjson import encode
from tianzhou.wire.heartbeat import ConsumerData, HeartbeatData, ProducerData

log: Final = logging.getLogger("tianzhou.client")

LEAVE_S: Final = 1.0
"""How long a client that leaves waits for each broker."""

Describe = Callable[[], ConsumerData]
"""Returns the subscriptions of a consumer at the time of a heartbeat."""

_GROUP_FIELDS: Final[dict[int, str]] = {
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: "consumerGroup",
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: "group",
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: "group",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "consumerGroup",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "consumerGroup",
}


def group_of(request: Request) -> str | None:
    """Return the group that a broker's request names; None if it names none. Raises
    RecordDamaged."""
    code = request.header.code
    if code == RequestCode.CHECK_TRANSACTION_STATE:
        return MessageView(request.body).properties.get(PRODUCER_GROUP.decode())
    return request.header.ext.get(_GROUP_FIELDS.get(code, ""))


class Heartbeats:
    """The producers and consumers of a client, and the requests that announce them.

    Owner: the event loop.
    """

    def __init__(self, client_id: str, connections: Connections, call_timeout_s: float) -> None:
        self._client_id = client_id
        self._connections = connections
        self._call_timeout_s = call_timeout_s
        self._producers: Counter[str] = Counter()
        self._consumers: dict[str, Describe] = {}

    def __bool__(self) -> bool:
        return bool(self._producers or self._consumers)

    @property
    def has_consumers(self) -> bool:
        return bool(self._consumers)

    def add_producer(self, group: str) -> None:
        """Add a producer; brokers see several producers of a group as one."""
        self._producers[group] += 1

    def add_consumer(self, group: str, describe: Describe) -> None:
        if group in self._consumers:
            raise UsageError(
                f"this client already has a consumer of group {group!r}: join with"
                " consumer_group, which makes another client for it"
            )
        self._consumers[group] = describe

    def remove_producer(self, group: str) -> bool:
        """Remove a producer; return whether it was the last of its group."""
        self._producers[group] -= 1
        if self._producers[group]:
            return False
        del self._producers[group]
        return True

    def remove_consumer(self, group: str) -> None:
        self._consumers.pop(group, None)

    def heartbeat(self) -> bytes:
        return encode(
            HeartbeatData(
                client_id=self._client_id,
                producer_data_set=tuple(ProducerData(group_name=name) for name in self._producers),
                consumer_data_set=tuple(describe() for describe in self._consumers.values()),
            )
        )

    async def send(self, addresses: Iterable[str]) -> None:
        """Send a heartbeat to each address; failures are logged."""
        await asyncio.gather(*(self._send_to(address) for address in sorted(addresses)))

    async def _send_to(self, address: str) -> None:
        is_new = self._connections.maybe_connection(address) is None
        try:
            await self._connections.connection(address)
            if not is_new:  # a new connection was greeted when it was opened
                await self._call(address, RequestCode.HEART_BEAT, {}, self.heartbeat())
        except TianzhouError as error:
            log.info("the heartbeat to broker %s failed: %s", address, error)

    def greet(self, connection: Connection) -> None:
        """Send a heartbeat as the first request of a new connection."""
        if not self:
            return

        def on_answer(header: Header | None, _body: bytes) -> None:
            if header is None or header.code != ResponseCode.SUCCESS:
                reason = "no response" if header is None else f"{header.code} {header.remark}"
                log.info("the heartbeat to broker %s failed: %s", connection.address, reason)

        connection.ask(
            RequestCode.HEART_BEAT,
            {},
            self.heartbeat(),
            on_answer,
            timeout_s=self._call_timeout_s,
        )

    async def unregister(self, addresses: Iterable[str], ext: dict[str, str]) -> None:
        """Leave a group at the brokers that have a connection. Any other broker removes the client
        because its connection is gone, or because heartbeats are missing."""
        connected = [at for at in addresses if self._connections.maybe_connection(at)]
        fields = {"clientID": self._client_id, **ext}
        await asyncio.gather(*(self._unregister_at(address, fields) for address in connected))

    async def _unregister_at(self, address: str, fields: dict[str, str]) -> None:
        try:
            await self._call(address, RequestCode.UNREGISTER_CLIENT, fields, timeout_s=LEAVE_S)
        except ClientError as error:
            log.info(
                "client %s could not unregister at broker %s: %s; the broker removes it when the "
                "connection is gone",
                self._client_id,
                address,
                error,
            )

    async def _call(
        self,
        address: str,
        code: int,
        ext: dict[str, str],
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
    ) -> None:
        header, _ = await self._connections.call(
            address, code, ext, body, timeout_s=timeout_s or self._call_timeout_s
        )
        if header.code != ResponseCode.SUCCESS:
            raise remote_error(address, header.code, header.remark)
