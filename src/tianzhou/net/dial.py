"""Request connections that a broker opens: to NameServers and to its master."""

import asyncio
from typing import Final

from tianzhou.net.connect import connect
from tianzhou.net.server_connection import ServerConnection, Shared
from tianzhou.wire.codec import decode_header
from tianzhou.wire.frame import FrameBatch

CONNECT_S: Final = 3.0


class _Caller:
    """Handles responses; requests from the other side are ignored."""

    def opened(self, connection: ServerConnection) -> None:
        pass

    def received(self, connection: ServerConnection, batch: FrameBatch) -> None:
        for index in range(batch.count):
            header = decode_header(batch.header(index), batch.serialise_types[index])
            if header.is_response:
                connection.answered(header, bytes(batch.body(index)))

    def closed(self, connection: ServerConnection) -> None:
        pass


async def dial(host: str, port: int) -> ServerConnection:
    """Connect. Raises OSError or TimeoutError."""
    caller, loop = _Caller(), asyncio.get_running_loop()
    shared = Shared(owner=caller, received=caller.received, loop=loop)
    return await connect(lambda: ServerConnection(shared), host, port, timeout_s=CONNECT_S)
