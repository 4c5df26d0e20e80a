"""The addresses behind host names of NameServers, asked again and again, because DNS may change."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterable
from typing import Final

from tianzhou.base.host_names import with_port

RESOLVE_S: Final = 3.0
"""How long to wait for DNS. A lookup that takes longer continues, and its result is used by the
next call."""

_Found = tuple[str, ...]


class Resolver:
    """Looks up each name in a thread, once at a time. The threads are not those of the event loop,
    for which the end of a program waits: DNS may not respond for half a minute.

    Owner: the event loop.
    """

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Future[_Found]] = {}

    async def addresses(self, names: Iterable[str]) -> dict[str, _Found]:
        """The addresses of each `host:port`; names that cannot be resolved now are left out."""
        lookups = {name: self._lookup(name) for name in names}
        if not lookups:
            return {}
        await asyncio.wait(lookups.values(), timeout=RESOLVE_S)
        found = {name: lookup.result() for name, lookup in lookups.items() if lookup.done()}
        return {name: addresses for name, addresses in found.items() if addresses}

    def _lookup(self, name: str) -> "asyncio.Future[_Found]":
        running = self._running.get(name)
        if running is None:
            loop = asyncio.get_running_loop()
            running = self._running[name] = loop.create_future()
            thread = threading.Thread(
                target=self._look_up, args=(name, loop), name="tianzhou-resolver", daemon=True
            )
            thread.start()
        return running

    def _look_up(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        found = addresses_of(name)
        with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime
            loop.call_soon_threadsafe(self._looked_up, name, found)

    def _looked_up(self, name: str, found: _Found) -> None:
        self._running.pop(name).set_result(found)


def addresses_of(name: str) -> _Found:
    """The addresses of a `host:port`; none if it cannot be resolved.

    They are in a fixed order, because DNS servers rotate theirs. Of a name with IPv4 and IPv6
    addresses only the former count: both usually lead to the same servers.
    """
    host, _, port = name.rpartition(":")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    hosts = {str(address[0]) for *_, address in found}
    chosen = {one for one in hosts if ":" not in one} or hosts
    return tuple(with_port(one, int(port)) for one in sorted(chosen))
