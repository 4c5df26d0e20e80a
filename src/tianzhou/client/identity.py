"""Who this client is: its address, its client id, the unique ids of its messages."""

import os
import secrets
import socket
import time
from datetime import datetime
from ipaddress import ip_address
from itertools import count
from typing import Final

from tianzhou.client.options import ClientOptions
from tianzhou.record.ids import UniqueIds

_ELSEWHERE: Final = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737). A datagram socket that is connected to it sends
nothing, and knows which of our addresses it would use."""

_LOOPBACK: Final = "127.0.0.1"

_made: Final = count()


def local_address() -> str:
    """The address through which this machine reaches others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(_ELSEWHERE)
        except OSError:  # no network at all
            return _LOOPBACK
        return asked.getsockname()[0]


def client_id(options: ClientOptions) -> str:
    """`ip@instance[@unit]`, as other clients build it. Without an instance name each call gives
    another one."""
    # A nanosecond clock may stand still between two calls; the counter does not.
    instance = options.instance_name or f"{os.getpid()}#{time.monotonic_ns()}{next(_made)}"
    parts = [options.client_ip or local_address(), instance]
    if options.unit_name:
        parts.append(options.unit_name)
    return "@".join(parts)


def unique_ids(address: str) -> UniqueIds:
    """A source of unique ids for one thread; the random part keeps it apart from all others."""
    try:
        packed = ip_address(address).packed
    except ValueError:  # a name that the user gave as client_ip
        packed = ip_address(_LOOPBACK).packed
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None
    return UniqueIds(address=packed, pid=os.getpid(), loader_hash=secrets.randbits(32), zone=zone)
