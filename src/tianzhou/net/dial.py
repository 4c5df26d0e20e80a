"""Connections that a broker opens: to name servers, and to its master."""

import asyncio
from typing import Final

from tianzhou.net.limits import NetLimits
from tianzhou.net.server_connection import ServerConnection, Shared
from tianzhou.wire.codec import decode_header
from tianzhou.wire.frame import FrameBatch, FrameBuffer

CONNECT_S: Final = 3.0


class _Caller:
    """Takes answers; a request from the other side is not expected and not answered."""

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
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            _, connection = await loop.create_connection(
                lambda: ServerConnection(_Caller(), loop, Shared(NetLimits(), FrameBuffer())),
                host,
                port,
            )
    except UnicodeError as error:
        raise OSError(f"{host!r} is not a valid host name") from error
    return connection
