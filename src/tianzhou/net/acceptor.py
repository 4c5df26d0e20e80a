"""Listening sockets: the one module that binds and accepts, for every port that Tianzhou serves.

The ports are those of the broker (and its VIP port), the NameServer, HA replication, Raft and HTTP.
TLS for servers belongs here: `Acceptor` turns accepted sockets into transports. Whether a
connection is accepted is decided in `net/admission.py`.
"""

import asyncio
import contextlib
import errno
import logging
import os
import random
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from tianzhou.net.admission import PROCESS_BUDGET, DescriptorBudget, PortAdmission, Slot, source_of
from tianzhou.net.limits import PortLimits
from tianzhou.net.rearm import rearm

log: Final = logging.getLogger("tianzhou.net")

ACCEPTS_PER_ROUND: Final = 16
"""Connections taken from one listener before the loop serves others. A connection that is closed to
make room keeps its descriptor until the end of the round, so this is also how far a port may exceed
its share."""
BACKLOG: Final = 1_024
"""The accept backlog in the kernel, where connections cost no descriptor."""
RETRY_S: Final = 0.1
"""How long a listener pauses after accept failed, usually because no descriptor was free."""
_SPARE_PORTS: Final = (20_000, 32_000)
_SPARE_TRIES_MAX: Final = 1_000


class CannotListen(OSError):
    """An address or port on which this process cannot listen."""

    def __init__(self, code: int | None, where: str, reason: str) -> None:
        super().__init__(code, f"cannot listen on {where}: {reason}")
        self.reason = reason
        """The cause without the address, for callers that name the address themselves."""


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to this address; port 0 selects a free one.

    Clients cannot connect before `Acceptor.listen`. Raises CannotListen.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        reason = f"not an address of this machine ({error.strerror})"
        raise CannotListen(error.errno, repr(host), reason) from error
    except UnicodeError as error:
        raise CannotListen(errno.EADDRNOTAVAIL, repr(host), "not a valid host name") from error
    bound = socket.socket(family, kind, proto)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise CannotListen(error.errno, f"{host}:{port}", str(error.strerror)) from error
    return bound


def bind_and_queue(host: str, port: int) -> socket.socket:
    """Return a bound socket whose connections wait in the kernel until an acceptor serves them.

    Unlike `bind`, it fails if another process listens on the same port. Raises CannotListen.
    """
    bound = bind(host, port)
    try:
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise CannotListen(error.errno, f"{host}:{port}", str(error.strerror)) from error
    return bound


def spare_ports(host: str, count: int) -> int:
    """Return the first of `count` consecutive free ports.

    They are below the range from which systems choose the ports of outgoing connections: no such
    connection takes one before its server listens on it, or while that server is down. Raises
    CannotListen.
    """
    dice, code = random.SystemRandom(), errno.EADDRINUSE
    for _ in range(_SPARE_TRIES_MAX):
        first = dice.randrange(*_SPARE_PORTS)
        with contextlib.ExitStack() as found:
            try:
                for port in range(first, first + count):
                    found.enter_context(socket.socket()).bind((host, port))
            except OSError as error:
                code = error.errno or code
                continue
            return first
    raise CannotListen(code, host, f"no {count} consecutive free ports ({os.strerror(code)})")


class Acceptor:
    """Accepts connections on the sockets of one port. Owner: the event loop."""

    def __init__(
        self,
        limits: PortLimits,
        factory: Callable[[Slot], asyncio.BaseProtocol],
        *,
        budget: DescriptorBudget = PROCESS_BUDGET,
    ) -> None:
        """`factory` creates the protocol of an admitted connection."""
        self.admission = PortAdmission(limits, budget)
        self._factory = factory
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        self._attaching: set[asyncio.Task[None]] = set()

    def listen(self, bound: socket.socket) -> None:
        """Accept connections on a bound socket, which `close` closes."""
        bound.listen(BACKLOG)
        bound.setblocking(False)
        if not self._listeners:
            self.admission.open()
        self._listeners.append(bound)
        self._loop.add_reader(bound.fileno(), self._accept, bound)

    def stop_listening(self) -> None:
        listeners, self._listeners = self._listeners, []
        for bound in listeners:
            self._loop.remove_reader(bound.fileno())
            bound.close()

    def close(self) -> None:
        """Stop listening and drop all slots; the protocols close their own connections."""
        self.stop_listening()
        self.admission.close()
        for task in tuple(self._attaching):
            task.cancel()

    def _accept(self, bound: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_ROUND):
            try:
                accepted, address = bound.accept()
            except ConnectionAbortedError:
                continue
            except (BlockingIOError, InterruptedError):
                return
            except (OSError, MemoryError) as error:
                self._rest(bound, error)
                return
            slot = self.admission.admit(source_of(str(address[0])))
            if slot is None:
                accepted.close()
                self._log_refused(f"{address[0]}:{address[1]}")
                continue
            accepted.setblocking(False)
            task = self._loop.create_task(self._attach(slot, accepted))
            self._attaching.add(task)
            task.add_done_callback(self._attaching.discard)

    async def _attach(self, slot: Slot, accepted: socket.socket) -> None:
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: self._factory(slot), accepted
            )
        except (OSError, MemoryError, asyncio.CancelledError):
            slot.release()
            accepted.close()
        else:
            slot.attach(transport)

    def _rest(self, bound: socket.socket, error: OSError | MemoryError) -> None:
        """Pause after a failed accept: retrying at once would only spin."""
        rearm(self._loop, RETRY_S, partial(self._resume, bound))
        self._loop.remove_reader(bound.fileno())
        log.error(
            "accept.failed",
            extra={
                "port": self.admission.limits.name,
                "reason": str(error) or "out of memory",
                "remedy": "raise the limit of open files (ulimit -n) or of memory, or close other "
                "connections",
            },
        )

    def _resume(self, bound: socket.socket) -> None:
        if bound in self._listeners:
            self._loop.add_reader(bound.fileno(), self._accept, bound)

    def _log_refused(self, peer: str) -> None:
        admission = self.admission
        log.warning(
            "connection.refused",
            extra={"port": admission.limits.name, "peer": peer, "connections": admission.count},
        )
