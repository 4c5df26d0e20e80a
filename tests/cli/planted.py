"""Faults that a doctor should find, planted with real sockets."""

import socket
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from tianzhou.net.blocking import BlockingPeer
from tianzhou.wire import registration
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.tables import RegisterBrokerBody


@contextmanager
def registered(nameserver: str, name: str, address: str, broker_id: int = 0) -> Generator[None]:
    """A broker that the NameServer knows by this address, as long as the block lasts."""
    data = registration.encode_registration(RegisterBrokerBody())
    ext = {
        "brokerName": name,
        "brokerAddr": address,
        "clusterName": "DefaultCluster",
        "brokerId": str(broker_id),
        "haServerAddr": "",
        "compressed": "false",
        "bodyCrc32": str(registration.checksum(data)),
    }
    with BlockingPeer(nameserver) as peer:
        answer, _ = peer.call(RequestCode.REGISTER_BROKER, ext, data)
        assert answer.code == 0, answer.remark
        yield


@contextmanager
def stranger(words: bytes = b"HTTP/1.1 400 Bad Request\r\n\r\n") -> Generator[str]:
    """Something that listens and speaks another protocol; its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return  # the test is over
                with connection:
                    if connection.recv(1024):
                        connection.sendall(words)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


@contextmanager
def firewall() -> Generator[str]:
    """An address behind which packets vanish: connections are neither accepted nor refused. A
    full backlog has the effect of a dropped packet: the kernel does not respond."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as stack:
        address = server.getsockname()
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        yield f"127.0.0.1:{address[1]}"


@contextmanager
def mute() -> Generator[str]:
    """Something that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def free_address() -> str:
    """An address without a listener."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{tried.getsockname()[1]}"
