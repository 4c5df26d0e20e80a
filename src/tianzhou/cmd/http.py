"""HTTP in a broker's process: the dashboard, metrics and health, on the broker's event loop.

The port is bound at once, so that the ready file names it. The application is loaded only when the
broker serves: messages do not wait for it, and an early browser waits in the backlog.
"""

import asyncio
import errno
import functools
import importlib
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import click
from click.core import ParameterSource

import tianzhou
from tianzhou.base.clock import Clock
from tianzhou.base.errors import UsageError
from tianzhou.cmd import logs
from tianzhou.net.acceptor import Acceptor, CannotListen, bind_and_queue
from tianzhou.net.limits import HTTP_PORT

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

    from tianzhou.dashboard.page_context import PageContext

log: Final = logging.getLogger("tianzhou.http")

PORT: Final = 8080
PORT_RANGE: Final = click.IntRange(0, 65_535)
"""Valid ports on a command line; larger numbers would silently wrap around."""
PASSWORD_FILE: Final = "dashboard-password"
RETRY_S: Final = 5.0
"""The pause before retrying to load a dashboard that failed for lack of memory."""
SWITCH_S: Final = 0.0005
"""How long the thread that loads the dashboard may keep the interpreter from the event loop."""
PORTS_TRIED: Final = 20
"""How many ports are tried, from the default one on, before any free port is used."""


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The HTTP options of the command line."""

    host: str = "127.0.0.1"
    port: int | None = PORT
    """None: no HTTP."""
    is_chosen: bool = False
    """Whether the user chose this port."""
    names: tuple[str, ...] = ()

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class Answers(Protocol):
    """Responses for programs: metrics, health and readiness."""

    async def metrics(self) -> bytes: ...
    def health(self) -> tuple[int, bytes]: ...
    def readiness(self) -> tuple[int, bytes]: ...


def options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the HTTP options; the command gets one argument, `http`."""

    @functools.wraps(command)
    def called(
        *args: object,
        http_port: int,
        http_host: str,
        http_name: tuple[str, ...],
        no_http: bool,
        **kwargs: object,
    ) -> None:
        source = click.get_current_context().get_parameter_source("http_port")
        chosen = HttpOptions(
            host=http_host,
            port=None if no_http else http_port,
            is_chosen=source is not ParameterSource.DEFAULT,
            names=http_name,
        )
        command(*args, http=chosen, **kwargs)

    added = (
        click.option("--no-http", is_flag=True, help="Disable the dashboard, metrics and health."),
        click.option(
            "--http-name",
            multiple=True,
            metavar="NAME",
            help="Accept this host name in addition to the address and name of this machine.",
        ),
        click.option(
            "--http-host",
            default="127.0.0.1",
            show_default=True,
            metavar="ADDRESS",
            help="Serve dashboard and metrics on this address; all but loopback require a login.",
        ),
        click.option(
            "--http-port",
            default=PORT,
            show_default=True,
            type=PORT_RANGE,
            help="Serve dashboard and metrics on this port; 0 for any free one.",
        ),
    )
    found: Callable[..., None] = called
    for option in added:
        found = option(found)
    return found


class HttpServer:
    """Owner: the event loop."""

    def __init__(
        self,
        chosen: HttpOptions,
        bound: socket.socket,
        load: "Callable[[], tuple[ASGIApp, PageContext]]",
    ) -> None:
        self._bound = bound
        self._load = load
        self._context: PageContext | None = None
        self._server: uvicorn.Server | None = None
        self._acceptor: Acceptor | None = None
        host = chosen.host if chosen.host not in ("", "0.0.0.0") else "127.0.0.1"
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{bound.getsockname()[1]}"
        self._loading = asyncio.get_running_loop().create_task(self._start())

    async def _start(self) -> None:
        while self._acceptor is None:
            try:
                await self._load_and_listen()
            except (MemoryError, ImportError) as error:
                # An import that lacks memory to map a shared library raises ImportError.
                reason = str(error) or "out of memory"
                log.exception("http.not_loaded", extra={"reason": reason, "retry_s": RETRY_S})
                await asyncio.sleep(RETRY_S)

    async def _load_and_listen(self) -> None:
        with _giving_way():
            app, self._context = await asyncio.to_thread(self._load)
            await asyncio.to_thread(importlib.import_module, "tianzhou.cmd.http_protocol")
        from tianzhou.cmd.http_protocol import PatientProtocol, server_of

        server = self._server = server_of(app)
        await server.startup(sockets=[])
        self._acceptor = Acceptor(HTTP_PORT, lambda slot: PatientProtocol(server, slot))
        self._acceptor.listen(self._bound)

    async def close(self) -> None:
        if not self._loading.done():
            self._loading.cancel()
        await asyncio.gather(self._loading, return_exceptions=True)
        if self._context is not None:
            await self._context.close()
        if self._acceptor is not None:
            self._acceptor.close()
        if self._server is not None:
            await self._server.shutdown(sockets=[])
        self._bound.close()


