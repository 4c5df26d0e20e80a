"""The dialler, against real listening sockets."""

import asyncio

import pytest

from tianzhou.net.acceptor import bind, bind_and_queue
from tianzhou.net.connect import connect, connect_blocking, source_address


def test_connect_returns_the_protocol_that_the_factory_created() -> None:
    class Recording(asyncio.Protocol):
        is_connected = False

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.is_connected = True
            transport.close()

    async def run() -> None:
        with bind_and_queue("127.0.0.1", 0) as listener:
            port = listener.getsockname()[1]
            protocol = await connect(Recording, "127.0.0.1", port, timeout_s=30.0)
        assert isinstance(protocol, Recording)
        assert protocol.is_connected

    asyncio.run(run())


def test_connect_to_a_port_without_listener_raises_oserror() -> None:
    with bind("127.0.0.1", 0) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            asyncio.run(connect(asyncio.Protocol, "127.0.0.1", port, timeout_s=30.0))
        with pytest.raises(ConnectionRefusedError):
            connect_blocking("127.0.0.1", port, timeout_s=30.0)


def test_connect_to_an_invalid_host_name_raises_oserror() -> None:
    with pytest.raises(OSError, match=r"'a\.\.b' is not a valid host name"):
        asyncio.run(connect(asyncio.Protocol, "a..b", 1, timeout_s=30.0))
    with pytest.raises(OSError, match=r"'a\.\.b' is not a valid host name"):
        connect_blocking("a..b", 1, timeout_s=30.0)


def test_connect_blocking_sets_the_timeout_of_the_socket() -> None:
    with (
        bind_and_queue("127.0.0.1", 0) as listener,
        connect_blocking("127.0.0.1", listener.getsockname()[1], timeout_s=30.0) as connection,
    ):
        assert connection.gettimeout() == 30.0


def test_source_address_towards_loopback_is_loopback() -> None:
    assert source_address("127.0.0.1", 9) == "127.0.0.1"
