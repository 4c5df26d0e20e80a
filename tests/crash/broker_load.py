"""Load for a broker that is going to be killed: several connections, each with many requests in
flight. Remembers what was acknowledged, and where.

Every message is described by its serial number alone, which is used once. Most are sent one by one,
some in batches, some delayed by a second.
"""

import selectors
import socket
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from typing import Final, NamedTuple

from tianzhou.record.batch import encode_batch
from tianzhou.wire.codec import Header, Language, decode_header, encode_command
from tianzhou.wire.frame import FrameBuffer

TOPICS: Final = ("orders", "payments")
LATER: Final = "reminders"
"""The topic of delayed messages."""
QUEUES: Final = 4
CONNECTIONS: Final = 4
WINDOW: Final = 32
BATCH: Final = 8
SILENCE_S: Final = 30.0
"""For a busy machine; a broker that is silent for this long under load is stuck."""


class Place(NamedTuple):
    topic: str
    queue_id: int
    offset: int


class SendRequest(NamedTuple):
    """One request: `count` messages for one queue."""

    topic: str
    queue_id: int
    serials: range


def body_of(serial: int) -> bytes:
    return b"%d|" % serial * (1 + serial * 31 % 60)


def properties_of(serial: int) -> str:
    return f"UNIQ_KEY\x017F000001{serial:024X}\x02KEYS\x01K{serial}\x02WAIT\x01true\x02"


def frame_of(wish: SendRequest) -> bytes:
    """Encode a request as a Java producer writes it."""
    first, is_batch = wish.serials.start, len(wish.serials) > 1
    text = properties_of(first) + ("DELAY\x011\x02" if wish.topic == LATER else "")
    ext = {
        "a": "kill-producers",
        "b": wish.topic,
        "c": "TBW102",
        "d": str(QUEUES),
        "e": str(wish.queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": "WAIT\x01true" if is_batch else text,
        "j": "0",
        "k": "false",
        "m": str(is_batch).lower(),
    }
    body = body_of(first)
    if is_batch:
        body = encode_batch((0, body_of(n), properties_of(n).encode()) for n in wish.serials)
    header = Header(
        code=320 if is_batch else 310, opaque=first, language=Language.JAVA, version=409, ext=ext
    )
    return encode_command(header, body)


class Peer:
    """One connection of a producer."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=SILENCE_S)
        self._buffer = FrameBuffer(256 * 1024)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answers(self) -> list[Header] | None:
        """The responses that arrived; None once the broker is gone."""
        try:
            size = self.socket.recv_into(self._buffer.writable())
        except ConnectionResetError:
            return None
        if size == 0:
            return None
        self._buffer.wrote(size)
        batch = self._buffer.take()
        return [
            decode_header(batch.header(index), batch.serialise_types[index])
            for index in range(batch.count)
        ]


class Load:
    """Sends until `in_flight` ends. The broker may die at any time meanwhile."""

    def __init__(self) -> None:
        self.acked: dict[int, Place] = {}
        """Serial to place, for all messages without a delay."""
        self.delayed: set[int] = set()
        """Serials of delayed messages that were acknowledged."""
        self.refused: list[Header] = []
        self._serials = count(1)
        self._pending: dict[int, SendRequest] = {}

    @property
    def acked_count(self) -> int:
        return len(self.acked) + len(self.delayed)

    @contextmanager
    def in_flight(self, address: str, acks: int) -> Generator[None]:
        """Enter when `count` more messages are acknowledged and others are in flight. The test
        kills the broker inside; responses sent until then are read at the end."""
        peers = [Peer(address) for _ in range(CONNECTIONS)]
        wanted = self.acked_count + acks
        try:
            with selectors.DefaultSelector() as selector:
                for peer in peers:
                    selector.register(peer.socket, selectors.EVENT_READ, peer)
                    peer.send(b"".join(frame_of(self._wish()) for _ in range(WINDOW)))
                while self.acked_count < wanted:
                    ready = selector.select(SILENCE_S)
                    assert ready, "the broker is stuck"
                    for key, _ in ready:
                        self._exchange(key.data)
            yield
            for peer in peers:
                while (answers := peer.answers()) is not None:
                    self._take(answers)
        finally:
            for peer in peers:
                peer.socket.close()
            self._pending.clear()

    def _exchange(self, peer: Peer) -> None:
        answers = peer.answers()
        assert answers is not None, "the broker closed a connection"
        self._take(answers)
        peer.send(b"".join(frame_of(self._wish()) for _ in answers))

    def _wish(self) -> SendRequest:
        first = next(self._serials)
        topic, length = TOPICS[first % len(TOPICS)], 1
        if first % 50 == 0:
            topic = LATER
        elif first % 20 == 7:
            length = BATCH
            for _ in range(BATCH - 1):
                next(self._serials)
        wish = SendRequest(topic, first * 7 // 3 % QUEUES, range(first, first + length))
        self._pending[first] = wish
        return wish

    def _take(self, answers: list[Header]) -> None:
        for header in answers:
            wish = self._pending.pop(header.opaque)
            if header.code != 0:
                self.refused.append(header)
            elif wish.topic == LATER:
                self.delayed.update(wish.serials)
            else:
                assert header.ext["queueId"] == str(wish.queue_id)
                first = int(header.ext["queueOffset"])
                for rank, serial in enumerate(wish.serials):
                    self.acked[serial] = Place(wish.topic, wish.queue_id, first + rank)