def serve(
    chosen: HttpOptions,
    answers: Answers,
    clock: Clock,
    *,
    nameservers: Callable[[], str],
    data: Path,
    credentials: str = "",
) -> HttpServer | None:
    """Start HTTP once the broker serves. None if it is disabled."""
    bound = _bind(chosen)
    if bound is None:
        return None
    password = None if chosen.is_loopback else password_hash(data)

    def load() -> "tuple[ASGIApp, PageContext]":
        importlib.import_module(
            "tianzhou.broker.observe.metrics_page"
        )  # not in the loop, at the first scrape
        from tianzhou.client.options import ClientOptions
        from tianzhou.dashboard.access import Access
        from tianzhou.dashboard.app import create
        from tianzhou.dashboard.page_context import PageContext
        from tianzhou.wire.signing import Credentials

        context = PageContext(
            nameservers=nameservers,
            clock=clock,
            access=Access(password),
            version=tianzhou.__version__,
            metrics=answers.metrics,
            health=answers.health,
            readiness=answers.readiness,
            client=ClientOptions(credentials=Credentials.read(credentials)),
        )
        own = ("localhost", socket.gethostname(), chosen.host, *chosen.names)
        return create(context, own), context

    return HttpServer(chosen, bound, load)


@contextmanager
def _giving_way() -> Generator[None]:
    """Let a thread that imports give way to the event loop at once. The loop gives up the
    interpreter at every system call, several times for one request, and would wait for Python's own
    5 ms each time."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


def _bind(chosen: HttpOptions) -> socket.socket | None:
    """Bind the requested port, or by default the usual one or the next free one."""
    if chosen.port is None:
        return None
    if chosen.is_chosen or not chosen.port:
        try:
            return bind_and_queue(chosen.host, chosen.port)
        except CannotListen as error:
            raise UsageError(
                f"cannot listen on port {chosen.port} of {chosen.host} ({error.reason}); "
                "choose another --http-port, 0 for any, or pass --no-http"
            ) from None
    for port in (*range(chosen.port, chosen.port + PORTS_TRIED), 0):
        try:
            found = bind_and_queue(chosen.host, port)
        except CannotListen as error:
            if error.errno != errno.EADDRINUSE:
                raise UsageError(
                    f"cannot serve the dashboard on {chosen.host} ({error.reason}); "
                    "choose another --http-host, or pass --no-http"
                ) from None
        else:
            if port != chosen.port:
                taken = found.getsockname()[1]
                logs.say(
                    f"tianzhou: port {chosen.port} on {chosen.host} is in use; "
                    f"the dashboard is on port {taken}",
                    "http.busy",
                )
            return found
    raise AssertionError("port 0 always binds a free port")


def password_hash(data: Path) -> str:
    """The stored hash of the password, which the first start creates and prints."""
    path = data / PASSWORD_FILE
    if path.exists():
        return path.read_text(encoding="ascii").strip()
    from tianzhou.dashboard.access import hash_of, new_password

    password = new_password()
    kept = hash_of(password)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(kept + "\n")
    # Print it to the terminal only, never into a log file.
    click.echo(f"tianzhou: the dashboard password, shown only once: {password}", err=True)
    return kept
