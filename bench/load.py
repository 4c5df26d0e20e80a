"""A cheap load generator: frames are encoded beforehand, responses are only counted."""

import selectors
import socket
from collections.abc import Callable
from time import perf_counter

from tianzhou.wire.codec import Header, Language, encode_command
from tianzhou.wire.frame import FrameBuffer


def send_frame(
    topic: str,
    body: bytes,
    number: int,
    *,
    queue: int = 0,
    oneway: bool = False,
    sys_flag: int = 0,
    more: str = "",
) -> bytes:
    """SEND_MESSAGE_V2 as a Java producer writes it, with `more` properties."""
    ext = {
        "a": "bench",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue),
        "f": str(sys_flag),
        "g": "1700000000000",
        "h": "0",
        "i": f"UNIQ_KEY\x017F000001{number:024X}\x02WAIT\x01true\x02TAGS\x01tag-{number % 10}"
        + more,
        "j": "0",
        "k": "false",
        "m": "false",
    }
    header = Header(
        code=310,
        opaque=number,
        flag=2 if oneway else 0,
        language=Language.JAVA,
        version=409,
        ext=ext,
    )
    return encode_command(header, body)


def batch_frame(topic: str, bodies: list[bytes], number: int) -> bytes:
    from tianzhou.record.batch import encode_batch

    entries = [
        (0, body, f"UNIQ_KEY\x017F000001{number + rank:024X}\x02TAGS\x01a\x02".encode())
        for rank, body in enumerate(bodies)
    ]
    ext = {
        "a": "bench",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": "WAIT\x01true",
        "j": "0",
        "k": "false",
        "m": "true",
    }
    header = Header(code=320, opaque=number, language=Language.JAVA, version=409, ext=ext)
    return encode_command(header, encode_batch(entries))


def pull_frame(topic: str, offset: int, number: int, *, tags: str = "*", wait_ms: int = 0) -> bytes:
    ext = {
        "consumerGroup": "bench-readers",
        "topic": topic,
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "6" if wait_ms else "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": str(wait_ms),
        "subscription": tags,
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return encode_command(
        Header(code=11, opaque=number, language=Language.JAVA, version=409, ext=ext)
    )


class Connection:
    """One socket that keeps a window of requests in flight."""

    def __init__(self, address: str, source: str = "") -> None:
        """`source` is the address to connect from; the system picks one if it is empty."""
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), source_address=(source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = FrameBuffer(256 * 1024)
        self.outstanding = 0

    def receive(self) -> int:
        """Return how many responses arrived."""
        size = self.socket.recv_into(self.buffer.writable())
        assert size > 0, "the server closed the connection"
        self.buffer.wrote(size)
        count = self.buffer.take().count
        self.outstanding -= count
        return count

    def exchange(self, frame: bytes, answers: int = 1) -> None:
        """Send and wait for the responses."""
        self.outstanding += answers
        self.socket.sendall(frame)
        while self.outstanding:
            self.receive()


def drive(
    address: str, bursts: Callable[[int], bytes], *, connections: int, window: int, total: int
) -> float:
    """Keep `window` requests in flight per connection until `total` are answered; return the
    seconds."""
    peers = [Connection(address) for _ in range(connections)]
    selector = selectors.DefaultSelector()
    ready = [bursts(rank) for rank in range(connections)]
    begun = perf_counter()
    asked = answered = 0
    for peer, burst in zip(peers, ready, strict=True):
        selector.register(peer.socket, selectors.EVENT_READ, (peer, burst))
        peer.outstanding += window
        peer.socket.sendall(burst)
        asked += window
    while answered < asked:
        for key, _ in selector.select(10):
            peer, burst = key.data
            answered += peer.receive()
            if peer.outstanding == 0 and asked < total:
                peer.outstanding += window
                peer.socket.sendall(burst)
                asked += window
    seconds = perf_counter() - begun
    for peer in peers:
        peer.socket.close()
    selector.close()
    return seconds
