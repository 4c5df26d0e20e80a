"""What all clients of one process agree on, and how a list of name servers is written."""

from dataclasses import dataclass
from typing import Final

from tianzhou.base.errors import UsageError

_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Equal options mean shared connections: clients with the same name servers and options
    are one client to the brokers."""

    instance_name: str = ""
    """Part of the client id. Empty: made from the process and the time, so that two processes on
    one machine differ. Set it to keep broadcast offsets over a restart."""
    client_ip: str = ""
    """Part of the client id. Empty: the address through which this machine reaches others."""
    unit_name: str = ""
    call_timeout_s: float = 3.0
    """How long one question to a name server or broker may take, unless the caller says."""
    connect_timeout_s: float = 3.0
    route_interval_s: float = 30.0
    """How often known routes are asked for again."""
    heartbeat_interval_s: float = 30.0
    """Brokers forget clients that were silent for 120 seconds."""

    def __post_init__(self) -> None:
        for name in ("call_timeout_s", "connect_timeout_s", "route_interval_s",
                     "heartbeat_interval_s"):  # fmt: skip
            value: float = getattr(self, name)
            if not value > 0:
                raise UsageError(f"{name} is {value}; it must be above 0")
        for name in ("instance_name", "client_ip", "unit_name"):
            text: str = getattr(self, name)
            if "@" in text:
                raise UsageError(f"{name} {text!r} has an @, which separates parts of client ids")


def parse_nameservers(text: str) -> tuple[str, ...]:
    """The addresses in `host:port;host:port`. Commas separate as well. Raises UsageError."""
    found = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    if not found:
        raise UsageError(
            f"name servers {text!r} name no address; write host:port, several with ; between"
        )
    for address in found:
        split_address(address)
    return tuple(dict.fromkeys(found))


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`. Raises UsageError."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX:
        raise UsageError(f"address {address!r} is not host:port, with a port up to {_PORT_MAX}")
    return host, int(port)
