"""The send engine: performs what the send machine decides, until a request is stored or has failed.

A pending send is not a task but a sequence of callbacks: write, response, and perhaps write again.
Sends that wait for a route, a connection or a pause share one wait for each topic or address, so a
burst of sends needs no task and no timer for each message.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine
from time import time_ns
from typing import Final

from tianzhou.base.errors import ProtocolError, TianzhouError
from tianzhou.client.aio.waiting import DeadlinePassed, SharedWaits
from tianzhou.client.core.routing import DEFAULT_TOPIC_QUEUES, Pick
from tianzhou.client.core.send import (
    Action,
    Event,
    Failure,
    OnSent,
    SendMachine,
    SendPolicy,
    State,
)
from tianzhou.client.core.send_request import SendFields, SendRequest, outcome_of
from tianzhou.client.errors import ClientClosed, GoAway, Unreachable
from tianzhou.client.options import ProducerOptions
from tianzhou.client.session.shared_client import SharedClient
from tianzhou.client.transport.aio import Connection
from tianzhou.wire.codec import Header
from tianzhou.wire.names import DEFAULT_TOPIC

log: Final = logging.getLogger("tianzhou.client")

REFRESH_S: Final = 0.05
"""Interval between route requests while the route does not change; doubled after each of them. A
broker group that hands over has its next master in less than a tenth of a second."""
REFRESH_S_MAX: Final = 1.0
CALM_S: Final = 1.0
"""Route requests stop this long after the last failure."""


class SendEngine:
    """What the pending sends of one producer share: policy, connections and waits.

    Owner: the event loop.
    """

    def __init__(self, shared: SharedClient, options: ProducerOptions, group: str) -> None:
        self.shared = shared
        self.loop = asyncio.get_running_loop()
        self.policy = SendPolicy(options, shared.known_route, random.randrange)
        self.fields = SendFields(group, DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUES)
        self.connected = shared.connections.by_address
        self.routes = SharedWaits(shared.route_for_sending)
        self.connections = SharedWaits(shared.connections.connection)
        self.refreshes = SharedWaits(shared.refresh)
        self.pauses = SharedWaits(shared.routes.writable_again)
        self._waiting: set[asyncio.Task[None]] = set()
        self._troubled_s: dict[str, float] = {}
        """Time of the last failed send, for topics whose route is being refreshed."""

    def deliver(
        self,
        request: SendRequest,
        on_sent: OnSent,
        *,
        pick: Pick | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Send a request. `on_sent` gets a result for each of its messages, or the failure."""
        limit_s = timeout_s or self.policy.options.send_timeout_s
        now_s = self.loop.time()
        PendingSend(self, request, on_sent, pick, now_s=now_s, limit_s=limit_s).start(now_s)

    def later(
        self, work: Coroutine[None, None, None], on_error: Callable[[BaseException], None]
    ) -> None:
        """Run a coroutine in the background. `on_error` gets its exception, or ClientClosed."""

        def ended(task: asyncio.Task[None]) -> None:
            self._waiting.discard(task)
            if task.cancelled():
                on_error(ClientClosed("the producer was closed before the message was sent"))
            elif (error := task.exception()) is not None:
                on_error(error)

        task = self.loop.create_task(work)
        self._waiting.add(task)
        task.add_done_callback(ended)

    def refresh_soon(self, topic: str, pause_s: float = REFRESH_S) -> None:
        """Refresh the route of a topic until it changes, after a broker failed or a topic was
        created. All sends share one refresh: at once, and then at growing intervals."""
        is_asking = topic in self._troubled_s
        self._troubled_s[topic] = self.loop.time()
        if not is_asking and not self.policy.is_closed:
            self.later(self._ask_for_change(topic, pause_s), _log_refresh_failed)

    async def _ask_for_change(self, topic: str, pause_s: float) -> None:
        """Refresh until the route changes, or no send has failed for CALM_S."""
        before = self.shared.known_route(topic)
        try:
            while self.loop.time() - self._troubled_s[topic] < CALM_S:
                # Sends continue with the old route if there is no new one, and report what fails.
                with contextlib.suppress(TianzhouError):
                    route = await self.shared.refresh(topic)
                    if route != before and route.write_queues:
                        return
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, REFRESH_S_MAX)
        finally:
            del self._troubled_s[topic]

    def close(self) -> None:
        self.policy.is_closed = True
        for waits in (self.routes, self.connections, self.refreshes, self.pauses):
            waits.close()
        for task in tuple(self._waiting):
            task.cancel()


# Attribute access of an Enum is slow, and every send needs these.
_ROUTED: Final = Event.ROUTED
_CONNECTED: Final = Event.CONNECTED
_STORED: Final = Event.STORED
_WAIT: Final = Action.WAIT
_WRITE: Final = Action.WRITE
_DONE: Final = Action.DONE


