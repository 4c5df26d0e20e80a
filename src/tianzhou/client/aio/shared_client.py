"""Connections, routes and heartbeats, shared by the clients of one event loop.

Producers, consumers and admin clients with the same name servers and options join one
`SharedClient`. The first to join creates it, and the last to leave closes it.

    shared = SharedClient.join("10.0.0.1:9876;10.0.0.2:9876")
    route = await shared.route("orders")
    header, body = await shared.call(address, RequestCode.GET_MAX_OFFSET, ext, timeout_s=3)
    await shared.leave()

A broker sees a `SharedClient` as one client, identified by `client_id`. A broker tells the
consumers of a group apart by their connections, so two consumers of one group in one process need
two of them: pass `consumer_group` to `join`, and a second consumer of that group gets its own
client id and connections.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

from tianzhou.base.errors import TianzhouError, UsageError
from tianzhou.base.kinds import Bytes
from tianzhou.client.aio.broker_requests import BrokerRequests, ClientHandler
from tianzhou.client.aio.connection import Connection
from tianzhou.client.aio.connections import Connections
from tianzhou.client.aio.heartbeats import Describe, Heartbeats
from tianzhou.client.aio.nameservers import NameServers
from tianzhou.client.aio.routes import OnChange, Routes
from tianzhou.client.core.routing import MASTER, TopicRoute
from tianzhou.client.errors import ClientBroken, ClientError, NoRoute, remote_error
from tianzhou.client.identity import client_id, unique_ids
from tianzhou.client.options import ClientOptions, parse_nameservers
from tianzhou.record.ids import UniqueIds
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.header import Header

log: Final = logging.getLogger("tianzhou.client")

LEAVE_S: Final = 1.0
"""How long brokers are waited for at the end."""

_DEFAULTS: Final = ClientOptions()
_Key = tuple[asyncio.AbstractEventLoop, tuple[str, ...], ClientOptions]

_joined: Final[dict[_Key, list["SharedClient"]]] = {}
_joining: Final = threading.Lock()
"""Guards `_joined`: several threads may each have an event loop."""


class SharedClient:
    """Owner: the event loop in which it was joined."""

    def __init__(self, key: _Key) -> None:
        self._loop, addresses, self.options = self._key = key
        self.client_id: Final = client_id(self.options)
        """`ip@instance[@unit]`."""
        self.unique_ids: Final[UniqueIds] = unique_ids(self.client_id.partition("@")[0])
        self._heartbeats = Heartbeats(self.client_id)
        self._reserved: set[str] = set()
        """Consumer groups that joined."""
        self._requests = BrokerRequests()
        self.connections: Final = Connections(
            self.options, self._requests.requested, on_open=self._greet
        )
        self.nameservers: Final = NameServers(
            addresses, self.connections, self.options.call_timeout_s
        )
        self._routes = Routes(self.nameservers, self._learned)
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self._broken: BaseException | None = None
        self._run(self._poll_routes())
        self._run(self._keep_beating())

    # Joining and leaving

    @classmethod
    def join(
        cls,
        nameserver: str | None,
        options: ClientOptions = _DEFAULTS,
        *,
        consumer_group: str | None = None,
    ) -> "SharedClient":
        """Return the client of this event loop for these name servers and options.

        A client that already has a consumer of `consumer_group` is not shared with a second one.
        """
        key = (asyncio.get_running_loop(), parse_nameservers(nameserver), options)
        with _joining:
            for gone in [known for known in _joined if known[0].is_closed()]:
                del _joined[gone]
            clients = _joined.setdefault(key, [])
            for shared in clients:
                if consumer_group is None or consumer_group not in shared._reserved:
                    break
            else:
                shared = cls(key)
                clients.append(shared)
        shared._count += 1
        if consumer_group is not None:
            shared._reserved.add(consumer_group)
        return shared

    async def leave(self, *, consumer_group: str | None = None) -> None:
        """The last one out closes the connections. Say the group that was joined with."""
        assert self._count > 0, "left more often than joined"
        self._count -= 1
        self._reserved.discard(consumer_group or "")
        if self._count:
            return
        with _joining:
            clients = _joined.get(self._key, [])
            clients.remove(self)
            if not clients:
                _joined.pop(self._key, None)
        ending = tuple(self._tasks)
        for task in ending:
            task.cancel()
        self._routes.cancel()
        self._requests.cancel()
        await self.connections.close()
        await asyncio.gather(*ending, return_exceptions=True)

    # Routes

    def known_route(self, topic: str) -> TopicRoute | None:
        """The route, if it is known already: for paths that can't wait."""
        return self._routes.known(topic)

    async def route(self, topic: str) -> TopicRoute:
        """The known route; asked for at first use. Raises TopicNotFound."""
        self._check()
        return await self._routes.route(topic)

    async def route_for_sending(self, topic: str) -> TopicRoute:
        """As `route`; a topic that is not there but will be made by sending to it has the route
        of the default topic, and `is_borrowed`."""
        self._check()
        return await self._routes.route_for_sending(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """The route as the name server has it now. Raises TopicNotFound."""
        self._check()
        return await self._routes.refresh(topic)

    def watch_route(self, topic: str, on_change: OnChange) -> Callable[[], None]:
        """Call back whenever the route changes, and keep it fresh; returns how to stop that."""
        return self._routes.watch(topic, on_change)

    async def broker_address(
        self, broker_name: str, *, broker_id: int = MASTER, topic: str | None = None
    ) -> str:
        """Where a broker is: by the route of the topic, if one is said, or else by any route that
        is known, or else by the table of all brokers. Raises NoRoute."""
        if topic is not None:
            route = await self.route(topic)
            found = route.address(broker_name, broker_id)
        else:
            found = self._routes.broker_address(broker_name, broker_id)
            if found is None:
                table = await self.nameservers.cluster_table()
                data = table.broker_addr_table.get(broker_name)
                found = data.broker_addrs.get(broker_id) if data else None
        if found is None:
            raise NoRoute(f"broker {broker_name!r} has nobody with id {broker_id} at present")
        return found

    # Questions

    async def call(
        self, address: str, code: int, ext: dict[str, str], body: Bytes = b"", *, timeout_s: float
    ) -> tuple[Header, bytes]:
        """The answer to a request, whatever its code: see `Connections.call`."""
        self._check()
        return await self.connections.call(address, code, ext, body, timeout_s=timeout_s)

    async def call_ok(
        self,
        address: str,
        code: int,
        ext: dict[str, str],
        body: Bytes = b"",
        *,
        timeout_s: float | None = None,
    ) -> tuple[Header, bytes]:
        """The answer, if it is a success. Otherwise raises RemoteError."""
        timeout_s = timeout_s or self.options.call_timeout_s
        header, answer = await self.call(address, code, ext, body, timeout_s=timeout_s)
        if header.code != ResponseCode.SUCCESS:
            raise remote_error(address, header.code, header.remark)
        return header, answer

    async def send_oneway(
        self, address: str, code: int, ext: dict[str, str], body: Bytes = b""
    ) -> None:
        """Send a one-way request, without knowing whether it arrives. Raises Unreachable."""
        self._check()
        connection = await self.connections.connection(address)
        connection.tell(code, ext, body)

    def on_request(
        self, code: int, handler: ClientHandler, *, group: str | None = None
    ) -> Callable[[], None]:
        """Answer what brokers ask of this client; returns how to stop that.

        With a group, the handler gets only what concerns that group. Handlers without one are
        asked in turn until one gives a reply. One code and group have one handler.
        """
        return self._requests.on_request(code, handler, group=group)

    # Heartbeats

    def add_producer(self, group: str) -> Callable[[], Awaitable[None]]:
        """Brokers will know this process as a producer of the group. Returns how to leave it."""
        self._heartbeats.add_producer(group)
        self._beat_soon()

        async def leave() -> None:
            if self._heartbeats.remove_producer(group):
                await self._unregister({"producerGroup": group})

        return leave

    def add_consumer(self, group: str, describe: Describe) -> Callable[[], Awaitable[None]]:
        """The same for a consumer. `describe` is asked at each heartbeat; when it changes, call
        `heartbeat_now`."""
        self._heartbeats.add_consumer(group, describe)
        self._beat_soon()

        async def leave() -> None:
            self._heartbeats.remove_consumer(group)
            await self._unregister({"consumerGroup": group})

        return leave

    async def heartbeat_now(self) -> None:
        """Tell every known broker who is here. Brokers that do not answer are passed over: they
        are told when a connection to them is made again."""
        if not self._heartbeats:
            return
        addresses = self._routes.addresses(masters_only=not self._heartbeats.has_consumers)
        await asyncio.gather(*(self._beat(address) for address in sorted(addresses)))

    async def _beat(self, address: str) -> None:
        is_new = self.connections.maybe_connection(address) is None
        try:
            await self.connections.connection(address)
            if not is_new:  # a new connection was greeted when it was made
                await self.call_ok(
                    address, RequestCode.HEART_BEAT, {}, self._heartbeats.heartbeat()
                )
        except TianzhouError as error:
            log.info("the heartbeat to broker %s failed: %s", address, error)

    def _greet(self, connection: Connection) -> None:
        """The first thing a broker hears on a connection is who we are."""
        if not self._heartbeats or connection.address in self.nameservers.addresses:
            return

        def on_answer(header: Header | None, _body: bytes) -> None:
            if header is None or header.code != ResponseCode.SUCCESS:
                reason = "no response" if header is None else f"{header.code} {header.remark}"
                log.info("the heartbeat to broker %s failed: %s", connection.address, reason)

        connection.ask(
            RequestCode.HEART_BEAT, {}, self._heartbeats.heartbeat(), on_answer,
            self.options.call_timeout_s,
        )  # fmt: skip

    def _learned(self, route: TopicRoute) -> None:
        """Brokers that are new to us hear of us at once."""
        for replicas in route.brokers.values():
            for broker_id, address in replicas.items():
                is_wanted = broker_id == MASTER or self._heartbeats.has_consumers
                if (
                    is_wanted
                    and self._heartbeats
                    and not self.connections.maybe_connection(address)
                ):
                    self._run(self._beat(address))

    def _beat_soon(self) -> None:
        self._run(self.heartbeat_now())

    async def _unregister(self, ext: dict[str, str]) -> None:
        # A broker forgets a client whose connection is gone, and one that does not hear this
        # after a while.
        known = self._routes.addresses(masters_only=False)
        there = [address for address in known if self.connections.maybe_connection(address)]
        await asyncio.gather(*(self._take_leave(address, ext) for address in there))

    async def _take_leave(self, address: str, ext: dict[str, str]) -> None:
        told = {"clientID": self.client_id, **ext}
        try:
            await self.call_ok(address, RequestCode.UNREGISTER_CLIENT, told, timeout_s=LEAVE_S)
        except ClientError as error:
            log.info(
                "client %s could not unregister at broker %s: %s; the broker removes it when the "
                "connection is gone",
                self.client_id, address, error,
            )  # fmt: skip

    # Background

    def now_ms(self) -> int:
        """Wall time, for what is stored in messages."""
        return time.time_ns() // 1_000_000

    async def _poll_routes(self) -> None:
        while True:
            await asyncio.sleep(self.options.route_interval_s)
            await self._routes.refresh_all()

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self.options.heartbeat_interval_s)
            await self.heartbeat_now()

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Not logged and forgotten: the next caller gets it.
            self._broken = self._broken or error
            log.error(
                "the client stopped working: %r; the next call raises it", error, exc_info=error
            )

    def check_loop(self) -> None:
        """Raises UsageError in another event loop than this client's: a caller there would
        wait for callbacks of this loop, possibly forever."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not self._loop:
            which = "which is closed by now" if self._loop.is_closed() else "and not to this one"
            raise UsageError(
                f"this client belongs to the event loop in which it was started, {which}; make one"
                " for each loop, or use tianzhou.client.sync, which any thread may call"
            )

    def _check(self) -> None:
        self.check_loop()
        if self._broken is not None:
            raise ClientBroken(f"a background task failed: {self._broken!r}") from self._broken
