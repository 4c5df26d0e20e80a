"""The send engine: attempt after attempt, until a request is stored or a retry is pointless.

A pending send is not a task but a sequence of callbacks: write, response, and perhaps write again.
Sends that wait for a route, a connection or a pause share one wait for each topic or address, so a
burst of sends needs no task and no timer for each message.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Final

from tianzhou.base.errors import ProtocolError, Retry, TianzhouError
from tianzhou.client.aio.connection import Connection
from tianzhou.client.aio.routes import DEFAULT_TOPIC_QUEUES
from tianzhou.client.aio.shared_client import SharedClient
from tianzhou.client.aio.shared_wait import DeadlinePassed, SharedWaits
from tianzhou.client.core.failure import MOVED, Failure
from tianzhou.client.core.routing import TopicRoute
from tianzhou.client.core.selection import Fixed, Latencies, Pick, Rotation
from tianzhou.client.core.sending import (
    SendFields,
    SendRequest,
    SendResult,
    SendStatus,
    results_of,
)
from tianzhou.client.errors import (
    BadAnswer,
    CallTimeout,
    ClientClosed,
    ConnectionLost,
    GoAway,
    NoNameServer,
    NoRoute,
    NotStoreOk,
    RemoteError,
    ServiceNotAvailable,
    TopicNotFound,
    Try,
    Unreachable,
    may_be_stored,
    remote_error,
)
from tianzhou.client.options import ProducerOptions
from tianzhou.wire.header import Header
from tianzhou.wire.names import DEFAULT_TOPIC
from tianzhou.wire.queues import MessageQueue

log: Final = logging.getLogger("tianzhou.client")

PAUSE_S: Final = 0.1
"""Pause before a retry on the broker that just failed, if there is no other. Each further pause is
four times as long."""
PAUSE_GROWTH: Final = 4
PAUSES_GROW: Final = 5
"""How often the pause grows: an ordered message may be retried more often than the options
allow."""
REFRESH_S: Final = 0.05
"""Interval between route requests while the route does not change; doubled after each of them. A
broker group that hands over has its next master in less than a tenth of a second."""
REFRESH_S_MAX: Final = 1.0
CALM_S: Final = 1.0
"""Route requests stop this long after the last failure."""

_OF_NOW: Final = (TopicNotFound, NoNameServer, RemoteError)
"""These errors are about the last attempt only; an earlier attempt may have stored the message."""

OnDone = Callable[[list[SendResult], Failure | None], None]


class SendEngine:
    """What the pending sends of one producer share: routes, connections, waits and latencies.

    Owner: the event loop.
    """

    def __init__(self, shared: SharedClient, options: ProducerOptions, group: str) -> None:
        self.shared = shared
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.latencies = Latencies()
        self.rotation = Rotation(options.queue_choice, self.latencies, random.randrange)
        self.fields = SendFields(group, DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUES)
        self.routes = SharedWaits(shared.route_for_sending)
        self.connections = SharedWaits(shared.connections.connection)
        self.refreshes = SharedWaits(shared.refresh)
        self.pauses = SharedWaits(self._writable_again)
        self._waiting: set[asyncio.Task[None]] = set()
        self._troubled_s: dict[str, float] = {}
        """Time of the last failed send, for topics whose route is being refreshed."""
        self.is_closed = False

    def deliver(
        self, request: SendRequest, on_done: OnDone, *, pick: Pick | None = None,
        timeout_s: float | None = None,
    ) -> None:  # fmt: skip
        """Send a request. `on_done` gets a result for each of its messages, or the failure."""
        limit_s = timeout_s or self.options.send_timeout_s
        PendingSend(self, request, on_done, pick, limit_s).start()

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
        if not is_asking and not self.is_closed:
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

    async def _writable_again(self, topic: str) -> None:
        """Wait until the route changes and leads to a broker that accepts messages."""
        changed = asyncio.Event()

        def on_change(route: TopicRoute) -> None:
            if route.write_queues:
                changed.set()

        stop_watching = self.shared.watch_route(topic, on_change)
        try:
            await changed.wait()
        finally:
            stop_watching()

    def choose(
        self, route: TopicRoute, pick: Pick | None, avoid: list[str], now_s: float
    ) -> tuple[MessageQueue, str]:
        """Return a queue and the address of its broker. Raises NoRoute."""
        if not route.write_queues:
            raise NoRoute(f"topic {route.topic!r} has no queue that can be written to")
        if pick is None:
            queue = self.rotation.choose(route.write_queues, avoid, now_s)
        else:
            queue = pick(route)
        address = route.address(queue.broker_name)
        if address is None:
            raise NoRoute(f"broker {queue.broker_name!r} of topic {route.topic!r} has no master")
        return queue, address

    def close(self) -> None:
        self.is_closed = True
        for waits in (self.routes, self.connections, self.refreshes, self.pauses):
            waits.close()
        for task in tuple(self._waiting):
            task.cancel()


class PendingSend:
    """One send request with all its attempts.

    Owner: the event loop.
    """

    __slots__ = (
        "_address",
        "_avoid",
        "_began_s",
        "_connection",
        "_engine",
        "_is_over",
        "_limit_s",
        "_on_done",
        "_pick",
        "_queue",
        "_request",
        "_tried_s",
        "_tries",
    )  # fmt: skip

    def __init__(
        self,
        engine: SendEngine,
        request: SendRequest,
        on_done: OnDone,
        pick: Pick | None,
        limit_s: float,
    ) -> None:
        self._engine = engine
        self._request = request
        self._on_done = on_done
        self._pick = pick
        self._limit_s = limit_s
        self._began_s = self._tried_s = engine.loop.time()
        self._is_over = False
        self._tries: list[Try] = []
        self._avoid: list[str] = []
        self._queue: MessageQueue | None = None
        self._address = ""
        self._connection: Connection | None = None

    def start(self) -> None:
        """Make one attempt: now if the route and the connection exist, otherwise once they do.

        While other sends wait for either, this one waits behind them: messages of one queue are
        written in the order in which they were sent.
        """
        engine, topic = self._engine, self._request.topic
        route = engine.shared.known_route(topic)
        now_s = engine.loop.time()
        if route is None or topic in engine.routes:
            engine.routes.add(topic, now_s + self._left_s(now_s), self._route_ended)
            return
        try:
            self._queue, self._address = engine.choose(route, self._pick, self._avoid, now_s)
        except NoRoute as error:
            self._queue, self._address = None, ""
            self._failed(error)
            return
        except Exception as error:  # raised by a selector, which is the user's function
            self.give_up(error)
            return
        address = self._address
        connection = engine.shared.connections.maybe_connection(address)
        if connection is None or address in engine.connections:
            self._tried_s = now_s
            deadline_s = now_s + self._try_s(now_s)
            engine.connections.add(address, deadline_s, self._connection_ended)
        else:
            self._write(connection, now_s)

    def _start_again(self) -> None:
        """Start from a shared wait. An unexpected error fails this send, not the others."""
        try:
            self.start()
        except Exception as error:
            self.give_up(error)

    def _left_s(self, now_s: float) -> float:
        return self._limit_s - (now_s - self._began_s)

    def _try_s(self, now_s: float) -> float:
        """Return the timeout of this attempt."""
        left_s, options = self._left_s(now_s), self._engine.options
        is_last = len(self._tries) + 1 >= options.tries_max or self._pick is not None
        return left_s if is_last else min(left_s, options.try_timeout_s)

    def _route_ended(self, error: BaseException | None) -> None:
        if error is None:
            self._start_again()
        elif isinstance(error, DeadlinePassed):
            self._done_with_failure(timed_out=True)
        else:
            self.give_up(error)

    def _connection_ended(self, error: BaseException | None) -> None:
        now_s, address = self._engine.loop.time(), self._address
        if error is None:
            connection = self._engine.shared.connections.maybe_connection(address)
            if connection is not None:
                self._write(connection, now_s)
            else:
                self._failed(Unreachable(address, "it closed the connection at once"))
        elif isinstance(error, DeadlinePassed):
            waited_s = now_s - self._tried_s
            self._failed(Unreachable(address, f"no connection within {waited_s:.3g} s"))
        elif isinstance(error, TianzhouError):
            self._failed(error)
        else:
            self.give_up(error)

    def _write(self, connection: Connection, now_s: float) -> None:
        assert self._queue is not None
        engine, request = self._engine, self._request
        self._connection, self._tried_s = connection, now_s
        timeout_s = self._try_s(now_s)
        if timeout_s <= 0:
            self._done_with_failure(timed_out=True)
            return
        ext = engine.fields.ext(request, self._queue, engine.shared.now_ms())
        try:
            connection.ask(request.code, ext, request.body, self._answered, timeout_s)
        except ProtocolError as error:  # the frame is too large, or too many requests are pending
            self.give_up(error)

    def _answered(self, header: Header | None, _body: bytes) -> None:
        assert self._queue is not None
        engine, now_s = self._engine, self._engine.loop.time()
        if header is None:
            self._failed(self._no_answer(now_s))
            return
        try:
            results = results_of(header, self._request, self._queue)
        except (KeyError, ValueError) as error:
            self._failed(BadAnswer(self._address, self._request.code, repr(error)))
            return
        if results is None:
            self._failed(remote_error(self._address, header.code, header.remark))
            return
        status = results[0].status
        if status is not SendStatus.SEND_OK and self._is_worth_more():
            self._failed(NotStoreOk(self._address, status.name))
            return
        engine.latencies.took(self._queue.broker_name, (now_s - self._tried_s) * 1000, now_s)
        route = engine.shared.known_route(self._request.topic)
        if route is not None and route.is_borrowed:
            # The topic has just been created, on this broker alone. Refresh slowly: once the route
            # names only this broker, no message would create the topic on the others.
            engine.refresh_soon(self._request.topic, REFRESH_S_MAX)
        self._done(results, None)

    def _is_worth_more(self) -> bool:
        """Whether a message stored with a weaker guarantee is also sent to another broker."""
        assert self._queue is not None
        options = self._engine.options
        if not options.retry_not_store_ok or len(self._tries) + 1 >= options.tries_max:
            return False
        return self._has_another(besides=self._queue.broker_name)

    def _no_answer(self, now_s: float) -> TianzhouError:
        code, address = self._request.code, self._address
        if self._engine.is_closed:
            return ClientClosed(f"the producer was closed before {address} answered")
        if self._connection is not None and self._connection.is_open:
            return CallTimeout(address, code, now_s - self._tried_s)
        return ConnectionLost(address, code)

    def _failed(self, error: TianzhouError) -> None:
        """Decide what to do after a failed attempt."""
        engine, now_s = self._engine, self._engine.loop.time()
        name = self._queue.broker_name if self._queue is not None else ""
        self._tries.append(Try(name, self._address, error))
        self._avoid.append(name)
        if name and error.retry is Retry.OTHER_BROKER:
            engine.latencies.failed(name, now_s)
        if isinstance(error, GoAway) and self._connection is not None:
            self._connection.close()  # the next request opens a new connection
        if error.retry is Retry.NEVER:
            self.give_up(error)
        elif not self._may_go_on(error):
            self._done_with_failure()
        elif self._left_s(now_s) <= 0:
            self._done_with_failure(timed_out=True)
        elif error.retry is Retry.AFTER_ROUTE_REFRESH:
            deadline_s = now_s + self._try_s(now_s)
            engine.refreshes.add(self._request.topic, deadline_s, self._refresh_ended)
        elif self._has_another():
            engine.refresh_soon(self._request.topic)
            self.start()
        else:
            self._pause()

    def _may_go_on(self, error: TianzhouError) -> bool:
        """Whether to retry.

        An ordered message is sent again only if it was certainly not stored: a second copy after
        messages sent meanwhile would be out of order. If its broker is being drained, the route
        will soon change, so it is retried until its timeout. The same applies if its broker is not
        the master, or not yet: the queue stays the same, so a send to a named queue is retried too.
        """
        if self._engine.is_closed:
            return False
        if self._pick is None or isinstance(error, Unreachable | NoRoute):
            return len(self._tries) < self._engine.options.tries_max
        if isinstance(error, ServiceNotAvailable):
            return True
        return isinstance(error, MOVED) and not isinstance(self._pick, Fixed)

    def _has_another(self, *, besides: str = "") -> bool:
        route = self._engine.shared.known_route(self._request.topic)
        if route is None:
            return False
        if self._pick is not None:  # it may pick another queue once its last one is gone
            return self._queue not in route.write_queues and bool(route.write_queues)
        avoid = [*self._avoid, besides]
        return any(queue.broker_name not in avoid for queue in route.write_queues)

    def _refresh_ended(self, error: BaseException | None) -> None:
        """Continue after any other error: the old route may still lead to another broker."""
        if isinstance(error, TopicNotFound | ClientClosed):
            self.give_up(error)
        elif self._has_another():
            self._start_again()
        else:
            self._pause()

    def _pause(self) -> None:
        """Start again after a pause, or as soon as the route leads to a broker that accepts
        writes."""
        engine, topic, now_s = self._engine, self._request.topic, self._engine.loop.time()
        pause_s = PAUSE_S * PAUSE_GROWTH ** min(len(self._tries) - 1, PAUSES_GROW)
        engine.refresh_soon(topic)
        until_s = now_s + max(0.0, min(pause_s, self._left_s(now_s) / 2))
        engine.pauses.add(topic, until_s, self._pause_ended)

    def _pause_ended(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, DeadlinePassed):
            self.give_up(error)
        elif self._left_s(self._engine.loop.time()) <= 0:
            self._done_with_failure(timed_out=True)
        else:
            self._start_again()

    def give_up(self, error: BaseException) -> None:
        """Fail without another attempt. The caller gets this error, unless the response to an
        earlier attempt was lost: then the message may be stored, and `tries` must say so."""
        if isinstance(error, _OF_NOW) and self._may_be_stored():
            if self._tries[-1].error is not error:
                self._tries.append(Try("", "", error))
            self._done_with_failure()
        else:
            self._done([], Failure(self._request.topic, self._tries, final=error))

    def _may_be_stored(self) -> bool:
        return any(may_be_stored(tried.error) for tried in self._tries)

    def _done_with_failure(self, *, timed_out: bool = False) -> None:
        spent_s = self._engine.loop.time() - self._began_s
        last = self._tries[-1].error if self._tries else None
        timed_out = timed_out or isinstance(last, CallTimeout)
        # Not for this message but for the next one: the broker may have a new master by now.
        self._engine.refresh_soon(self._request.topic)
        failure = Failure(self._request.topic, self._tries, spent_s=spent_s, timed_out=timed_out)
        self._done([], failure)

    def _done(self, results: list[SendResult], failure: Failure | None) -> None:
        """Report the outcome once, whatever else goes wrong afterwards."""
        if not self._is_over:
            self._is_over = True
            self._on_done(results, failure)


def _log_refresh_failed(error: BaseException) -> None:
    if not isinstance(error, ClientClosed):
        log.error("the producer could not refresh a route: %r", error, exc_info=error)