class PendingSend(SendMachine):
    """One send request, and what performs the actions of its machine.

    Owner: the event loop.
    """

    __slots__ = ("_connection", "_engine", "_on_sent", "_request")

    def __init__(
        self,
        engine: SendEngine,
        request: SendRequest,
        on_sent: OnSent,
        pick: Pick | None,
        *,
        now_s: float,
        limit_s: float,
    ) -> None:
        super().__init__(engine.policy, request.topic, pick, now_s=now_s, limit_s=limit_s)
        self._engine = engine
        self._request = request
        self._on_sent = on_sent
        self._connection: Connection | None = None

    def start(self, now_s: float) -> None:
        """Make one attempt: now if the route and the connection exist, otherwise once they do.

        While other sends wait for either, this one waits behind them: messages of one queue are
        written in the order in which they were sent.
        """
        engine, topic = self._engine, self.topic
        route = engine.policy.known_route(topic)
        if route is None or topic in engine.routes.keys:
            engine.routes.add(topic, self.until_s, self._route_ended)
            return
        try:
            action = self.handle(_ROUTED, now_s, route)
        except BaseException as error:  # raised by a selector, which is the user's function
            action = self.handle(Event.ABORTED, now_s, error)
            if not isinstance(error, Exception):  # such as SystemExit, which ends the program
                self._perform(action)
                raise
        if action is _WAIT:
            address = self.address
            connection = engine.connected.get(address)
            if connection is None or not connection.is_open or address in engine.connections.keys:
                engine.connections.add(address, self.until_s, self._connection_ended)
            else:
                self._write(connection, now_s)
        else:
            self._perform(action)

    def _write(self, connection: Connection, now_s: float) -> None:
        action = self.handle(_CONNECTED, now_s)
        if action is not _WRITE:
            self._perform(action)
            return
        assert self.queue is not None
        engine, request = self._engine, self._request
        self._connection = connection
        ext = engine.fields.ext(request, self.queue, time_ns() // 1_000_000)
        try:
            connection.ask(
                request.code,
                ext,
                request.body,
                on_answer=self._answered,
                timeout_s=self.until_s - now_s,
            )
        except ProtocolError as error:  # the frame is too large, or too many requests are pending
            self._report(Event.ABORTED, error)

    def _answered(self, header: Header | None, _body: bytes) -> None:
        assert self.queue is not None
        if header is None:
            now_s = self._engine.loop.time()
            is_open = self._connection is not None and self._connection.is_open
            error = self.no_response(self._request.code, now_s, is_open=is_open)
            self._perform(self.handle(Event.FAILED, now_s, error))
            return
        outcome = outcome_of(header, self._request, self.queue, self.address)
        if not isinstance(outcome, list):
            if isinstance(outcome, GoAway) and self._connection is not None:
                self._connection.close()  # the next request opens a new connection
            self._report(Event.FAILED, outcome)
            return
        action = self.handle(_STORED, self._engine.loop.time(), outcome)
        route = self.policy.known_route(self.topic)
        if route is not None and route.is_borrowed:
            # The topic has just been created, on this broker alone. Refresh slowly: once the route
            # names only this broker, no message would create the topic on the others.
            self._engine.refresh_soon(self.topic, REFRESH_S_MAX)
        self._perform(action)

    def _route_ended(self, error: BaseException | None) -> None:
        if error is None:
            self._start_again()
        else:
            self._wait_failed(error)

    def _connection_ended(self, error: BaseException | None) -> None:
        if error is not None:
            self._wait_failed(error)
            return
        connection = self._engine.shared.connections.maybe_connection(self.address)
        if connection is not None:
            self._write(connection, self._engine.loop.time())
        else:
            closed = Unreachable(self.address, "it closed the connection at once")
            self._report(Event.FAILED, closed)

    def _refresh_ended(self, error: BaseException | None) -> None:
        self._wait_ended(Event.REFRESHED, error)

    def _pause_ended(self, error: BaseException | None) -> None:
        self._wait_ended(Event.WOKEN, error)

    def _wait_ended(self, event: Event, error: BaseException | None) -> None:
        if error is None:
            self._report(event)
        else:
            self._wait_failed(error)

    def _wait_failed(self, error: BaseException) -> None:
        if isinstance(error, DeadlinePassed):
            self._report(Event.EXPIRED)
        elif isinstance(error, TianzhouError):
            self._report(Event.FAILED, error)
        else:
            self._report(Event.ABORTED, error)

    def _report(self, event: Event, detail: object = None) -> None:
        self._perform(self.handle(event, self._engine.loop.time(), detail))

    def _start_again(self) -> None:
        """Start from a shared wait. An unexpected error fails this send, not the others."""
        try:
            self.start(self._engine.loop.time())
        except Exception as error:
            self._report(Event.ABORTED, error)

    def _perform(self, action: Action) -> None:
        """Do what the machine decided; WRITE and the wait for a connection are part of `start`."""
        engine, outcome = self._engine, self.outcome
        if action is _DONE:
            if not isinstance(outcome, Failure):
                self._on_sent(outcome, None)
                return
            if not outcome.is_final:
                # For the next message, not this one: the broker may have a new master by now.
                engine.refresh_soon(self.topic)
            self._on_sent((), outcome)
        elif action is Action.REFRESH:
            engine.refreshes.add(self.topic, self.until_s, self._refresh_ended)
        elif action is not Action.NOTHING:
            if action is Action.RETRY:
                engine.refresh_soon(self.topic)
            if self.state is State.PAUSED:
                engine.pauses.add(self.topic, self.until_s, self._pause_ended)
            else:
                self._start_again()


def _log_refresh_failed(error: BaseException) -> None:
    if not isinstance(error, ClientClosed):
        log.error("the producer could not refresh a route: %r", error, exc_info=error)
