"""A connection of a client whose other side is gone before it could begin."""

import asyncio

from tianzhou.client.options import ClientOptions
from tianzhou.client.transport.aio import Connection, ConnectionOwner
from tianzhou.net.rpc import Request


class Keeper:
    def __init__(self) -> None:
        self.closings = 0

    def requested(self, connection: Connection, request: Request) -> None:
        raise AssertionError("unexpected request")

    def closed(self, connection: Connection) -> None:
        self.closings += 1


class DeadTransport(asyncio.Transport):
    """As asyncio shows a socket that was reset before the loop handled it: no peer."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return True


def test_connection_to_a_peer_that_left_at_once_raises_nothing() -> None:
    keeper = Keeper()
    owner: ConnectionOwner = keeper
    loop = asyncio.new_event_loop()
    try:
        connection = Connection("127.0.0.1:1", owner, loop, ClientOptions())
        connection.connection_made(DeadTransport())
        assert connection.remote == "unknown:0"
        assert not connection.is_open
        connection.connection_lost(ConnectionResetError("reset"))
        assert keeper.closings == 1
    finally:
        loop.close()
