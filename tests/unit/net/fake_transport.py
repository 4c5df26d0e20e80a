"""A transport and a loop without sockets: a test says what arrives and sees what leaves."""

import asyncio
import math
from collections.abc import Callable
from typing import Any, cast

from tianzhou.net.limits import NetLimits
from tianzhou.net.server_connection import ServerConnection, Service, Shared, Turns
from tianzhou.wire.frame import FrameBuffer


class FakeLoop:
    """Time stands still until the test moves it; what is called soon waits for `run`."""

    def __init__(self) -> None:
        self.now = 100.0
        self._soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def run(self) -> None:
        while self._soon:
            soon, self._soon = self._soon, []
            for callback in soon:
                callback()


class FakeTransport:
    def __init__(self, peername: tuple[str, int] | None = ("10.1.1.1", 4711)) -> None:
        self.peername = peername
        self.written: list[bytes] = []
        self.unsent = 0
        """What the peer has not read, as the test sets it."""
        self.is_reading = True
        self.is_closed = self.is_aborted = False

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_extra_info(self, name: str) -> object:
        return {"peername": self.peername, "sockname": ("10.0.0.1", 10911)}.get(name)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written.append(bytes(data))

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def take(self) -> bytes:
        data, self.written = b"".join(self.written), []
        return data


def shared_by(
    service: Service,
    loop: FakeLoop,
    limits: NetLimits | None = None,
    *,
    turns: Turns | None = None,
    relieve: Callable[[], None] = lambda: None,
) -> Shared:
    """What the connections of one server share, with a small buffer."""
    return Shared(
        owner=service,
        received=service.received,
        loop=cast("Any", loop),  # has all of a loop that connections use
        limits=limits or NetLimits(),
        buffer=FrameBuffer(4096),
        turns=turns or Turns(),
        relieve=relieve,
    )


class Wired:
    """A connection with both fakes."""

    def __init__(
        self,
        service: Service,
        *,
        limits: NetLimits | None = None,
        shared: Shared | None = None,
        loop: FakeLoop | None = None,
    ) -> None:
        self.loop = loop or FakeLoop()
        # However slow this machine is, one round of the loop does everything.
        turns = Turns(round_s=math.inf)
        self.shared = shared or shared_by(service, self.loop, limits or NetLimits(), turns=turns)
        self.transport = FakeTransport()
        self.connection = ServerConnection(self.shared)
        self.connection.connection_made(cast("asyncio.Transport", self.transport))

    def arrives(self, data: bytes) -> None:
        """As a loop does it: into the buffer that the connection gives, in as many reads as
        needed."""
        while data:
            room = self.connection.get_buffer(-1)
            taken = min(len(room), len(data))
            room[:taken] = data[:taken]
            self.connection.buffer_updated(taken)
            data = data[taken:]
