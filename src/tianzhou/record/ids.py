"""Hosts as records carry them, and the two ids a message has.

A host is 4 or 16 address bytes and a 4-byte port. An IPv6 address that only wraps an IPv4 one is
always taken for the latter, so that one machine has one form.

The offset id says where a message is stored; the broker gives it:

    store_host 8 or 20 | physical_offset 8

The unique id says which send made it; the producer gives it as property UNIQ_KEY:

    address 4 or 16 | process 2 | loader_hash 4 | ms_of_month 4 | counter 2

Both are written as upper-case hexadecimal, so each has 32 or 56 characters. Other clients shape
the unique id as they like: read its parts to help a person, never to decide anything.
"""

import struct
from datetime import datetime, tzinfo
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import Bytes, PhysicalOffset
from tianzhou.record.layout import HOST_BYTES_V4, HOST_BYTES_V6, INT32, INT64

_PORT_MAX: Final = 0xFFFF
_ADDRESS_BYTES: Final = (4, 16)
UNIQUE_TAIL: Final = struct.Struct(">HiIH")


class Host(NamedTuple):
    address: str
    port: int


class OffsetId(NamedTuple):
    """The parts of an offset id."""

    host: Host
    physical_offset: PhysicalOffset


class UniqueIdParts(NamedTuple):
    """The parts of a unique id, as far as it has the usual shape."""

    address: str
    pid: int
    loader_hash: int
    ms_of_month: int
    counter: int


def encode_host(host: tuple[str, int]) -> bytes:
    """8 bytes for IPv4, 20 for IPv6. Names are refused: a record holds addresses."""
    address, port = host
    try:
        parsed = ip_address(address)
    except ValueError as error:
        raise UsageError(f"{address!r} is not an IP address") from error
    if not 0 <= port <= _PORT_MAX:
        raise UsageError(f"port {port} of {address} is outside 0 to {_PORT_MAX}")
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.packed + INT32.pack(port)


def decode_host(data: Bytes) -> Host:
    """The address and port of 8 or 20 bytes. A port is not judged: the message must be readable."""
    data = bytes(data)
    if len(data) not in (HOST_BYTES_V4, HOST_BYTES_V6):
        raise UsageError(f"a host has {HOST_BYTES_V4} or {HOST_BYTES_V6} bytes, not {len(data)}")
    return Host(_address_text(data[:-4]), INT32.unpack_from(data, len(data) - 4)[0])


def _address_text(packed: bytes) -> str:
    if len(packed) == 4:
        return str(IPv4Address(packed))
    address = IPv6Address(packed)
    # Python versions write wrapped addresses differently; the IPv4 form is the same in all.
    return str(address.ipv4_mapped or address)


def offset_id(store_host: Bytes, physical_offset: int) -> str:
    """The offset id from a host in its stored form: what brokers and readers of records have."""
    return f"{store_host.hex().upper()}{physical_offset & 0xFFFF_FFFF_FFFF_FFFF:016X}"


def decode_offset_id(text: str) -> OffsetId:
    """Where a message is stored. Raises UsageError for text that is not an offset id."""
    data = _maybe_hex(text)
    if data is None:
        raise UsageError(f"message id {text!r} does not have 32 or 56 hexadecimal digits")
    host = decode_host(data[:-8])
    physical_offset = INT64.unpack_from(data, len(data) - 8)[0]
    # A unique id has the same length. Its middle is most often no port, which tells them apart.
    if not 0 <= host.port <= _PORT_MAX:
        raise UsageError(f"message id {text!r} names no broker: its port would be {host.port}")
    if physical_offset < 0:
        raise UsageError(f"message id {text!r} names no place: its offset is {physical_offset}")
    return OffsetId(host, PhysicalOffset(physical_offset))


def _maybe_hex(text: str) -> bytes | None:
    if len(text) not in (32, 56):
        return None
    try:
        data = bytes.fromhex(text)
    except ValueError:
        return None
    # fromhex skips blanks.
    return data if len(data) * 2 == len(text) else None


class UniqueIds:
    """Makes the unique ids of one process.

    Two ids of one process differ as long as it makes at most 65,536 in a millisecond; the address
    and the loader hash (any number that differs between processes) keep processes apart. The time
    restarts each month, in the zone of the process, as in other clients.

    Owner: one thread.
    Invariant: month_start <= time of the last id < month_end
    """

    __slots__ = ("_counter", "_month_end_ms", "_month_start_ms", "_prefix", "_zone")

    def __init__(self, *, address: bytes, pid: int, loader_hash: int, zone: tzinfo) -> None:
        if len(address) not in _ADDRESS_BYTES:
            raise UsageError(f"an address has 4 or 16 bytes, not {len(address)}: {address!r}")
        # A process id may be longer than 16 bits; its low ones differ from neighbour to neighbour.
        self._prefix = f"{address.hex().upper()}{pid & 0xFFFF:04X}{loader_hash & 0xFFFFFFFF:08X}"
        self._zone = zone
        self._month_start_ms = self._month_end_ms = 0
        self._counter = 0

    def next(self, now_ms: int) -> str:
        # Also true when the clock was set back into the month before.
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._month_start_ms, self._month_end_ms = _month_around(now_ms, self._zone)
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        # 31 days in milliseconds need all 32 bits.
        return f"{self._prefix}{now_ms - self._month_start_ms:08X}{counter:04X}"


def _month_around(now_ms: int, zone: tzinfo) -> tuple[int, int]:
    """First millisecond of the month, and of the next one."""
    now = datetime.fromtimestamp(now_ms // 1000, zone)
    start = datetime(now.year, now.month, 1, tzinfo=zone)
    end = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=zone)
    return int(start.timestamp()) * 1000, int(end.timestamp()) * 1000


def parts_of_unique_id(text: str) -> UniqueIdParts | None:
    """The parts, if the id has the usual length and digits; their meaning is up to the sender."""
    data = _maybe_hex(text)
    if data is None:
        return None
    at = len(data) - UNIQUE_TAIL.size
    return UniqueIdParts(_address_text(data[:at]), *UNIQUE_TAIL.unpack_from(data, at))
