"""The broker as a server: the only async file here. It listens, ticks, and stops in order."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tianzhou.base.clock import Clock
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.observe.findings import Finding
from tianzhou.broker.observe.health import Health
from tianzhou.broker.observe.start_log import log_recovery
from tianzhou.broker.replica.master_slave import Host as GroupHost
from tianzhou.broker.replica.master_slave import MasterSlave
from tianzhou.broker.replica.own_address import own_host, with_port
from tianzhou.broker.replica.registration import NameTaken, Registration
from tianzhou.broker.replica.role_change import begin_as_master, end_as_master
from tianzhou.broker.role import Role, RoleState
from tianzhou.broker.slice import Watch
from tianzhou.broker.wiring import Parts, assemble
from tianzhou.net.rearm import rearm
from tianzhou.net.server import Server, bind
from tianzhou.net.server_connection import ServerConnection, Service
from tianzhou.record.ids import Host, encode_host
from tianzhou.replication.config import ReplicationConfig
from tianzhou.replication.durability import durability_of
from tianzhou.store.derive_record import Malformed
from tianzhou.store.errors import DiskFull
from tianzhou.store.store import MessageStore
from tianzhou.wire.frame import FrameBatch
from tianzhou.wire.names import MASTER_ID

if TYPE_CHECKING:
    from tianzhou.broker.observe.metrics import Metrics

log: Final = logging.getLogger("tianzhou.broker")

TICK_S: Final = 0.1
"""How exact held pulls, delays and timers are."""
MORE_S: Final = 0.01
"""The pause between two slices of unfinished work, in which the loop serves clients."""
SECOND_TICKS: Final = 10
STALL_S: Final = 1.0
"""A loop that stands for so long is worth a line in the log: clients time out after three."""


class Broker:
    """Owner: the event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        *,
        role_state: RoleState | None = None,
        replication: ReplicationConfig | None = None,
        around: Callable[[Service], Service] = lambda service: service,
    ) -> None:
        """A master by itself; with `replication`, master or slave of its group. Whoever else
        manages a group gives a `role_state`, sets `durability.replicas`, `store.visible_bound` and
        calls `take_role`. `around` may put something between connections
        and the broker: tests do."""
        self._config = config
        self._store = store
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._bound = bind(config.host, config.port)
        self.port: int = self._bound.getsockname()[1]
        host = own_host(config)
        self.address = with_port(host, self.port)
        self.group = MasterSlave(config, replication, store, clock) if replication else None
        if self.group is not None:
            role_state = self.group.role_state
        self.role_state = role_state or RoleState(config.name, Role.MASTER, MASTER_ID)
        self.durability = durability_of(store)
        self.parts: Parts = assemble(
            config, store, clock,
            store_host=encode_host(Host(_numeric(host), self.port)), monotonic_s=clock.monotonic_s,
            role_state=self.role_state, durability=self.durability,
        )  # fmt: skip
        if self.group is not None:
            self.group.attach(GroupHost(self.parts, self.durability, self._take_role, self.address))
        if self.role_state.is_master:
            begin_as_master(self.parts, store)
        else:
            store.stop_writing()
        self.parts.requests.router.run_later = self._loop.call_soon
        self._server = Server(around(self))
        self.parts.runtime_config.adopt.append(self._adopt)
        self._registration = Registration(
            config, self.parts.topics, self.parts.permission, self.role_state,
            address=self.address, is_explicit=bool(config.address), clock=clock, group=self.group,
        )  # fmt: skip
        self.parts.alarms.add(self._registration.alarms)
        self.parts.metric_sources.missing_brokers = self._registration.missing_brokers
        self._metrics: Metrics | None = None
        self._health = Health(
            config.name, store, self.parts.permission,
            self._registration.missing, len(self._registration.servers),
            self.parts.alarms.current,
        )  # fmt: skip
        self.parts.metric_sources.counts |= {
            "connections": lambda: len(self._server.connections),
            "connections_refused": lambda: self._server.refused_count,
            "connections_expired": lambda: self._server.expired_count,
            "connections_broken": lambda: self._server.broken_count,
        }
        self.on_flushed: list[Callable[[], None]] = []
        """Called after every sync of the log, before answers are released."""
        self.on_fenced: Callable[[str], None] = lambda _reason: None
        """Called once, with the reason, when the store is fenced."""
        self._is_fenced = False
        self._is_settling = False
        self._ticks = 0
        self._tick_due_s = 0.0
        self._ticker: asyncio.TimerHandle | None = None
        self._more: asyncio.TimerHandle | None = None
        self._saved_s = clock.monotonic_s()

    def _adopt(self, config: BrokerConfig) -> None:
        self._config = config

    async def start(self) -> None:
        """Raises NameTaken, and has closed everything, if another broker has its name."""
        try:
            await self._start()
        except NameTaken:
            await self.close()
            self._bound.close()
            raise

    async def _start(self) -> None:
        log_recovery(self._store)
        self._store.on_damage = self._found_damage
        self._store.on_malformed = self._found_malformed
        if self._store.index is not None:
            self._store.index.on_damage = self._found_index_damage
        self._store.start(self._on_flushed)
        if self.group is not None:
            await self._join_group(self.group)
        self._server.listen(self._bound)
        if self._config.vip_port and self._config.port > 2:
            self._listen_vip()
        await self._registration.start()
        self.parts.alarm_log.check()  # log the findings of the start before announcing readiness
        self._wait_for_tick()

    async def _join_group(self, group: MasterSlave) -> None:
        """Before clients come: a master that was replaced while it was away must not take their
        messages, so name servers are told of it first, and answer if there is a later one."""
        bound = group.bind(self._config.host, self.port)
        await group.start(bound, self.address.rpartition(":")[0])
        self._registration.ha_address = group.ha_address
        await self._registration.claim_name()

    def _take_role(self, role: Role, broker_id: int, epoch: int) -> None:
        self.take_role(role, broker_id=broker_id, epoch=epoch)

    def take_role(self, role: Role, *, broker_id: int, epoch: int) -> None:
        """Become the master or a slave, now; name servers are told next.

        A new master must know that all its log is to stay: it is dispatched to its end here, so
        `store.visible_bound` must have come there. A slave refuses messages from now on, and
        answers those whose senders wait with `Outcome.NOT_MASTER`; what it had that the new master
        does not have is for the caller to `truncate`. Consumers are served all the time.
        """
        if role is Role.MASTER and not self.role_state.is_master:
            begin_as_master(self.parts, self._store)
        elif role is Role.SLAVE and self.role_state.is_master:
            end_as_master(self.parts, self._store)
        self.role_state.take(role, broker_id, epoch)
        log.info("role.taken", extra={"role": role.value, "id": broker_id, "epoch": epoch})

    def unregistered(self) -> dict[str, str]:
        """The reason for each NameServer if none of them lists this broker; else empty."""
        missing = self._registration.missing()
        return missing if len(missing) == len(self._registration.servers) else {}

    async def register(self) -> None:
        """Let name servers know of every topic now, not in a moment."""
        await self._registration.register()

    def _listen_vip(self) -> None:
        try:
            bound = bind(self._config.host, self.port - 2)
        except OSError as error:
            log.info("vip_port.busy", extra={"port": self.port - 2, "reason": str(error)})
            return
        self._server.listen(bound)

    async def close(self) -> None:
        """Stop accepting, answer what is in hand, unregister, save, flush."""
        self._server.stop_listening()
        self._stop_ticking()
        await self._registration.close()
        if self.group is not None:
            await self.group.close()
        if not self._store.is_broken:
            self._store.flush()
            self.parts.writer.settle()
        await self._server.close()
        try:
            for service in self._running():
                service.finish()
            self.parts.offsets.save()
        finally:
            # A full disk may keep progress from being saved; the log is closed all the same.
            self._store.close()

    def abort(self) -> None:
        """Stop as a killed process does: nothing is answered, flushed, saved or unregistered."""
        self._stop_ticking()
        self._registration.abort()
        if self.group is not None:
            self.group.abort()
        self._server.abort()
        self._store.abandon()

    # What supervisors and monitoring ask, from within the loop

    async def metrics(self) -> bytes:
        """All metrics, as text for Prometheus."""
        if self._metrics is None:
            from tianzhou.broker.observe.metrics import Metrics

            self._metrics = Metrics(self.parts.metric_sources)
        for _ in self._metrics.steps():
            await asyncio.sleep(0)  # let the loop serve clients first
        return self._metrics.text

    def health(self) -> tuple[int, bytes]:
        """A status of HTTP and JSON: whether a restart is needed."""
        return self._health.live()

    def readiness(self) -> tuple[int, bytes]:
        """A status of HTTP and JSON: whether clients can work with this broker, and why not."""
        return self._health.ready()

    def events(self) -> list[Finding]:
        """What stands still now, then what did lately."""
        return self.parts.watchdog.events()

    # Service

    def opened(self, connection: ServerConnection) -> None:
        pass

    def received(self, connection: ServerConnection, batch: FrameBatch) -> None:
        try:
            self.parts.requests.received(connection, batch)
        finally:
            # Once for all connections that are read in this round: dispatch likes large slices.
            if not self._is_settling:
                self._loop.call_soon(self._settle)
                self._is_settling = True  # set last: scheduling the call may raise MemoryError

    def closed(self, connection: ServerConnection) -> None:
        self.parts.clients.gone(connection)

    def _settle(self) -> None:
        self._is_settling = False
        self.parts.writer.settle()

    def _found_damage(self, offset: int) -> None:
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
        for tell in self.on_flushed:
            tell()
        self.parts.writer.settle()

    def _wait_for_tick(self) -> None:
        self._tick_due_s = self._clock.monotonic_s() + TICK_S
        self._ticker = rearm(self._loop, TICK_S, self._tick)

    def _note_delay(self) -> None:
        """The tick is the heartbeat of the loop: what made it late made everybody wait."""
        delay_s = max(0.0, self._clock.monotonic_s() - self._tick_due_s)
        self.parts.metric_sources.loop_delays.add(delay_s)
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
            self.on_fenced(self._store.broken_reason)
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
        """What is due, as much as one tick may take; whether that was not all."""
        parts, is_more = self.parts, False
        self._kept_going(parts.pull.tick)
        if not self._store.is_broken:
            self._kept_going(self._store.advance)
            for service in self._running():
                is_more |= self._kept_going(service.tick)
        self._kept_going(parts.writer.tick)
        self._kept_going(parts.writer.settle)
        return is_more

    def _running(self) -> tuple[Watch, ...]:
        """What goes on without being asked: delivering messages is for the master alone."""
        services = self.parts.services if self.role_state.is_master else ()
        return (*services, *self.parts.watches)

    def catch_up(self) -> None:
        """Do everything that is due now, retention included, however long it takes: for whoever
        moves the clock, which does not wait for the next tick."""
        is_more = True
        while is_more and not self._store.is_broken:
            end = self._store.log.end
            is_more = self._slice()
            if self._store.log.end > end:
                # What was delivered may be due, or seen, only once it is as safe as promised.
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
        if self.group is not None:
            self._kept_going(self.group.tick)
        if now_s - self._saved_s >= self._config.offsets_save_ms / 1000:
            self._saved_s = now_s
            is_raft, offsets = parts.removal.is_replicated, parts.offsets
            self._kept_going(offsets.save if is_raft else offsets.save_later)
        if not self._store.is_broken:
            self._kept_going(self._store.maintain)
        self._kept_going(parts.alarm_log.check)


def _numeric(host: str) -> str:
    """An address for records; names are not stored in them."""
    return host if host.replace(".", "").isdigit() or ":" in host else "127.0.0.1"
