"""A blocking connection against a peer of a few lines, over real sockets."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tianzhou.base.errors import ProtocolError, Retry
from tianzhou.net.blocking import BlockingPeer, Unreachable
from tianzhou.wire.codec import Header, decode_headers, encode_command, response_to
from tianzhou.wire.frame import FrameBuffer

Answer = Callable[[socket.socket, Header, bytes], None]


class Peer:
    """Takes one connection and answers each frame as it is told."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        connection, _ = self._listener.accept()
        buffer = FrameBuffer()
        with connection:
            while size := connection.recv_into(buffer.writable()):
                buffer.wrote(size)
                batch = buffer.take()
                for rank, header in enumerate(decode_headers(batch)):
                    self._answer(connection, header, bytes(batch.body(rank)))

    def close(self) -> None:
        self._listener.close()
        self._thread.join(120)
        assert not self._thread.is_alive()


Start = Callable[[Answer], str]


@pytest.fixture
def start() -> Iterator[Start]:
    peers: list[Peer] = []

    def begin(answer: Answer) -> str:
        peers.append(Peer(answer))
        return peers[-1].address

    yield begin
    for peer in peers:
        peer.close()


def echo(connection: socket.socket, header: Header, body: bytes) -> None:
    connection.sendall(encode_command(response_to(header, header.code + 1, ext=header.ext), body))


def test_blocking_request_returns_the_response(start: Start) -> None:
    with BlockingPeer(start(echo)) as peer:
        header, body = peer.call(10, {"topic": "T"}, b"body")
        assert (header.code, header.ext, body) == (11, {"topic": "T"}, b"body")
        header, body = peer.call(20)
        assert (header.code, header.ext, body) == (21, {}, b"")


def test_blocking_requests_have_distinct_opaque_ids(start: Start) -> None:
    numbers: list[int] = []

    def answer(connection: socket.socket, header: Header, body: bytes) -> None:
        numbers.append(header.opaque)
        echo(connection, header, body)

    with BlockingPeer(start(answer)) as peer:
        for _ in range(3):
            peer.call(1)
    assert len(set(numbers)) == 3


def test_blocking_request_skips_unrelated_frames(start: Start) -> None:
    def answer(connection: socket.socket, header: Header, body: bytes) -> None:
        late = Header(code=0, opaque=header.opaque - 1, flag=1, remark="late")
        request = Header(code=40, opaque=header.opaque, remark="a request of mine")
        right = response_to(header, 0, remark="right")
        connection.sendall(encode_command(late, b"late") + encode_command(request))
        connection.sendall(encode_command(right, b"right"))

    with BlockingPeer(start(answer)) as peer:
        header, body = peer.call(1)
    assert (header.remark, body) == ("right", b"right")


def test_blocking_request_assembles_a_large_response(start: Start) -> None:
    def answer(connection: socket.socket, header: Header, _body: bytes) -> None:
        frame = encode_command(response_to(header, 0), bytes(300_000))
        for at in (slice(3), slice(3, 9), slice(9, 40), slice(40, None)):
            connection.sendall(frame[at])

    with BlockingPeer(start(answer)) as peer:
        assert peer.call(1)[1] == bytes(300_000)


def test_blocking_request_to_a_closing_peer_is_unreachable(start: Start) -> None:
    def hang_up(connection: socket.socket, _header: Header, _body: bytes) -> None:
        connection.shutdown(socket.SHUT_RDWR)

    address = start(hang_up)
    with (
        BlockingPeer(address) as peer,
        pytest.raises(Unreachable, match=f"^{address} did not answer request 5: .*closed"),
    ):
        peer.call(5)


def test_blocking_request_to_a_silent_peer_times_out(start: Start) -> None:
    def ignore(_connection: socket.socket, _header: Header, _body: bytes) -> None:
        pass

    with (
        BlockingPeer(start(ignore), timeout_s=0.01) as peer,
        pytest.raises(Unreachable, match="did not answer request 5: timed out"),
    ):
        peer.call(5)


def test_blocking_request_to_a_peer_with_invalid_frames_is_a_protocol_error(start: Start) -> None:
    def nonsense(connection: socket.socket, _header: Header, _body: bytes) -> None:
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with BlockingPeer(start(nonsense)) as peer, pytest.raises(ProtocolError):
        peer.call(5)


def test_blocking_connect_without_a_listener_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(Unreachable, match=f"^nothing answers at {address}: ") as caught:
        BlockingPeer(address)
    assert caught.value.retry is Retry.OTHER_BROKER


@pytest.mark.parametrize("address", ["", "here", "127.0.0.1:", "127.0.0.1:x"])
def test_blocking_connect_to_an_invalid_address_is_unreachable(address: str) -> None:
    with pytest.raises(Unreachable, match=f"nothing answers at {address}: "):
        BlockingPeer(address)


def test_blocking_connect_accepts_an_address_in_brackets(start: Start) -> None:
    host, _, port = start(echo).rpartition(":")
    with BlockingPeer(f"[{host}]:{port}") as peer:
        assert peer.call(1)[0].code == 2
