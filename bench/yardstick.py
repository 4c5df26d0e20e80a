"""The yardstick of the broker: a server that only splits frames and acknowledges them.

Run as a process: `python -m bench.yardstick READY_FILE`.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import cast

from tianzhou.wire.frame import FrameBuffer, frame_prefix

ANSWER = b'{"code":0,"extFields":{},"flag":1,"language":"PYTHON","opaque":%d,"version":479}'


class Yardstick(asyncio.BufferedProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no such base
        self._buffer = FrameBuffer()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.writable()

    def buffer_updated(self, nbytes: int) -> None:
        self._buffer.wrote(nbytes)
        count = self._buffer.take().count
        text = ANSWER % 0
        frame = frame_prefix(serialise_type=0, header_size=len(text), body_size=0) + text
        self._transport.write(frame * count)


async def main(ready: Path) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Yardstick, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    temporary = ready.with_suffix(".tmp")
    temporary.write_text(json.dumps({"broker": f"127.0.0.1:{port}", "pid": os.getpid()}))
    temporary.replace(ready)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(Path(sys.argv[1])))
