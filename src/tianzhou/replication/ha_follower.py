"""The slave's side of the connection, without a socket, a clock or a file.

    WAITING  --welcome--> AGREED     a Tianzhou master; the driver decides where the logs diverge
    WAITING  --frame----> STREAMING  a RocketMQ master, which sends after the first report
    AGREED   --frame----> STREAMING

The slave sends first: a hello to a Tianzhou master, or its first report to a RocketMQ master. Log
bytes are returned in the order of the log; the driver appends them and reports its progress.
"""

import enum
from collections.abc import Mapping
from typing import Final

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.replication.errors import PeerRefused, PeerSilent, Superseded
from tianzhou.replication.ha_frames import (
    FRAME,
    FRAME_BYTES_MAX,
    REPORT,
    SPOKEN,
    SPOKEN_BYTES_MAX,
    Hello,
    LogBytes,
    Proof,
    Welcome,
    decode_spoken,
    encode_words,
)
from tianzhou.replication.ha_session import is_proof, proof_of


class State(enum.Enum):
    WAITING = enum.auto()
    """Nothing was received yet."""
    AGREED = enum.auto()
    """The master sent its welcome."""
    STREAMING = enum.auto()
    """The master streams its log."""


ALLOWED: Final[Mapping[State, frozenset[State]]] = {
    State.WAITING: frozenset({State.AGREED, State.STREAMING}),
    State.AGREED: frozenset({State.STREAMING}),
    State.STREAMING: frozenset(),
}


class SlaveSession:
    """Owner: the caller that drives the connection."""

    def __init__(
        self,
        hello: Hello | None,
        *,
        secret: str,
        heartbeat_s: float,
        silence_s: float,
        now_s: float,
    ) -> None:
        """Without a `hello` the master is assumed to be a RocketMQ broker."""
        self._hello = hello
        self._secret = secret
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._heard_s = self._spoke_s = now_s
        self._buffer = bytearray()
        self._left = 0
        """Bytes of the current frame that were not received yet."""
        self._next: PhysicalOffset | None = None
        """Offset of the next log byte."""
        self.state = State.WAITING
        self.welcome: Welcome | None = None
        self.master_end = PhysicalOffset(0)
        """How far the master's log reaches, at least."""
        self._reported: int | None = None

    # Sending

    def greeting(self) -> bytes:
        """Return the bytes to send first on a new connection, before any report."""
        return encode_words(self._hello) if self._hello is not None else b""

    def agreed(self) -> bytes:
        """Return the bytes to send after the welcome, before the first report: the proof, if one is
        required."""
        assert self.welcome is not None
        if not self._secret:
            return b""
        return encode_words(Proof(proof=proof_of(self._secret, "slave", self.welcome.nonce)))

    def report(self, end: PhysicalOffset, now_s: float) -> bytes:
        """Return the report of how far the slave's log reaches; empty if the master knows it."""
        if end == self._reported:
            return b""
        assert self._reported is None or end > self._reported, "a slave's log never shrinks"
        self._reported, self._spoke_s = end, now_s
        return REPORT.pack(end)

    def tick(self, now_s: float) -> bytes:
        """Return a heartbeat if one is due. Raises PeerSilent."""
        if now_s - self._heard_s > self._silence_s:
            raise PeerSilent(f"nothing was received for {now_s - self._heard_s:.1f} s")
        if self._reported is None or now_s - self._spoke_s < self._heartbeat_s:
            return b""
        self._spoke_s = now_s
        return REPORT.pack(self._reported)

    # Receiving

    def received(self, data: bytes, now_s: float) -> list[LogBytes]:
        """Process received bytes; returns bytes of the log, in order. A welcome sets `welcome`."""
        self._heard_s = now_s
        self._buffer += data
        pieces: list[LogBytes] = []
        at, buffer = 0, self._buffer
        while at < len(buffer):
            if self._left:
                piece = bytes(memoryview(buffer)[at : at + self._left])
                assert self._next is not None
                pieces.append(LogBytes(self._next, piece))
                self._next = PhysicalOffset(self._next + len(piece))
                self.master_end = max(self.master_end, self._next)
                self._left -= len(piece)
                at += len(piece)
                continue
            if len(buffer) - at < FRAME.size:
                break
            offset, size = FRAME.unpack_from(buffer, at)
            if offset == SPOKEN:
                if not 0 < size <= SPOKEN_BYTES_MAX:
                    raise PeerRefused(f"the master announces a greeting of {size} bytes")
                end = at + FRAME.size + size
                if end > len(buffer):
                    break
                self._welcomed(decode_spoken(buffer[at + FRAME.size : end]))
                at = end
                continue
            self._begin_frame(offset, size)
            at += FRAME.size
        del buffer[:at]
        return pieces

    def _begin_frame(self, offset: int, size: int) -> None:
        if offset < 0 or not 0 <= size <= FRAME_BYTES_MAX:
            raise PeerRefused(f"the master announces {size} bytes at {offset}")
        if self._hello is not None and self.state is State.WAITING:
            raise PeerRefused("the master sends a log without a welcome")
        if self._next is not None and offset != self._next:
            raise PeerRefused(f"the master continues at {offset}; expected {self._next}")
        if self.state is not State.STREAMING:
            self._become(State.STREAMING)
        self._next, self._left = PhysicalOffset(offset), size
        self.master_end = PhysicalOffset(max(self.master_end, offset))

    def _welcomed(self, welcome: Welcome) -> None:
        hello = self._hello
        if hello is None or self.state is not State.WAITING:
            raise PeerRefused("the master sent a second or late welcome")
        if welcome.superseded_by:
            raise Superseded(welcome.refusal, welcome.superseded_by)
        if welcome.refusal:
            raise PeerRefused(f"the master refused: {welcome.refusal}")
        if (welcome.cluster, welcome.name) != (hello.cluster, hello.name):
            raise PeerRefused(
                f"the master is {welcome.name} in {welcome.cluster}; this is a slave of "
                f"{hello.name} in {hello.cluster}"
            )
        if not is_proof(welcome.proof, self._secret, "master", hello.nonce):
            raise PeerRefused("the master does not know the secret of this group")
        self.welcome = welcome
        self.master_end = PhysicalOffset(welcome.end)
        self._become(State.AGREED)

    def _become(self, state: State) -> None:
        assert state in ALLOWED[self.state], f"{self.state.name} may not become {state.name}"
        self.state = state
