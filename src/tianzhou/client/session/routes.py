"""Routes of topics: requested at first use, refreshed regularly and when a broker reports that they
changed, and watched.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable
from typing import Final

from tianzhou.base.errors import TianzhouError
from tianzhou.client.core.routing import (
    DEFAULT_TOPIC_QUEUES,
    TopicRoute,
    addresses_of,
    borrowed_route,
    light_route,
    route_of,
)
from tianzhou.client.errors import ClientClosed, TopicNotFound
from tianzhou.client.session.name_servers import NameServers
from tianzhou.record.light_queues import is_light
from tianzhou.wire.names import DEFAULT_TOPIC

log: Final = logging.getLogger("tianzhou.client")

SPREAD_S: Final = 0.1
"""Clients refresh a route that a broker reports as changed at a random time within this one: all
clients of a topic hear of the change at the same time. Several brokers that report it within this
time cause one request."""
CALM_S: Final = 0.5
"""Pause after such a refresh, however often brokers report changes."""

OnChange = Callable[[TopicRoute], None]


class Routes:
    """The known routes.

    Owner: the event loop.
    """

    def __init__(self, nameservers: NameServers, on_learned: Callable[[TopicRoute], None]) -> None:
        self._nameservers = nameservers
        self._on_learned = on_learned
        self._routes: dict[str, TopicRoute] = {}
        self.known: Final[Callable[[str], TopicRoute | None]] = self._routes.get
        """Returns the route of a topic if it is known; every send asks."""
        self._refreshing: dict[str, asyncio.Task[TopicRoute]] = {}
        self._watchers: dict[str, list[OnChange]] = {}
        self._stale: set[str] = set()
        """Topics whose last refresh failed; each is reported once, until a refresh succeeds."""
        self._outdated: set[str] = set()
        """Topics that a broker reported as changed since their last refresh."""
        self._reported = asyncio.Event()

    async def route_for_sending(self, topic: str) -> TopicRoute:
        """Return the known route, or the NameServer's; a topic that brokers may create gets the
        route of the default topic. Raises TopicNotFound."""
        found = self._routes.get(topic)
        if found is not None:
            return found
        try:
            return await self.refresh(topic)
        except TopicNotFound:
            return await self._borrow(topic)

    async def _borrow(self, topic: str) -> TopicRoute:
        try:
            default = await self._nameservers.route(DEFAULT_TOPIC)
        except TopicNotFound:
            default = None
        if default is not None:
            route = borrowed_route(topic, default, DEFAULT_TOPIC_QUEUES)
            if route.write_queues:
                self._learn(route)
                return route
        raise TopicNotFound(topic, "create it; no broker creates topics automatically")

    async def refresh(self, topic: str) -> TopicRoute:
        """Return a fresh route; concurrent calls for one topic share a request."""
        refreshing = self._refreshing.get(topic)
        if refreshing is None:
            refreshing = asyncio.get_running_loop().create_task(self._fetch(topic))
            self._refreshing[topic] = refreshing
            refreshing.add_done_callback(lambda done: self._refreshed(topic, done))
        try:
            return await asyncio.shield(refreshing)
        except asyncio.CancelledError:
            if refreshing.cancelled():  # the client was closed, not this caller cancelled
                raise ClientClosed(f"the client was closed before {topic!r} was found") from None
            raise

    async def _fetch(self, topic: str) -> TopicRoute:
        if is_light(topic):
            return light_route(topic, await self._nameservers.cluster_table())
        return route_of(topic, await self._nameservers.route(topic))

    def _refreshed(self, topic: str, done: "asyncio.Task[TopicRoute]") -> None:
        del self._refreshing[topic]
        if not done.cancelled() and done.exception() is None:
            if topic in self._stale:
                self._stale.remove(topic)
                log.info("the route of topic %s was refreshed again", topic)
            self._learn(done.result())

    def _learn(self, route: TopicRoute) -> None:
        if self._routes.get(route.topic) == route:
            return
        self._routes[route.topic] = route
        self._on_learned(route)
        for on_change in tuple(self._watchers.get(route.topic, ())):
            on_change(route)

    def watch(self, topic: str, on_change: OnChange) -> Callable[[], None]:
        watchers = self._watchers.setdefault(topic, [])
        watchers.append(on_change)

        def stop() -> None:
            with contextlib.suppress(ValueError):
                watchers.remove(on_change)

        return stop

    async def writable_again(self, topic: str) -> None:
        """Wait until the route changes and leads to a broker that accepts messages."""
        changed = asyncio.Event()

        def on_change(route: TopicRoute) -> None:
            if route.write_queues:
                changed.set()

        stop_watching = self.watch(topic, on_change)
        try:
            await changed.wait()
        finally:
            stop_watching()

    def addresses(self, *, masters_only: bool = False) -> set[str]:
        return addresses_of(self._routes.values(), masters_only=masters_only)

    async def broker_address(self, broker_name: str, broker_id: int) -> str | None:
        """Return the address of a broker from any known route, or else from the NameServer's table
        of brokers."""
        for route in self._routes.values():
            found = route.address(broker_name, broker_id)
            if found is not None:
                return found
        data = (await self._nameservers.cluster_table()).broker_addr_table.get(broker_name)
        return data.broker_addrs.get(broker_id) if data else None

    def refresh_soon(self, topics: Iterable[str]) -> None:
        """Refresh routes that a broker reports as changed; topics that are not in use are
        ignored."""
        self._outdated |= self._in_use().intersection(topics)
        if self._outdated:
            self._reported.set()

    async def keep_fresh(self, interval_s: float) -> None:
        """Refresh all routes regularly, and those of `refresh_soon` soon, until cancelled."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + interval_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._reported.wait()
            if loop.time() >= due_s:
                await self._nameservers.resolve()
                await self.refresh_all()
                due_s = loop.time() + interval_s
                continue
            await asyncio.sleep(random.uniform(SPREAD_S / 2, SPREAD_S))
            self._reported.clear()
            outdated, self._outdated = self._outdated, set()
            # A response that is under way may have been sent before the change.
            under_way = [task for topic, task in self._refreshing.items() if topic in outdated]
            if under_way:
                await asyncio.wait(under_way)
            await self._refresh_each(outdated)
            await asyncio.sleep(CALM_S)

    async def refresh_all(self) -> None:
        """Refresh the routes of all topics in use."""
        await self._refresh_each(self._in_use())

    def _in_use(self) -> set[str]:
        watched = {topic for topic, watchers in self._watchers.items() if watchers}
        return watched | self._routes.keys()

    async def _refresh_each(self, topics: Iterable[str]) -> None:
        """Refresh routes. One that cannot be refreshed is kept: an old one is better than none."""
        for topic in sorted(topics):
            try:
                await self.refresh(topic)
            except TianzhouError as error:
                self._refresh_failed(topic, error)

    def _refresh_failed(self, topic: str, error: TianzhouError) -> None:
        is_first = topic not in self._stale
        self._stale.add(topic)
        known = self._routes.get(topic)
        if known is None or known.is_borrowed:
            # The topic may be created later, by its first message or by an operator; a consumer of
            # it has warned already.
            log.log(
                logging.INFO if is_first else logging.DEBUG,
                "topic %s has no route yet: %s",
                topic,
                error,
                extra={"topic": topic},
            )
        else:
            log.log(
                logging.WARNING if is_first else logging.DEBUG,
                "the route of topic %s could not be refreshed: %s; the client keeps using the "
                "one it has",
                topic,
                error,
                extra={"topic": topic},
            )

    def cancel(self) -> None:
        for refreshing in tuple(self._refreshing.values()):
            refreshing.cancel()
