"""The NameServer as a service: connections, requests and periodic scans.

    server = NameServer(NameServerConfig(), clock)
    port = await server.start()
    ...
    await server.close()

Only this file and `memory.py` use the event loop and the log.
"""

import asyncio
import logging
from dataclasses import replace
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.nameserver.brokers import Lost
from tianzhou.nameserver.config import NameServerConfig
from tianzhou.nameserver.handlers import handlers_of
from tianzhou.nameserver.memory import Memory
from tianzhou.nameserver.missing import MissingBrokers
from tianzhou.nameserver.routes import RouteTable
from tianzhou.nameserver.state import State
from tianzhou.net.acceptor import bind
from tianzhou.net.limits import NAMESERVER_PORT
from tianzhou.net.rearm import rearm
from tianzhou.net.router import RequestRouter
from tianzhou.net.server import Server
from tianzhou.net.server_connection import ServerConnection
from tianzhou.store.files import RealFiles
from tianzhou.wire.frame import FrameBatch

log: Final = logging.getLogger("tianzhou.nameserver")


class NameServer:
    """A NameServer. Owner: the event loop in which it is created, started and closed."""

    def __init__(self, config: NameServerConfig, clock: Clock) -> None:
        self._state = State(clock=clock, config=config, note=_log_event)
        self._router = RequestRouter(handlers_of(self._state))
        self._server: Server | None = None
        self._scanner: asyncio.TimerHandle | None = None
        self._is_closing = False
        self._memory: Memory | None = None
        if config.data_dir:
            self._memory = Memory(
                RealFiles(),
                config.data_dir,
                missing=self.missing,
                epochs=self.routes.epochs,
                routes=self.routes,
            )

    @property
    def config(self) -> NameServerConfig:
        """The current settings: some can be changed by request."""
        return self._state.config

    @property
    def routes(self) -> RouteTable:
        return self._state.routes

    @property
    def missing(self) -> MissingBrokers:
        return self._state.missing

    async def start(self, host: str | None = None, port: int | None = None) -> int:
        """Listen on the address from the settings, or on the one given. Returns the port."""
        assert self._server is None, "a NameServer is started only once"
        config = self.config
        port_limits = replace(NAMESERVER_PORT, connections_max=config.connections_max)
        self._server = Server(self, port=port_limits)
        bound = bind(
            host if host is not None else config.bind_address,
            port if port is not None else config.listen_port,
        )
        if self._memory is not None:
            self._memory.load(self._state.clock.now_ms())
        self._server.listen(bound)
        self._scan_later()
        return bound.getsockname()[1]

    async def close(self) -> None:
        """Stop listening, send queued responses and close all connections."""
        self._is_closing = True
        if self._scanner is not None:
            self._scanner.cancel()
        if self._server is not None:
            await self._server.close()
        if self._memory is not None:
            await self._memory.close()

    def scan(self) -> None:
        """Remove brokers that were silent too long, and report those that did not return as
        missing."""
        for row in self.missing.overdue(self._state.clock.now_ms()):
            log.warning(
                "broker.not_back",
                extra={
                    "broker": row.name,
                    "id": row.broker_id,
                    "address": row.address,
                    "remedy": f"start it; if it was retired: tianzhou broker forget {row.name}",
                },
            )
        for lost in self.routes.evict(self._state.clock.monotonic_s()):
            log.warning("broker.expired", extra=self._lost(lost, "expired"))
            member = lost.member
            # A connection that other live brokers use stays open.
            if isinstance(member.connection, ServerConnection) and not self.routes.has_link(
                member.connection
            ):
                member.connection.close()

    def _scan_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._scanner = rearm(loop, self.config.scan_interval_ms / 1000, self._scan_again)

    def _scan_again(self) -> None:
        try:
            self.scan()
            if self._memory is not None:
                self._memory.note_topics()
            self._remember()
        finally:
            self._scan_later()

    # Service, seen by the server

    def opened(self, connection: ServerConnection) -> None:
        pass

    def received(self, connection: ServerConnection, batch: FrameBatch) -> None:
        for index in range(batch.count):
            if connection.has_enough:
                connection.leave(batch, index)
                break
            self._router.frame(connection, batch, index)
        self._remember()

    def closed(self, connection: ServerConnection) -> None:
        if self._is_closing:
            return  # the NameServer is stopping; the brokers are still alive
        for lost in self.routes.closed(connection):
            log.warning("broker.disconnected", extra=self._lost(lost, "disconnected"))
        self._remember()

    def _remember(self) -> None:
        if self._memory is not None:
            self._memory.save_soon()

    def _lost(self, lost: Lost, reason: str) -> dict[str, object]:
        """Record a missing broker; returns the fields of its log line."""
        self._state.missing.lost(lost, reason, self._state.clock.now_ms())
        return {
            "broker": lost.name,
            "id": lost.broker_id,
            "address": lost.member.address,
            "topics": len(lost.rows),
            "remedy": f"start it; if it was retired: tianzhou broker forget {lost.name}",
        }


def _log_event(event: str, facts: dict[str, str]) -> None:
    level = logging.WARNING if event.endswith(".refused") else logging.INFO
    log.log(level, event, extra=facts)
