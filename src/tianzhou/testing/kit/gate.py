"""The gate between connections and the broker, where a test injects faults and records deliveries.

The broker behind it is the real one and is not aware of the gate. Without an active fault, batches
pass unchanged.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from tianzhou.base.kinds import Bytes
from tianzhou.net.router import encode_reply
from tianzhou.net.rpc import Reply
from tianzhou.net.server_connection import ServerConnection, Service
from tianzhou.testing.kit.deliveries import Deliveries, record_responses
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.codec import Header, decode_header
from tianzhou.wire.frame import FrameBatch

SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
_SHORT_NAMES: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
"""Requests whose header has the topic in the field `b`."""


@dataclass(slots=True)
class Refusal:
    """Requests that get this response instead of the broker's."""

    requests: frozenset[int]
    reply: Reply
    topic: str | None = None
    left: int | None = None
    """How many more requests are refused; None means all."""
    hits: int = 0

    def matches(self, header: Header) -> bool:
        if header.code not in self.requests or self.left == 0:
            return False
        return self.topic is None or self.topic == _topic_of(header)

    def count(self) -> None:
        self.hits += 1
        if self.left is not None:
            self.left -= 1


def _topic_of(header: Header) -> str | None:
    return header.ext.get("b" if header.code in _SHORT_NAMES else "topic")


class Gate:
    """The active faults, for all starts of a test broker. Owner: the broker loop."""

    def __init__(self) -> None:
        self.refusals: list[Refusal] = []
        self.delay_s = 0.0
        """Delay of responses."""
        self.deliveries: list[Deliveries] = []
        """Active recordings."""
        self.life: GateLife | None = None
        """The connections of the running broker."""

    def around(self, service: Service) -> Service:
        """Wrap the service of a newly started broker."""
        self.life = GateLife(self, service)
        return self.life

    @property
    def is_open(self) -> bool:
        """Whether batches can pass without decoding single frames."""
        return not self.refusals and not self.deliveries

    def send(self, connection: ServerConnection, data: Bytes) -> None:
        if self.deliveries:
            record_responses(self.deliveries, connection, data)
        if self.delay_s:
            asyncio.get_running_loop().call_later(self.delay_s, connection.send, bytes(data))
        else:
            connection.send(data)

    def refuse(self, peer: ServerConnection, header: Header) -> bool:
        """Respond in place of the broker if a fault matches, and return whether one did."""
        if header.is_response:
            return False
        refusal = next((one for one in self.refusals if one.matches(header)), None)
        if refusal is None:
            return False
        refusal.count()
        if not header.is_oneway:
            peer.send(encode_reply(header, refusal.reply))
        return True


class GatePeer:
    """A connection as the broker sees it, whose responses may be delayed."""

    def __init__(self, connection: ServerConnection, gate: Gate) -> None:
        self._connection = connection
        self._gate = gate

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def send(self, data: Bytes) -> None:
        self._gate.send(self._connection, data)

    def send_all(self, pieces: list[Bytes]) -> None:
        self._gate.send(self._connection, b"".join(pieces))


class GateLife:
    """The connections of one run of a broker. Owner: the broker loop."""

    def __init__(self, gate: Gate, service: Service) -> None:
        self._gate = gate
        self._service = service
        self._peers: dict[ServerConnection, ServerConnection] = {}
        """Real connection to the peer that the broker sees."""

    def cut(self, is_meant: Callable[[ServerConnection], bool]) -> int:
        """Abort connections and return how many. `is_meant` gets the peer that the broker sees."""
        found = [connection for connection, peer in self._peers.items() if is_meant(peer)]
        for connection in found:
            connection.abort()
        return len(found)

    # Service

    def opened(self, connection: ServerConnection) -> None:
        # The peer delegates to the connection all attributes that it does not define itself.
        peer = self._peers[connection] = cast("ServerConnection", GatePeer(connection, self._gate))
        self._service.opened(peer)

    def received(self, connection: ServerConnection, batch: FrameBatch) -> None:
        peer = self._peers[connection]
        if self._gate.is_open:
            self._service.received(peer, batch)
            return
        # One by one: frames that the broker leaves come again, refused frames must not.
        for index in range(batch.count):
            if connection.has_enough:
                connection.leave(batch, index)
                return
            header = decode_header(batch.header(index), batch.serialise_types[index])
            for note in self._gate.deliveries:
                note.on_request(connection, header)
            if not self._gate.refuse(peer, header):
                self._service.received(peer, _only(batch, index))
                if connection.is_leaving:
                    return

    def closed(self, connection: ServerConnection) -> None:
        self._service.closed(self._peers.pop(connection))


def _only(batch: FrameBatch, index: int) -> FrameBatch:
    """Return one frame of a batch as a batch, with the same positions."""
    end = index + 1
    return FrameBatch(
        batch.data,
        batch.view,
        batch.headers[index:end],
        batch.bodies[index:end],
        batch.ends[index:end],
        batch.serialise_types[index:end],
    )
