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
from tianzhou.broker.observe.findings import Finding
from tianzhou.broker.observe.health import Health, log_recovery
from tianzhou.broker.replica.mode import Host as ModeHost
from tianzhou.broker.replica.mode import Mode
from tianzhou.broker.replica.own_address import Endpoint, open_endpoint
from tianzhou.broker.replica.registration import NameTaken, Registration
from tianzhou.broker.replica.standalone import Standalone
from tianzhou.broker.role import RoleState
from tianzhou.broker.slice import Watch
from tianzhou.broker.wiring import Parts, assemble
from tianzhou.net.acceptor import bind
from tianzhou.net.rearm import rearm
from tianzhou.net.server import Server
from tianzhou.net.server_connection import ServerConnection, Service
from tianzhou.record.ids import Host, encode_host
from tianzhou.store.derive import Malformed
from tianzhou.store.errors import DiskFull
from tianzhou.store.store import MessageStore
from tianzhou.wire.frame import FrameBatch

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
        self._config = config
        self._store = store
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._endpoint = endpoint or open_endpoint(config)
        self.mode: Mode = mode or Standalone(config.name, store)
        self._on_fenced = on_fenced
        self.parts: Parts = assemble(
            config,
            store,
            clock,
            self.mode,
            store_host=encode_host(Host(_numeric(self._endpoint.host), self._endpoint.port)),
            run_later=self._loop.call_soon,
        )
        self._server = Server(around(self))
        self.parts.runtime_config.adopt.append(self._adopt)
        self._registration = Registration(
            config,
            self.parts.topics,
            self.parts.permission,
            self.mode,
            address=self.address,
            clock=clock,
        )
        self._attach_mode()
        self.parts.alarms.add(self._registration.alarms)
        self._metrics_page: MetricsPage | None = None
        self._loop_delays = Histogram()
        self._health = self._build_health()
        self.parts.metrics.extend(self._declare_metrics())
        self._is_fenced = False
        self._is_settling = False
        self._ticks = 0
        self._tick_due_s = 0.0
        self._ticker: asyncio.TimerHandle | None = None
        self._more: asyncio.TimerHandle | None = None
        self._saved_s = clock.monotonic_s()

    @property
    def address(self) -> str:
        """Where clients reach this broker: `host:port`."""
        return self._endpoint.address

    @property
    def port(self) -> int:
        return self._endpoint.port

    @property
    def role_state(self) -> RoleState:
        return self.mode.role_state

    def _attach_mode(self) -> None:
        parts = self.parts
        self.mode.attach(
            ModeHost(
                writer=parts.writer,
                topics=parts.topics,
                groups=parts.groups,
                offsets=parts.offsets,
                delays=parts.delays,
                timers=parts.timers,
                removal=parts.removal,
                services=parts.services,
                alarms=parts.alarms,
                nameservers=self._registration,
                on_raft_progress=parts.raft.progressed,
                address=self.address,
            )
        )

    def _build_health(self) -> Health:
        return Health(
            self._config.name,
            self._store,
            self.parts.permission,
            self._registration.missing,
            len(self._registration.servers),
            self.parts.alarms.current,
        )

    def _declare_metrics(self) -> list[Metric]:
        server, registration = self._server, self._registration
        return [
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
                self._loop_delays,
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

    def _adopt(self, config: BrokerConfig) -> None:
        self._config = config

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
        if self._config.vip_port and self._config.port > 2:
            self._listen_vip()
        await self._registration.start()
        self.parts.alarm_log.check()  # log the findings of the start before announcing readiness
        self._wait_for_tick()
        await self.mode.start()

    def unregistered(self) -> dict[str, str]:
        """The reason for each NameServer if none of them lists this broker; else empty."""
        missing = self._registration.missing()
        return missing if len(missing) == len(self._registration.servers) else {}

    async def register(self) -> None:
        """Register every topic with the NameServers now."""
        await self._registration.register()

    def _listen_vip(self) -> None:
        try:
            bound = bind(self._config.host, self.port - 2)
        except OSError as error:
            log.info("vip_port.busy", extra={"port": self.port - 2, "reason": str(error)})
            return
        self._server.listen(bound)

    async def close(self) -> None:
        """Stop accepting, answer pending requests, unregister, save, flush."""
        await self.mode.leave()
        self._server.stop_listening()
        self._stop_ticking()
        await self._registration.close()
        await self.mode.close()
        if not self._store.is_broken:
            self._store.flush()
            self.parts.writer.settle()
        await self._server.close()
        try:
            for service in self._running():
                service.finish()
            self.parts.offsets.save()
        finally:
            # A full disk may prevent progress from being saved; close the log nevertheless.
            self._store.close()

    def abort(self) -> None:
        """Stop as a killed process does: answer, flush, save and unregister nothing."""
        self._stop_ticking()
        self._registration.abort()
        self.mode.abort()
        self._server.abort()
        self._store.abandon()

    # For supervisors and monitoring, called in the loop

    async def metrics(self) -> bytes:
        """All metrics, as text for Prometheus."""
        if self._metrics_page is None:
            from tianzhou.broker.observe.metrics_page import MetricsPage

            self._metrics_page = MetricsPage(self.parts.metrics, self._clock.monotonic_s)
        for _ in self._metrics_page.steps():
            await asyncio.sleep(0)  # let the loop serve clients first
        return self._metrics_page.text

    def health(self) -> tuple[int, bytes]:
        """An HTTP status and JSON: whether a restart is needed."""
        return self._health.live()

    def readiness(self) -> tuple[int, bytes]:
        """An HTTP status and JSON: whether clients can use this broker, and why not."""
        return self._health.ready()

    def events(self) -> list[Finding]:
        """Findings of the watchdog: present ones, then recent ones."""
        return self.parts.watchdog.events()

    # Service

    def opened(self, connection: ServerConnection) -> None:
        pass

    def received(self, connection: ServerConnection, batch: FrameBatch) -> None:
        try:
            self.parts.requests.received(connection, batch)
        finally:
            # Once for all connections that are read in this round: large slices dispatch faster.
            if not self._is_settling:
                self._loop.call_soon(self._settle)
                self._is_settling = True  # set last: scheduling the call may raise MemoryError

    def closed(self, connection: ServerConnection) -> None:
        self.parts.clients.remove_client(connection)

    def _settle(self) -> None:
        self._is_settling = False
        self.parts.writer.settle()

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

    # Time

    def _on_flushed(self) -> None:
        """Called by the flush thread."""
        self._loop.call_soon_threadsafe(self._flushed)

    def _flushed(self) -> None:
        self.mode.on_flushed()
        self.parts.writer.settle()

    def _wait_for_tick(self) -> None:
        self._tick_due_s = self._clock.monotonic_s() + TICK_S
        self._ticker = rearm(self._loop, TICK_S, self._tick)

    def _note_delay(self) -> None:
        """Measure how late the tick is: all clients waited that long for the loop."""
        delay_s = max(0.0, self._clock.monotonic_s() - self._tick_due_s)
        self._loop_delays.add(delay_s)
        if delay_s >= STALL_S:
            log.warning("loop.stalled", extra={"seconds": round(delay_s, 3)})

    def _tick(self) -> None:
        try:
            self._note_delay()
        finally:
            self._wait_for_tick()
        if self._store.is_broken and not self._is_fenced:
            self._is_fenced = True
            self.parts.alarm_log.check()
            if self._on_fenced is not None:
                self._on_fenced(self._store.broken_reason)
        self._ticks += 1
        self._slice_and_more()
        if self._ticks % SECOND_TICKS == 0:
            self._second()

    def _slice_and_more(self) -> None:
        if self._more is not None:
            self._more.cancel()
        self._more = None
        if self._slice():
            self._more = self._loop.call_later(MORE_S, self._slice_and_more)

    def _stop_ticking(self) -> None:
        for handle in (self._ticker, self._more):
            if handle is not None:
                handle.cancel()

    def _slice(self) -> bool:
        """Do the work that is due, as much as one tick may take; returns whether more is due."""
        parts, is_more = self.parts, False
        self._kept_going(parts.pull.tick)
        if not self._store.is_broken:
            self._kept_going(self._store.advance)
            for service in self._running():
                is_more |= self._kept_going(service.tick)
            self._kept_going(self.mode.tick)
        self._kept_going(parts.writer.tick)
        self._kept_going(parts.writer.settle)
        return is_more

    def _running(self) -> tuple[Watch, ...]:
        """Background work of the present role: only the master delivers messages."""
        services = self.parts.services if self.role_state.is_master else ()
        return (*services, *self.parts.watches)

    def catch_up(self) -> None:
        """Do everything that is due now, retention included, however long it takes: for tests that
        move the clock and do not wait for the next tick."""
        is_more = True
        while is_more and not self._store.is_broken:
            end = self._store.log.end
            is_more = self._slice()
            if self._store.log.end > end:
                # A delivered message becomes visible, and due, once it is durable.
                self._store.flush()
                self.parts.writer.settle()
                is_more = True
        if not self._store.is_broken:
            self._kept_going(lambda: bool(self._store.clean(wait=True)))
            self._kept_going(self.parts.offsets.save)

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

    def _second(self) -> None:
        parts, now_s = self.parts, self._clock.monotonic_s()
        self._kept_going(parts.clients.expire)
        self._kept_going(self.mode.second)
        if now_s - self._saved_s >= self._config.offsets_save_ms / 1000:
            self._saved_s = now_s
            offsets, is_committed = parts.offsets, self.mode.replicates_tables
            self._kept_going(offsets.save if is_committed else offsets.save_later)
        if not self._store.is_broken:
            self._kept_going(self._store.maintain)
        self._kept_going(parts.alarm_log.check)


def _numeric(host: str) -> str:
    """An address for records; names are not stored in them."""
    return host if host.replace(".", "").isdigit() or ":" in host else "127.0.0.1"
