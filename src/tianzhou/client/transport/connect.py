"""Open connections. No other module of the client, and none of the Spark connector, opens a socket.

Both kinds of connection resolve the host name each time, so a server may move. Every failure is an
`Unreachable` that names the address: nothing was sent. TLS belongs here.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final, TypeVar

from tianzhou.base.errors import UsageError
from tianzhou.client.errors import Unreachable
from tianzhou.client.options import split_address

RECEIVE_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""Space in the kernel for a whole pull, so that it arrives while the previous one is decoded."""

_ELSEWHERE: Final = ("192.0.2.1", 9)
"""An address reserved for documentation (RFC 5737). Connecting a datagram socket to it sends
nothing, but selects the local address that would be used."""

LOOPBACK: Final = "127.0.0.1"

Protocol = TypeVar("Protocol", bound=asyncio.BaseProtocol)


async def open_connection(
    address: str, make_protocol: Callable[[], Protocol], *, timeout_s: float
) -> Protocol:
    """Connect in the running event loop; return the protocol. Raises Unreachable."""
    loop = asyncio.get_running_loop()
    try:
        host, port = split_address(address)
        async with asyncio.timeout(timeout_s):
            _, protocol = await loop.create_connection(make_protocol, host, port)
    except TimeoutError:
        raise Unreachable(address, f"no connection within {timeout_s:.3g} s") from None
    except UnicodeError as error:
        raise Unreachable(address, "it is not a valid host name") from error
    except (OSError, UsageError) as error:
        raise Unreachable(address, str(error)) from error
    return protocol


def open_blocking_socket(
    address: str, *, connect_timeout_s: float, call_timeout_s: float
) -> socket.socket:
    """Connect a blocking socket, set up for large responses. Raises Unreachable."""
    try:
        opened = socket.create_connection(split_address(address), connect_timeout_s)
    except UnicodeError as error:
        raise Unreachable(address, "it is not a valid host name") from error
    except OSError as error:
        raise Unreachable(address, str(error)) from error
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    opened.settimeout(call_timeout_s)
    return opened


def local_address() -> str:
    """Return the address through which this machine reaches others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError:  # no network at all
            return LOOPBACK
        return probe.getsockname()[0]
