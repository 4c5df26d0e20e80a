"""The identity of a client: its client id, and the unique ids of its messages."""

import os
import secrets
import time
from datetime import datetime
from ipaddress import ip_address
from itertools import count
from typing import Final

from tianzhou.client.options import ClientOptions
from tianzhou.client.transport.connect import LOOPBACK, local_address
from tianzhou.record.ids import UniqueIds

_made: Final = count()


def client_id(options: ClientOptions) -> str:
    """Return `ip@instance[@unit]`, as other clients build it.

    Without an instance name each call returns another id.
    """
    # Two calls may see the same nanosecond; the counter keeps their ids distinct.
    instance = options.instance_name or f"{os.getpid()}#{time.monotonic_ns()}{next(_made)}"
    parts = [options.client_ip or local_address(), instance]
    if options.unit_name:
        parts.append(options.unit_name)
    return "@".join(parts)


def unique_ids(address: str) -> UniqueIds:
    """Return a source of unique ids for one thread.

    A random part makes the ids of different sources distinct.
    """
    try:
        packed = ip_address(address).packed
    except ValueError:  # a name that the user gave as client_ip
        packed = ip_address(LOOPBACK).packed
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None
    return UniqueIds(address=packed, pid=os.getpid(), loader_hash=secrets.randbits(32), zone=zone)
