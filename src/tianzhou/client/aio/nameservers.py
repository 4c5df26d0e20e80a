"""Asking name servers: one of them, chosen at random; the next one when it does not answer.

Many clients start at once, and must not all ask the first of the list. The one that answered is
kept. Host names are looked up whenever a connection is made, so a name server may move.
"""

import asyncio
import random
from collections.abc import Sequence

from tianzhou.client.aio.connections import Connections
from tianzhou.client.errors import (
    CallTimeout,
    ConnectionLost,
    NoNameServer,
    TopicNotFound,
    Unreachable,
    remote_error,
)
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.header import Header
from tianzhou.wire.routes import ClusterTable, TopicRouteData, decode_cluster_table, decode_route


class NameServers:
    """Owner: the event loop."""

    def __init__(
        self, addresses: Sequence[str], connections: Connections, call_timeout_s: float
    ) -> None:
        assert addresses
        self.addresses = tuple(addresses)
        self._connections = connections
        self._call_timeout_s = call_timeout_s
        self._index = random.randrange(len(self.addresses))

    @property
    def current(self) -> str:
        """The one that is asked next."""
        return self.addresses[self._index]

    async def call(
        self, code: int, ext: dict[str, str], body: bytes = b"", *, timeout_s: float | None = None
    ) -> tuple[Header, bytes]:
        """The answer of the first that gives one, whatever its code. Raises NoNameServer."""
        failures: dict[str, str] = {}
        loop = asyncio.get_running_loop()
        each_s = timeout_s or self._call_timeout_s
        deadline = loop.time() + each_s * len(self.addresses)
        # One more than there are: a connection may have died since it was used last.
        for _ in range(len(self.addresses) + 1):
            left_s = min(each_s, deadline - loop.time())
            if left_s <= 0:
                break
            address = self.current
            try:
                return await self._connections.call(address, code, ext, body, timeout_s=left_s)
            except (Unreachable, ConnectionLost, CallTimeout) as error:
                failures[address] = str(error)
                if self.current == address:  # another caller may have moved on already
                    self._index = (self._index + 1) % len(self.addresses)
        raise NoNameServer(failures)

    async def route(self, topic: str) -> TopicRouteData:
        """Raises TopicNotFound, NoNameServer, RemoteError."""
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer, body = await self.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise TopicNotFound(topic)
        if answer.code != ResponseCode.SUCCESS:
            raise remote_error(self.current, answer.code, answer.remark)
        return decode_route(body)

    async def cluster_table(self) -> ClusterTable:
        """Every broker of every cluster. Raises NoNameServer, RemoteError."""
        answer, body = await self.call(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        if answer.code != ResponseCode.SUCCESS:
            raise remote_error(self.current, answer.code, answer.remark)
        return decode_cluster_table(body)
