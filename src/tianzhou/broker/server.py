"""The broker as a server: it listens, ticks ten times a second, and stops in order."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.base.probe import Histogram
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.metrics import Metric, counter, gauge, gauges, histogram
from tianzhou.broker.observe.health import Health, log_recovery
from tianzhou.broker.observe.watchdog import Finding
from tianzhou.broker.replica.mode import Mode
from tianzhou.broker.replica.own_address import Endpoint, open_endpoint
from tianzhou.broker.replica.registration import NameTaken, Registration
from tianzhou.broker.replica.standalone import Standalone
from tianzhou.broker.role import RoleState
from tianzhou.broker.router import FrameRouter
from tianzhou.broker.slice import Watch
from tianzhou.broker.wiring import Slices, attach, build, route
from tianzhou.net.acceptor import bind
from tianzhou.net.rearm import rearm
from tianzhou.net.server import Server
from tianzhou.net.server_connection import Service
from tianzhou.record.ids import Host, encode_host
from tianzhou.store.derive import Malformed
from tianzhou.store.errors import DiskFull
from tianzhou.store.store import MessageStore

if TYPE_CHECKING:
    from tianzhou.broker.observe.metrics_page import MetricsPage

log: Final = logging.getLogger("tianzhou.broker")

TICK_S: Final = 0.1
"""The precision of held pulls, delays and timers."""
MORE_S: Final = 0.01
"""The pause between two slices of unfinished work, in which the loop serves clients."""
SECOND_TICKS: Final = 10
STALL_S: Final = 1.0
"""A loop that is blocked this long is logged: clients time out after three seconds."""


class Ticker:
    """Runs the background work of a broker ten times a second, again soon while more is due, and
    measures how late the loop is. Owner: the event loop."""

    def __init__(
        self, clock: Clock, *, work: Callable[[], bool], second: Callable[[], None]
    ) -> None:
        """`work` returns whether more is due; `second` is called once a second."""
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._work = work
        self._second = second
        self.delays = Histogram()
        self._count = 0
        self._due_s = 0.0
        self._next: asyncio.TimerHandle | None = None
        self._more: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._due_s = self._clock.monotonic_s() + TICK_S
        self._next = rearm(self._loop, TICK_S, self._tick)

    def stop(self) -> None:
        for handle in (self._next, self._more):
            if handle is not None:
                handle.cancel()

    def _tick(self) -> None:
        try:
            self._note_delay()
        finally:
            self.start()
        self._count += 1
        self._work_and_more()
        if self._count % SECOND_TICKS == 0:
            self._second()

    def _note_delay(self) -> None:
        """Measure how late the tick is: all clients waited that long for the loop."""
        delay_s = max(0.0, self._clock.monotonic_s() - self._due_s)
        self.delays.add(delay_s)
        if delay_s >= STALL_S:
            log.warning("loop.stalled", extra={"seconds": round(delay_s, 3)})

    def _work_and_more(self) -> None:
        if self._more is not None:
            self._more.cancel()
        self._more = None
        if self._work():
            self._more = self._loop.call_later(MORE_S, self._work_and_more)


class Background:
    """The work of a broker besides requests, in its order. Owner: the event loop."""

    def __init__(self, slices: Slices, mode: Mode, on_fenced: Callable[[str], None]) -> None:
        """`on_fenced` is called once, with the reason, when the store is fenced."""
        self._slices = slices
        self._mode = mode
        self._services = slices.services
        self._watches = slices.watches
        self._on_fenced: Callable[[str], None] | None = on_fenced
        self._saved_s = slices.base.clock.monotonic_s()

    def running(self) -> tuple[Watch, ...]:
        """The services of the present role: only the master delivers messages."""
        services = self._services if self._mode.role_state.is_master else ()
        return (*services, *self._watches)

    def work(self) -> bool:
        """Do the work that is due, as much as one tick may take; returns whether more is due."""
        slices, is_more = self._slices, False
        store, writer = slices.base.store, slices.base.writer
        if store.is_broken and self._on_fenced is not None:
            on_fenced, self._on_fenced = self._on_fenced, None
            slices.observe.alarm_log.check()
            on_fenced(store.broken_reason)
        self._kept_going(slices.fetch.pull.tick)
        if not store.is_broken:
            self._kept_going(store.advance)
            for service in self.running():
                is_more |= self._kept_going(service.tick)
            self._kept_going(self._mode.tick)
        self._kept_going(writer.tick)
        self._kept_going(writer.settle)
        return is_more

    def second(self) -> None:
        """Do the work of once a second."""
        slices, store = self._slices, self._slices.base.store
        config, now_s = slices.observe.runtime_config.config, slices.base.clock.monotonic_s()
        self._kept_going(slices.groups.clients.expire)
        self._kept_going(self._mode.second)
        if now_s - self._saved_s >= config.offsets_save_ms / 1000:
            self._saved_s = now_s
            offsets, is_committed = slices.groups.tables.offsets, self._mode.replicates_tables
            self._kept_going(offsets.save if is_committed else offsets.save_later)
        if not store.is_broken:
            self._kept_going(store.maintain)
        self._kept_going(slices.observe.alarm_log.check)

    def catch_up(self) -> None:
        """Do everything that is due now, retention included, however long it takes."""
        store, is_more = self._slices.base.store, True
        while is_more and not store.is_broken:
            end = store.log.end
            is_more = self.work()
            if store.log.end > end:
                # A delivered message becomes visible, and due, once it is durable.
                store.flush()
                self._slices.base.writer.settle()
                is_more = True
        if not store.is_broken:
            self._kept_going(lambda: bool(store.clean(wait=True)))
            self._kept_going(self._slices.groups.tables.offsets.save)

    def finish(self) -> None:
        """Save the progress of all services, and the offsets: the broker stops."""
        for service in self.running():
            service.finish()
        self._slices.groups.tables.offsets.save()

    def _kept_going(self, step: Callable[[], bool | None]) -> bool:
        """Run one part of a tick. A part that fails because the disk is full or memory is short
        runs again in the next tick and does not prevent the other parts from running."""
        try:
            return bool(step())
        except DiskFull as error:
            log.warning("progress.not_saved", extra={"reason": str(error)})
        except MemoryError:
            with contextlib.suppress(MemoryError):
                name = getattr(step, "__qualname__", "")
                log.exception("tick.out_of_memory", extra={"step": name})
        return False


class Monitor:
    """What supervisors and monitoring see of a broker. Owner: the event loop."""

    def __init__(
        self, health: Health, metrics: list[Metric], monotonic_s: Callable[[], float]
    ) -> None:
        self.health = health
        self.metrics = metrics
        self._monotonic_s = monotonic_s
        self._page: MetricsPage | None = None

    async def page(self) -> bytes:
        """All metrics, as text for Prometheus."""
        if self._page is None:
            from tianzhou.broker.observe.metrics_page import MetricsPage

            self._page = MetricsPage(self.metrics, self._monotonic_s)
        for _ in self._page.steps():
            await asyncio.sleep(0)  # let the loop serve clients first
        return self._page.text


class Broker:
    """A broker: a store, the slices around it, and the mode that connects it to its group.

    Owner: the event loop.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        mode: Mode | None = None,
        *,
        endpoint: Endpoint | None = None,
        on_fenced: Callable[[str], None] | None = None,
        around: Callable[[Service], Service] = lambda service: service,
    ) -> None:
        """Bind the port, unless `endpoint` is given, and build the broker; without `mode` it is
        standalone. `on_fenced` is called once, with the reason, when the store is fenced. `around`
        wraps the service, for tests."""
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._endpoint = endpoint or open_endpoint(config)
        self.mode: Mode = mode or Standalone(config.name, store)
        host = encode_host(Host(_numeric(self._endpoint.host), self._endpoint.port))
        self.slices: Slices = build(config, store, clock, self.mode, store_host=host)
        self.requests: FrameRouter = route(self.slices, run_later=self._loop.call_soon)
        self._server = Server(around(self.requests))
        topics, alarms = self.slices.topics, self.slices.base.alarms
        self._registration = Registration(
            config, topics.topics, topics.permission, self.mode, address=self.address, clock=clock
        )
        attach(self.mode, self.slices, nameservers=self._registration, address=self.address)
        alarms.add(self._registration.alarms)
        self.slices.observe.runtime_config.adopt.append(self._registration.adopt)
        self._background = Background(self.slices, self.mode, on_fenced or _ignore)
        self._ticker = Ticker(clock, work=self._background.work, second=self._background.second)
        health = Health(
            config.name,
            store,
            topics.permission,
            self._registration.missing,
            lambda: len(self._registration.servers),
            alarms.current,
        )
        metrics = [*self.slices.metrics, *self._declare_metrics()]
        self.monitor = Monitor(health, metrics, clock.monotonic_s)

    @property
    def address(self) -> str:
        """Where clients reach this broker: `host:port`."""
        return self._endpoint.address

    @property
    def port(self) -> int:
        return self._endpoint.port

    @property
    def nameservers(self) -> str:
        """The NameServers as configured; the list can change while the broker runs."""
        return self.slices.observe.runtime_config.config.nameservers

    @property
    def role_state(self) -> RoleState:
        return self.mode.role_state

    def _declare_metrics(self) -> list[Metric]:
        server, registration, router = self._server, self._registration, self.requests.router
        return [
            counter(
                "requests_failed",
                "Requests that ended in an internal error of the broker",
                lambda: router.failed_count,
            ),
            gauge("connections", "Open connections", lambda: len(server.connections)),
            counter(
                "connections_refused",
                "Connections closed because the limit was reached",
                lambda: server.refused_count,
            ),
            counter(
                "connections_expired",
                "Connections closed because no valid frame arrived in time",
                lambda: server.expired_count,
            ),
            counter(
                "connections_broken",
                "Connections closed because of an invalid frame",
                lambda: server.broken_count,
            ),
            histogram(
                "loop_delay_seconds",
                "Delay of a timer that fires ten times a second",
                self._ticker.delays,
            ),
            gauges(
                "broker_missing_since_seconds",
                "Unix time at which another broker of the cluster disappeared",
                ("broker",),
                lambda: (
                    ((name,), since_ms / 1000)
                    for name, since_ms in sorted(registration.missing_brokers().items())
                ),
            ),
        ]

    async def start(self) -> None:
        """Raises NameTaken, and has closed everything, if another broker has its name."""
        try:
            await self._start()
        except NameTaken:
            await self.close()
            self._endpoint.bound.close()
            raise

    async def _start(self) -> None:
        log_recovery(self._store)
        self._store.report_damage(
            on_damage=self._found_damage,
            on_malformed=self._found_malformed,
            on_index_damage=self._found_index_damage,
        )
        self._store.start(self._on_flushed)
        # Before clients can connect: NameServers report whether this master was replaced while it
        # was down, and then it must not accept messages.
        ha_address = await self.mode.join(self.address.rpartition(":")[0], self.port)
        if ha_address is not None:
            await self._registration.claim_name(ha_address)
        self._server.listen(self._endpoint.bound)
        config = self.slices.base.config
        if config.vip_port and config.port > 2:
            self._listen_vip(config.host)
        await self._registration.start()
        # Log the findings of the start before announcing readiness.
        self.slices.observe.alarm_log.check()
        self._ticker.start()
        await self.mode.start()

    def unregistered(self) -> dict[str, str]:
        """The reason for each NameServer if none of them lists this broker; else empty."""
        missing = self._registration.missing()
        return missing if len(missing) == len(self._registration.servers) else {}

    async def register(self) -> None:
        """Register every topic with the NameServers now."""
        await self._registration.register()

    def _listen_vip(self, host: str) -> None:
        try:
            bound = bind(host, self.port - 2)
        except OSError as error:
            log.info("vip_port.busy", extra={"port": self.port - 2, "reason": str(error)})
            return
        self._server.listen(bound)

    async def close(self) -> None:
        """Stop accepting, answer pending requests, unregister, save, flush."""
        await self.mode.leave()
        self._server.stop_listening()
        self._ticker.stop()
        await self._registration.close()
        await self.mode.close()
        if not self._store.is_broken:
            self._store.flush()
            self.slices.base.writer.settle()
        await self._server.close()
        try:
            self._background.finish()
        finally:
            # A full disk may prevent progress from being saved; close the log nevertheless.
            self._store.close()

    def abort(self) -> None:
        """Stop as a killed process does: answer, flush, save and unregister nothing."""
        self._ticker.stop()
        self._registration.abort()
        self.mode.abort()
        self._server.abort()
        self._store.abandon()

    # For supervisors and monitoring, called in the loop

    async def metrics(self) -> bytes:
        """All metrics, as text for Prometheus."""
        return await self.monitor.page()

    def health(self) -> tuple[int, bytes]:
        """An HTTP status and JSON: whether a restart is needed."""
        return self.monitor.health.live()

    def readiness(self) -> tuple[int, bytes]:
        """An HTTP status and JSON: whether clients can use this broker, and why not."""
        return self.monitor.health.ready()

    def events(self) -> list[Finding]:
        """Findings of the watchdog: present ones, then recent ones."""
        return self.slices.observe.watchdog.events()

    def catch_up(self) -> None:
        """Do everything that is due now, for tests that move the clock and do not wait for the next
        tick."""
        self._background.catch_up()

    # The store calls

    def _found_damage(self, offset: int) -> None:
        self._log_damage(offset)
        self.mode.on_damage(PhysicalOffset(offset))

    def _log_damage(self, offset: int) -> None:
        log.error(
            "record.damaged",
            extra={
                "offset": offset,
                "remedy": "it is not what was written and is not delivered: tianzhou store verify",
            },
        )

    def _found_index_damage(self, path: str, reason: str) -> None:
        log.error(
            "index.damaged",
            extra={
                "path": path,
                "reason": reason,
                "remedy": "queries by key miss the messages of this index file; to rebuild the "
                "index from the log, stop the broker, delete its index directory and start it",
            },
        )

    def _found_malformed(self, record: Malformed) -> None:
        log.error(
            "record.malformed",
            extra={
                "offset": record.offset,
                "reason": record.reason,
                "remedy": "the record is stored but not delivered, and no replica has a better "
                "copy; tianzhou store verify shows the place; please report it as a bug",
            },
        )

    def _on_flushed(self) -> None:
        """Called by the flush thread."""
        self._loop.call_soon_threadsafe(self._flushed)

    def _flushed(self) -> None:
        self.mode.on_flushed()
        self.slices.base.writer.settle()


def _ignore(_reason: str) -> None:
    """A fenced store is in the log and in the alarms; nothing else depends on it."""


def _numeric(host: str) -> str:
    """An address for records; names are not stored in them."""
    return host if host.replace(".", "").isdigit() or ":" in host else "127.0.0.1"
