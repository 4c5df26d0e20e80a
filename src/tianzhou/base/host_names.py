"""Host names: which texts a resolver takes for an address instead of a name, and with a port."""

import re
from typing import Final

_NUMBERS: Final = re.compile(r"(?:0[xX][0-9A-Fa-f]*+|[0-9]++|\.)++")
"""Possessive quantifiers: with others a host of 40 digits and a hyphen takes hours to reject."""


def is_disguised_address(host: str) -> bool:
    """Whether the host consists of numbers and dots only. Resolvers take `0xa9fea9fe` and `127.1`
    for IP addresses, which bypasses checks of the addresses that may be dialled."""
    return _NUMBERS.fullmatch(host) is not None


def with_port(host: str, port: int) -> str:
    """`host:port`, with brackets around IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
