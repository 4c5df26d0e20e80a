"""Routes that are known: asked for at first use, asked again in time, and watched."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from tianzhou.base.errors import TianzhouError
from tianzhou.client.aio.nameservers import NameServers
from tianzhou.client.core.routing import TopicRoute, addresses_of, borrowed_route, route_of
from tianzhou.client.errors import ClientClosed, TopicNotFound
from tianzhou.wire.names import DEFAULT_TOPIC

log: Final = logging.getLogger("tianzhou.client")

"""The topic that others are made from, on brokers that make topics by themselves."""
DEFAULT_TOPIC_QUEUES: Final = 4
"""How many queues a producer asks for in a topic that is made so."""

OnChange = Callable[[TopicRoute], None]


class Routes:
    """Owner: the event loop."""

    def __init__(self, nameservers: NameServers, on_learned: Callable[[TopicRoute], None]) -> None:
        self._nameservers = nameservers
        self._on_learned = on_learned
        self._routes: dict[str, TopicRoute] = {}
        self._asking: dict[str, asyncio.Task[TopicRoute]] = {}
        self._watchers: dict[str, list[OnChange]] = {}
        self._stale: set[str] = set()
        """Topics whose last refresh failed; each is reported once, until a refresh succeeds."""

    def known(self, topic: str) -> TopicRoute | None:
        return self._routes.get(topic)

    async def route(self, topic: str) -> TopicRoute:
        """The known route, or else the name server's. Raises TopicNotFound."""
        found = self._routes.get(topic)
        if found is not None and not found.is_borrowed:
            return found
        return await self.refresh(topic)

    async def route_for_sending(self, topic: str) -> TopicRoute:
        """As `route`, but a topic that is not there is made by sending to it, where allowed."""
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
        raise TopicNotFound(topic, "create it; no broker makes topics by itself")

    async def refresh(self, topic: str) -> TopicRoute:
        """Ask now. Several who ask for one topic at once share the question."""
        asking = self._asking.get(topic)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._ask(topic))
            self._asking[topic] = asking
            asking.add_done_callback(lambda done: self._asked(topic, done))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            if asking.cancelled():  # not this caller was, but everything was closed
                raise ClientClosed(f"the client was closed before {topic!r} was found") from None
            raise

    async def _ask(self, topic: str) -> TopicRoute:
        return route_of(topic, await self._nameservers.route(topic))

    def _asked(self, topic: str, done: "asyncio.Task[TopicRoute]") -> None:
        del self._asking[topic]
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

    def addresses(self, *, masters_only: bool) -> set[str]:
        return addresses_of(self._routes.values(), masters_only=masters_only)

    def broker_address(self, broker_name: str, broker_id: int) -> str | None:
        """By whatever route knows the broker."""
        found = (route.address(broker_name, broker_id) for route in self._routes.values())
        return next((address for address in found if address is not None), None)

    async def refresh_all(self) -> None:
        """What can't be learned now is left as it was: an old route is better than none."""
        topics = self._routes.keys() | {topic for topic, who in self._watchers.items() if who}
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
                "topic %s has no route yet: %s", topic, error, extra={"topic": topic},
            )  # fmt: skip
        else:
            log.log(
                logging.WARNING if is_first else logging.DEBUG,
                "the route of topic %s could not be refreshed: %s; the client keeps using the "
                "one it has",
                topic, error, extra={"topic": topic},
            )  # fmt: skip

    def cancel(self) -> None:
        for asking in tuple(self._asking.values()):
            asking.cancel()
