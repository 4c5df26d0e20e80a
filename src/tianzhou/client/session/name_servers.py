"""Requests to any of several NameServers, whose list may change while the client runs.

The NameServer is chosen at random, because many clients may start at the same time; the next one is
used when it does not respond. A host name stands for all of its addresses: they are resolved before
the first request, with every refresh of routes, and again if none of them responds.
"""

import asyncio
import random
from collections.abc import Iterable, Sequence

from tianzhou.base.nameserver_addresses import NameServerList
from tianzhou.client.errors import (
    CallTimeout,
    ConnectionLost,
    NoNameServer,
    TopicNotFound,
    Unreachable,
    remote_error,
)
from tianzhou.client.transport.pool import Connections
from tianzhou.net.resolver import Resolver
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.codec import Header
from tianzhou.wire.routes import ClusterTable, TopicRouteData, decode_cluster_table, decode_route


class NameServers:
    """Owner: the event loop."""

    def __init__(
        self, entries: Sequence[str], connections: Connections, call_timeout_s: float
    ) -> None:
        assert entries
        self._list = NameServerList(entries)
        self._resolver = Resolver()
        self._connections = connections
        self._call_timeout_s = call_timeout_s
        self._current = random.choice(self.addresses)

    @property
    def entries(self) -> tuple[str, ...]:
        """The list as it was given."""
        return self._list.entries

    @property
    def addresses(self) -> tuple[str, ...]:
        """The address of each NameServer; a host name stands for all of its addresses."""
        return self._list.addresses

    @property
    def current(self) -> str:
        """The address that gets the next request."""
        return self._current

    def replace(self, entries: Iterable[str]) -> None:
        """Use these NameServers from now on, and close the connections to others."""
        before = self.addresses
        self._list.replace(entries)
        self._leave(before)

    async def resolve(self) -> None:
        """Look up the host names again."""
        found = await self._resolver.addresses(self._list.names)
        before = self.addresses
        self._list.learn(found)
        self._leave(before)

    def _leave(self, before: Iterable[str]) -> None:
        for address in set(before) - set(self.addresses):
            self._connections.drop(address)
        if self._current not in self.addresses:
            self._current = random.choice(self.addresses)

    def _move_on(self, failed: str) -> None:
        """Use the next server, unless another caller has moved on already."""
        addresses = self.addresses
        if self._current == failed:
            self._current = addresses[(addresses.index(failed) + 1) % len(addresses)]

    async def call(
        self, code: int, ext: dict[str, str], body: bytes = b"", *, timeout_s: float | None = None
    ) -> tuple[Header, bytes]:
        """Return the response of the first NameServer that responds. Raises NoNameServer."""
        if self._list.is_unresolved:
            await self.resolve()
        tried = self.addresses
        try:
            return await self._call_any(code, ext, body, timeout_s=timeout_s)
        except NoNameServer:
            await self.resolve()
            if self.addresses == tried:
                raise
        return await self._call_any(code, ext, body, timeout_s=timeout_s)

    async def _call_any(
        self, code: int, ext: dict[str, str], body: bytes, *, timeout_s: float | None
    ) -> tuple[Header, bytes]:
        failures: dict[str, str] = {}
        loop = asyncio.get_running_loop()
        each_s = timeout_s or self._call_timeout_s
        count = len(self.addresses)
        deadline = loop.time() + each_s * count
        # One attempt more than there are servers: a connection may have died since its last use.
        for _ in range(count + 1):
            left_s = min(each_s, deadline - loop.time())
            if left_s <= 0:
                break
            address = self.current
            try:
                return await self._connections.call(address, code, ext, body, timeout_s=left_s)
            except (Unreachable, ConnectionLost, CallTimeout) as error:
                failures[address] = str(error)
                self._move_on(address)
        raise NoNameServer(failures)

    async def _ask_others(self, code: int, ext: dict[str, str]) -> list[tuple[Header, bytes]]:
        """The responses of all servers but the current one, which may have started just now, so
        that no broker has registered with it yet."""

        async def ask(address: str) -> tuple[Header, bytes] | None:
            try:
                return await self._connections.call(
                    address, code, ext, timeout_s=self._call_timeout_s
                )
            except (Unreachable, ConnectionLost, CallTimeout):
                return None

        others = [address for address in self.addresses if address != self._current]
        return [answer for answer in await asyncio.gather(*map(ask, others)) if answer]

    async def route(self, topic: str) -> TopicRouteData:
        """Raises TopicNotFound, NoNameServer, RemoteError."""
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer, body = await self.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            others = await self._ask_others(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
            found = [one for one in others if one[0].code == ResponseCode.SUCCESS]
            if not found:
                raise TopicNotFound(topic)
            answer, body = found[0]
        if answer.code != ResponseCode.SUCCESS:
            raise remote_error(self.current, answer.code, answer.remark)
        return decode_route(body)

    async def cluster_table(self) -> ClusterTable:
        """Return all brokers of all clusters. Raises NoNameServer and RemoteError."""
        answer, body = await self.call(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        if answer.code != ResponseCode.SUCCESS:
            raise remote_error(self.current, answer.code, answer.remark)
        return decode_cluster_table(body)
