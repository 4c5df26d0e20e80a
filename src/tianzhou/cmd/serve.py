"""Run servers until a signal stops them: the event loop, signals, announcements."""

import asyncio
import gc
import importlib
import ipaddress
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tianzhou.base.errors import UsageError
from tianzhou.cmd import logs
from tianzhou.cmd.ready_file import write
from tianzhou.net.limits import allow_files

if TYPE_CHECKING:
    from tianzhou.store.config import StoreConfig

CHECK_APPENDS: Final = "TIANZHOU_CHECK_APPENDS"
"""Tests set this variable to a module, because the product does not import the test kit. The
checker in that module examines every chunk before a server writes it, at a multiple of the usual
cost."""
GC_THRESHOLDS: Final = (50_000, 20, 50)
STOP_S: Final = 4.5
"""The limit for an orderly stop."""


class Running(Protocol):
    async def close(self) -> None: ...


def run(start: Callable[[], Awaitable[list[Running]]]) -> None:
    """Start, serve until SIGTERM or SIGINT, then stop in reverse order."""
    if checker := os.environ.get(CHECK_APPENDS):
        importlib.import_module(checker).install()
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(start))
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(start))


async def _serve(start: Callable[[], Awaitable[list[Running]]]) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    servers = await start()
    # Existing objects stay alive, so exclude them from collection; and collect less often, because
    # reference counts already free the short-lived tuples of the hot path.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    await stop.wait()
    limit = asyncio.timeout(STOP_S)
    try:
        async with limit:
            await close(servers)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise TimeoutError(
            f"not everything stopped within {STOP_S} s; the next start recovers"
        ) from error


async def close(servers: Sequence[Running]) -> None:
    """Stop them in reverse order."""
    for server in reversed(servers):
        await server.close()


OPEN_BROKER: Final = "read, write and delete messages"
OPEN_NAMES: Final = "register a broker and attract clients to it, unless cluster_credentials is set"
SIGNED_NAMES: Final = "read topic routes"


FENCED: Final = 70
"""Exit code of a broker whose disk failed. Restart it when the disk works."""
_LAST_WORDS_S: Final = 0.5


def end_fenced(reason: str) -> None:
    """Exit after a store failure: the content of the disk is unknown until recovery at the next
    start, so the broker must not look alive. Waiting senders get their responses first."""
    text = f"tianzhou: the store is fenced: {reason}; the process exits (exit_when_fenced)"
    logs.say(text, "broker.ends", level=logging.ERROR)
    asyncio.get_running_loop().call_later(_LAST_WORDS_S, os._exit, FENCED)


def warn_if_exposed(host: str, what: str, *can: str) -> None:
    """Warn if other machines can reach the server, and what they can do."""
    try:
        exposed = not ipaddress.ip_address(host).is_loopback
    except ValueError:
        exposed = host != "localhost"
    if exposed:
        logs.say(
            f"tianzhou: {what} on {host} is reachable from other machines without a password: "
            f"any client can {', and '.join(can)}",
            "server.exposed",
            level=logging.WARNING,
        )


def prepare(*, as_json: bool, log_file: Path | None) -> None:
    """Prepare the process of a server."""
    if sys.flags.optimize:  # assertions are part of how the store protects data
        raise SystemExit("tianzhou: do not run with -O: it removes checks that protect your data")
    os.umask(0o077)  # before the first file is created
    logs.set_up(as_json=as_json, file=log_file)
    allow_files()


def refuse_shared(directory: Path) -> None:
    """Reject a directory that others can write: they could change every message."""
    mode = directory.stat().st_mode if directory.exists() else 0
    if mode & 0o022:
        raise UsageError(
            f"{directory} is writable by other users (mode {mode & 0o777:o}); "
            f"run: chmod go-w {directory}"
        )


def with_absolute_paths(config: "StoreConfig") -> "StoreConfig":
    """Absolute paths of the store; `~` is the home directory."""
    from tianzhou.store.layout import PATH_SETTINGS

    given = {name: getattr(config, name) for name in PATH_SETTINGS}
    absolute = {
        name: str(Path(path).expanduser().resolve()) for name, path in given.items() if path
    }
    return replace(config, **absolute)


def store_directories(root: Path, config: "StoreConfig") -> list[Path]:
    """Every directory that the store writes to."""
    from tianzhou.store.layout import paths_of

    paths = paths_of(str(root), config)
    return [root, *map(Path, (paths.commit_log, paths.consume_queue, paths.index, paths.tables))]


def announce(text: str, ready_file: Path | None, facts: Mapping[str, object]) -> None:
    """Announce that all servers are ready, and write the ready file."""
    logs.say(f"{text}; press Ctrl-C to stop", "server.ready")
    if ready_file is not None:
        write(ready_file, facts)
