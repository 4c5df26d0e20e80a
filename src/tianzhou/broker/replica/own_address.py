"""The address that a broker announces: where clients reach it."""

import socket
from typing import Final, NamedTuple

from tianzhou.base.host_names import with_port
from tianzhou.broker.config import BrokerConfig
from tianzhou.net.acceptor import bind
from tianzhou.net.connect import source_address

_EVERYWHERE: Final = ("", "0.0.0.0", "::")
_LOOPBACK: Final = "127.0.0.1"


class Endpoint(NamedTuple):
    """A bound port, and the address to announce for it."""

    bound: socket.socket
    host: str
    port: int
    address: str


def open_endpoint(config: BrokerConfig) -> Endpoint:
    """Bind the broker's port. Connections are accepted once the broker listens on it."""
    bound = bind(config.host, config.port)
    host, port = own_host(config), bound.getsockname()[1]
    return Endpoint(bound, host, port, with_port(host, port))


def own_host(config: BrokerConfig) -> str:
    """The configured host, or the one that the broker listens on. A broker that listens on all
    addresses announces the one from which NameServers see it connect: clients that reach the
    NameServers are likely to reach that address too."""
    if config.address or config.host not in _EVERYWHERE:
        return (config.address or config.host).strip("[]")
    servers = (server.strip() for server in config.nameservers.split(";"))
    found = (_source_towards(server) for server in servers if server)
    return next((host for host in found if host), _LOOPBACK)


def _source_towards(server: str) -> str:
    """The address of this machine on the route to the server; empty if there is no route. Nothing
    is sent."""
    host, _, port = server.rpartition(":")
    try:
        return source_address(host.strip("[]"), int(port))
    except (OSError, UnicodeError):
        return ""
