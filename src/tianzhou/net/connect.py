"""Outgoing connections: the one module that opens them for servers, replication and commands.

NameServer registration, HA slaves, Raft members and `BlockingPeer` all connect here, so TLS for
outgoing connections belongs here. The client library has its own module for this,
`client/transport/connect.py`, because applications configure it.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import TypeVar

_Protocol = TypeVar("_Protocol", bound=asyncio.BaseProtocol)


async def connect(
    factory: Callable[[], _Protocol], host: str, port: int, *, timeout_s: float
) -> _Protocol:
    """Open a TCP connection and return its protocol, created by `factory`.

    Raises OSError (also for a host name that is not valid) or TimeoutError.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            _, protocol = await loop.create_connection(factory, host, port)
    except UnicodeError as error:
        raise OSError(f"{host!r} is not a valid host name") from error
    return protocol


def connect_blocking(host: str, port: int, *, timeout_s: float) -> socket.socket:
    """Open a TCP connection whose operations time out after `timeout_s`.

    Raises OSError (also for a host name that is not valid).
    """
    try:
        return socket.create_connection((host, port), timeout_s)
    except UnicodeError as error:
        raise OSError(f"{host!r} is not a valid host name") from error


def source_address(host: str, port: int) -> str:
    """Return the address of this machine from which it would connect there. Sends nothing.

    Raises OSError if there is no route, and UnicodeError for a host name that is not valid.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return probe.getsockname()[0]
