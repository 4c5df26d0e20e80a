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
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import Bytes
from tianzhou.client.core.routing import MASTER, TopicRoute, addresses_of
from tianzhou.client.errors import ClientBroken, NoRoute, remote_error
from tianzhou.client.identity import client_id
from tianzhou.client.options import ClientOptions, parse_nameservers
from tianzhou.client.session.broker_requests import BrokerRequests, ClientHandler
from tianzhou.client.session.heartbeats import Describe, Heartbeats
from tianzhou.client.session.joining import JoinedClients, Key
from tianzhou.client.session.name_servers import NameServers
from tianzhou.client.session.routes import OnChange, Routes
from tianzhou.client.transport.aio import Connection
from tianzhou.client.transport.pool import Connections
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.codec import Header

log: Final = logging.getLogger("tianzhou.client")

_DEFAULTS: Final = ClientOptions()
_Key = Key[asyncio.AbstractEventLoop]
_joined: Final = JoinedClients[asyncio.AbstractEventLoop, "SharedClient"]()


class SharedClient:
    """The connections, routes and heartbeats that clients of one event loop share.

    Owner: the event loop in which it was joined.
    """

    def __init__(self, key: _Key) -> None:
        self._key = key
        options = key.options
        self.client_id: Final = client_id(options)
        """`ip@instance[@unit]`."""
        self._reserved: set[str] = set()
        """Consumer groups that joined."""
        self._requests = BrokerRequests()
        self.connections: Final = Connections(options, self._requests.requested, self._greet)
        self._heartbeats = Heartbeats(self.client_id, self.connections, options.call_timeout_s)
        self.nameservers: Final = NameServers(
            key.nameservers, self.connections, options.call_timeout_s
        )
        self.routes: Final = Routes(self.nameservers, self._learned)
        self.known_route: Final = self.routes.known
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self._broken: BaseException | None = None
        self._run(self.routes.keep_fresh(options.route_interval_s))
        self._run(self._keep_beating())

    @property
    def options(self) -> ClientOptions:
        return self._key.options

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
        key = _Key(asyncio.get_running_loop(), parse_nameservers(nameserver), options)
        found = _joined.find(key, lambda known: consumer_group not in known._reserved)
        shared = found or _joined.add(key, cls(key))
        shared._count += 1
        if consumer_group is not None:
            shared._reserved.add(consumer_group)
        return shared

    async def leave(self, *, consumer_group: str | None = None) -> None:
        """Leave; the last client closes the connections. Pass the group given to `join`."""
        assert self._count > 0, "left more often than joined"
        self._count -= 1
        self._reserved.discard(consumer_group or "")
        if self._count:
            return
        _joined.remove(self._key, self)
        ending = tuple(self._tasks)
        for task in ending:
            task.cancel()
        self.routes.cancel()
        self._requests.cancel()
        await self.connections.close()
        await asyncio.gather(*ending, return_exceptions=True)

    def update_name_servers(self, nameservers: tuple[str, ...]) -> None:
        """Use these name servers, in every client that has used the same ones so far."""
        if not self._count:  # closed
            return
        key = self._key._replace(nameservers=nameservers)
        for shared in _joined.move(self._key, key):
            shared._key = key
            shared.nameservers.replace(nameservers)
            shared._run(shared.routes.refresh_all())

    # Routes

    async def route(self, topic: str) -> TopicRoute:
        """Return the route, from the NameServer at first use. Raises TopicNotFound."""
        self._check()
        known = self.known_route(topic)
        return await self.routes.refresh(topic) if known is None or known.is_borrowed else known

    async def route_for_sending(self, topic: str) -> TopicRoute:
        """As `route`, but a topic that the first message will create has the route of the default
        topic, with `is_borrowed`."""
        self._check()
        return await self.routes.route_for_sending(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """Return a fresh route from the NameServer. Raises TopicNotFound."""
        self._check()
        return await self.routes.refresh(topic)

    def watch_route(self, topic: str, on_change: OnChange) -> Callable[[], None]:
        """Call `on_change` whenever the route changes, and keep it fresh; returns a function that
        stops this."""
        return self.routes.watch(topic, on_change)

    async def broker_address(
        self, broker_name: str, *, broker_id: int = MASTER, topic: str | None = None
    ) -> str:
        """Return the address of a broker: from the route of `topic`, if given, otherwise from any
        known route or the NameServer's table of brokers. Raises NoRoute."""
        if topic is not None:
            found = (await self.route(topic)).address(broker_name, broker_id)
        else:
            found = await self.routes.broker_address(broker_name, broker_id)
        if found is None:
            raise NoRoute(f"broker {broker_name!r} has no replica with id {broker_id} now")
        return found

    async def call(
        self, address: str, code: int, ext: dict[str, str], body: Bytes = b"", *, timeout_s: float
    ) -> tuple[Header, bytes]:
        """Send a request and return the response, whatever its code; see `Connections.call`."""
        self._check()
        connection = self.connections.by_address.get(address)
        if connection is None or not connection.is_open:
            return await self.connections.call(address, code, ext, body, timeout_s=timeout_s)
        return await connection.call(code, ext, body, timeout_s=timeout_s)

    async def call_ok(
        self,
        address: str,
        code: int,
        ext: dict[str, str],
        body: Bytes = b"",
        *,
        timeout_s: float | None = None,
    ) -> tuple[Header, bytes]:
        """Send a request and return the response. Raises RemoteError unless it is a success."""
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
        """Handle requests of brokers with this code; returns a function that stops this.

        With a group, the handler gets only requests that name the group; a code and a group have
        one handler. Handlers without a group are called in turn until one returns a reply.
        """
        return self._requests.on_request(code, handler, group=group)

    # Heartbeats

    def add_producer(self, group: str) -> Callable[[], Awaitable[None]]:
        """Announce a producer of the group in heartbeats. Returns a coroutine function that leaves
        the group."""
        self._heartbeats.add_producer(group)
        self._run(self.heartbeat_now())

        async def leave() -> None:
            if self._heartbeats.remove_producer(group):
                await self._heartbeats.unregister(self.routes.addresses(), {"producerGroup": group})

        return leave

    def add_consumer(self, group: str, describe: Describe) -> Callable[[], Awaitable[None]]:
        """Announce a consumer. `describe` is called for each heartbeat; when its result changes,
        call `heartbeat_now`."""
        self._heartbeats.add_consumer(group, describe)
        self._run(self.heartbeat_now())

        async def leave() -> None:
            self._heartbeats.remove_consumer(group)
            await self._heartbeats.unregister(self.routes.addresses(), {"consumerGroup": group})

        return leave

    async def heartbeat_now(self) -> None:
        """Send a heartbeat to every known broker. A broker that does not respond is skipped: it
        gets a heartbeat when a connection to it is opened again."""
        if self._heartbeats:
            masters_only = not self._heartbeats.has_consumers
            await self._heartbeats.send(self.routes.addresses(masters_only=masters_only))

    def _greet(self, connection: Connection) -> None:
        if connection.address not in self.nameservers.addresses:
            self._heartbeats.greet(connection)

    def _learned(self, route: TopicRoute) -> None:
        """Announce this client at once to brokers that a new route leads to."""
        if self._heartbeats:
            for address in addresses_of([route], masters_only=not self._heartbeats.has_consumers):
                if not self.connections.maybe_connection(address):
                    self._run(self._heartbeats.send([address]))

    # Background

    def now_ms(self) -> int:
        """Return the wall-clock time, which messages carry."""
        return time.time_ns() // 1_000_000

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self.options.heartbeat_interval_s)
            await self.heartbeat_now()

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = self._key.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The next caller gets the error; a log entry alone would be missed.
            self._broken = self._broken or error
            log.error(
                "the client stopped working: %r; the next call raises it", error, exc_info=error
            )

    def check_loop(self) -> None:
        """Raise UsageError in another event loop than this client's: a caller there would wait for
        callbacks of this loop, possibly without end."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        loop = self._key.loop
        if here is not loop:
            which = "which is closed by now" if loop.is_closed() else "and not to this one"
            raise UsageError(
                f"this client belongs to the event loop in which it was started, {which}; use one"
                " for each loop, or use tianzhou.client.sync, which any thread may call"
            )

    def _check(self) -> None:
        self.check_loop()
        if self._broken is not None:
            raise ClientBroken(f"a background task failed: {self._broken!r}") from self._broken
