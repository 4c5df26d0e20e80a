"""Addresses of NameServers: the accepted spellings, and the defaults from the environment.

host                    port 9876
host:port
[v6], [v6]:port
several, with ; or , between them
"""

from collections.abc import Mapping
from typing import Final

NAMESERVER_PORT: Final = 9876
NAMESERVER_VARIABLES: Final = ("TIANZHOU_NAMESERVER", "NAMESRV_ADDR")
"""Environment variables with the address of a NameServer; the first that is set wins. The second
is RocketMQ's."""


def with_default_port(address: str, port: int = NAMESERVER_PORT) -> str:
    """Add the port to an address that has none."""
    if address and (":" not in address or address.endswith("]")):
        return f"{address}:{port}"
    return address


def split_list(text: str) -> list[str]:
    """The addresses of a list, each with a port."""
    parts = (part.strip() for part in text.replace(",", ";").split(";"))
    return [with_default_port(part) for part in parts if part]


def nameserver_from(environment: Mapping[str, str]) -> str | None:
    """The address from the environment, or None."""
    found = (environment.get(name, "").strip() for name in NAMESERVER_VARIABLES)
    return next(filter(None, found), None)
