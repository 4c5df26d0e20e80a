"""Under which address a broker tells others to find it."""

import socket
from typing import Final

from tianzhou.broker.config import BrokerConfig

_EVERYWHERE: Final = ("", "0.0.0.0", "::")
_LOOPBACK: Final = "127.0.0.1"


def own_host(config: BrokerConfig) -> str:
    """The chosen one, or the one it listens on. Who listens everywhere is where NameServers see
    it come from: clients that reach them are likely to reach that as well."""
    if config.address or config.host not in _EVERYWHERE:
        return (config.address or config.host).strip("[]")
    servers = (server.strip() for server in config.nameservers.split(";"))
    found = (_source_towards(server) for server in servers if server)
    return next((host for host in found if host), _LOOPBACK)


def with_port(host: str, port: int) -> str:
    """`host:port`, with brackets around IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _source_towards(server: str) -> str:
    """The address of this machine on the way there; empty if there is no way. Nothing is sent."""
    host, _, port = server.rpartition(":")
    try:
        family, kind, _, _, place = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as asked:
            asked.connect(place)
            return asked.getsockname()[0]
    except (OSError, UnicodeError):
        return ""
