"""Addresses of NameServers: the accepted spellings, the defaults from the environment, and lists
that contain host names.

host                    port 9876
host:port
[v6], [v6]:port
several, with ; or , between them

A host name stands for every address that it resolves to, so that a list can change in DNS alone.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from tianzhou.base.host_names import is_disguised_address

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


def is_host_name(address: str) -> bool:
    """Whether the host of `host:port` is a name, which has to be resolved."""
    host = address.rpartition(":")[0]
    return ":" not in host and not is_disguised_address(host)


class NameServerList:
    """A list of NameServers as configured, and the addresses that its host names have now.

    A name that was never resolved stands for itself: connecting to it resolves it, and reports why
    it cannot. A name that cannot be resolved any more keeps its addresses: a failure of DNS must
    not disconnect NameServers that work.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self._resolved: dict[str, tuple[str, ...]] = {}
        self.replace(entries)

    def replace(self, entries: Iterable[str]) -> None:
        """Use these entries from now on."""
        before = self._resolved
        self.entries: tuple[str, ...] = tuple(dict.fromkeys(entries))
        self.names: tuple[str, ...] = tuple(filter(is_host_name, self.entries))
        """The entries that have to be resolved."""
        self._resolved = {name: before[name] for name in self.names if name in before}
        self._collect()

    def learn(self, found: Mapping[str, tuple[str, ...]]) -> None:
        """Record the addresses of names."""
        self._resolved |= {name: found[name] for name in self.names if found.get(name)}
        self._collect()

    def _collect(self) -> None:
        each = (self._resolved.get(entry, (entry,)) for entry in self.entries)
        self.addresses: tuple[str, ...] = tuple(dict.fromkeys(at for some in each for at in some))
        """Each server once: those given as addresses, and those behind the names."""
        self.is_unresolved: bool = len(self._resolved) < len(self.names)
        """Whether a name has no address yet."""
