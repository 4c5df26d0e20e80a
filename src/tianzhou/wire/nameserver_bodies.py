"""The state of a NameServer besides routes: missing brokers, and brokers that it refuses.

RocketMQ has no request for it, so the request and its body are Tianzhou's own. Timestamps are
milliseconds since 1970 by the NameServer's clock.
"""

from typing import Final

import msgspec

from tianzhou.base.kinds import Bytes
from tianzhou.wire.fastjson import BodyReader


class MissingTopic(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A topic that had queues on a broker when the broker disappeared."""

    name: str
    read_queues: int
    write_queues: int


class MissingBroker(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A broker that was registered and disappeared without unregistering."""

    address: str
    broker_id: int
    cluster: str
    groups: tuple[str, ...] = ()
    """Consumer groups that had a retry topic on it."""
    left_out: int = 0
    """Topics and groups that are not listed."""
    name: str
    reason: str
    """`disconnected`: its connection closed; `expired`: no heartbeat arrived in time;
    `not_back`: it did not register again after the NameServer restarted."""
    since_ms: int
    topics: tuple[MissingTopic, ...] = ()
    """Topics of users; those that every broker has are not listed."""


class RefusedBroker(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A broker whose recent registrations were refused."""

    address: str
    kind: str
    """`signature`: no valid signature of the cluster; `name_taken`: another broker has its name."""
    name: str
    peer: str
    """Where it connected from."""
    reason: str


class NameServerView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to VIEW_NAMESERVER."""

    missing: tuple[MissingBroker, ...] = ()
    now_ms: int
    refused: tuple[RefusedBroker, ...] = ()
    version: str


_LOOK: Final = BodyReader(NameServerView)


def decode_nameserver_view(data: Bytes) -> NameServerView:
    return _LOOK.read(data)
