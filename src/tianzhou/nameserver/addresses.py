"""Addresses of brokers: validation, and the address that a client receives.

A broker without a configured address knows only the one it is bound to, or one it detected. If it
runs on the same machine as the NameServer, the client already knows a better address: the one
through which it reached the NameServer. The client receives that address. A configured address is
never changed.
"""

import ipaddress
import re
from typing import Final, TypeAlias

from tianzhou.base.errors import UsageError
from tianzhou.base.host_names import is_disguised_address

Ip: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_PORT: Final = re.compile(r"[0-9]{1,5}")
_PORT_MAX: Final = 65_535
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,252})")


def checked_address(text: str, *, may_be_any: bool = False) -> str:
    """Return the address if it is `host:port`, with brackets around IPv6. Raises UsageError.

    Clients must not be sent to a multicast or link-local address, where metadata services of clouds
    hand out secrets, nor to 0.0.0.0 unless it will be replaced.
    """
    host, _, port = text.rpartition(":")
    if not _PORT.fullmatch(port) or not 0 < int(port) <= _PORT_MAX:
        raise UsageError(f"address {text[:300]!r} is not of the form host:port")
    ip = _ip_of_host(host)
    if ip is None and (not _NAME.fullmatch(host) or is_disguised_address(host)):
        raise UsageError(f"address {text[:300]!r} has no host before its port")
    if ip is not None and (
        ip.is_link_local or ip.is_multicast or (ip.is_unspecified and not may_be_any)
    ):
        raise UsageError(f"invalid address {text!r}: clients cannot connect to it")
    return text


def is_same_host(*, remote: str, local: str) -> bool:
    """Whether the peer of a connection runs on this machine.

    It connects from loopback or from the address that it connected to: the system uses that as the
    source if both ends are local.
    """
    peer = _ip(remote.rpartition(":")[0])
    return peer is not None and (peer.is_loopback or peer == _ip(local.rpartition(":")[0]))


def as_dialled(address: str, local: str) -> str:
    """Return the address with the host through which a client reached this server, if it is
    usable."""
    ip = _ip(local.rpartition(":")[0])
    if ip is None or ip.is_link_local or ip.is_unspecified:
        return address
    return f"{_in_brackets(str(ip))}:{address.rpartition(':')[2]}"


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _ip_of_host(host: str) -> Ip | None:
    """Parse a host as an IP address; IPv6 must have brackets and no zone."""
    if host.startswith("[") and host.endswith("]"):
        return _ip(host) if ":" in host and "%" not in host else None
    return _ip(host) if ":" not in host and not host.startswith("[") else None


def _ip(text: str) -> Ip | None:
    try:
        ip = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    return ip
