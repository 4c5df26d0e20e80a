"""Both sides of one connection between master and slave, without a socket, a clock or a file.

Master:

    GREETING --report--> STREAMING           a RocketMQ slave, if ha_plain_peers lists it
    GREETING --hello---> PROVING | READY     a Tianzhou slave; with a secret it must prove itself
    PROVING  --proof---> READY
    READY    --report--> STREAMING

Slave:

    WAITING  --welcome--> AGREED     a Tianzhou master; the driver decides where the logs diverge
    WAITING  --frame----> STREAMING  a RocketMQ master, which sends after the first report
    AGREED   --frame----> STREAMING

The caller passes in received bytes and gets the bytes to send. The slave sends first: a hello to a
Tianzhou master, or its first report to a RocketMQ master. In STREAMING the log is sent from the
first reported offset on, and every report confirms an offset: never more than was sent, never less
than before. The slave's session returns log bytes in the order of the log; the driver appends them
and reports its progress. Invalid input raises PeerRefused, and the connection closes.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.replication.errors import PeerRefused, PeerSilent, Superseded
from tianzhou.replication.ha_epochs import Marks, check_unique, epoch_of, is_later, parting
from tianzhou.replication.ha_frames import (
    FRAME,
    FRAME_BYTES_MAX,
    REPORT,
    SPOKEN,
    SPOKEN_BYTES_MAX,
    Hello,
    LogBytes,
    Probe,
    Proof,
    Welcome,
    decode_spoken,
    decode_words,
    encode_spoken,
    encode_words,
    is_proof,
    proof_of,
    words_size,
)
from tianzhou.replication.ha_plain import PlainPeers


class Liveness:
    """When each side of a connection was last heard. Owner: the session."""

    __slots__ = ("_heartbeat_s", "_silence_s", "heard_s", "spoke_s")

    def __init__(self, heartbeat_s: float, silence_s: float, now_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self.heard_s = self.spoke_s = now_s

    def check(self, now_s: float) -> None:
        """Raise PeerSilent if nothing was received for too long."""
        if now_s - self.heard_s > self._silence_s:
            raise PeerSilent(f"nothing was received for {now_s - self.heard_s:.1f} s")

    def heartbeat_due(self, now_s: float) -> bool:
        return now_s - self.spoke_s >= self._heartbeat_s


# The master


class MasterState(enum.Enum):
    GREETING = enum.auto()
    """Nothing was received yet."""
    PROVING = enum.auto()
    """Hello received and welcome sent; the proof is missing."""
    READY = enum.auto()
    """Welcome sent; the slave has not reported where to continue yet."""
    STREAMING = enum.auto()
    """The log is streamed."""


MASTER_ALLOWED: Final[Mapping[MasterState, frozenset[MasterState]]] = {
    MasterState.GREETING: frozenset(
        {MasterState.PROVING, MasterState.READY, MasterState.STREAMING}
    ),
    MasterState.PROVING: frozenset({MasterState.READY}),
    MasterState.READY: frozenset({MasterState.STREAMING}),
    MasterState.STREAMING: frozenset(),
}


class Extent(NamedTuple):
    """The extent of a log."""

    min: PhysicalOffset
    end: PhysicalOffset


class MasterFacts(NamedTuple):
    """The identity of the master, and its rules for slaves."""

    cluster: str
    name: str
    marks: Marks
    file_bytes: int
    confirm_at_once: bool
    confirm_flushed: bool
    copies: int
    copies_min: int
    secret: str
    plain_peers: PlainPeers
    plain_copies: bool
    """Whether confirmations of slaves without a greeting count as replicas."""
    plain_frame_bytes: int
    frame_bytes: int
    heartbeat_s: float
    silence_s: float


class _Agreed(NamedTuple):
    """What the two sides know of each other's logs since the greeting."""

    extent: Extent
    """The extent of the master's log when the slave was welcomed."""
    common_end: int
    """How far both logs are equal, according to the slave's hello."""


class MasterSession:
    """The master's side of a connection. Owner: the caller that drives the connection.

    Invariant: acked <= sent <= end of the log, and neither decreases
    """

    def __init__(
        self,
        facts: MasterFacts,
        extent: Callable[[], Extent],
        matches: Callable[[Probe], bool],
        *,
        host: str,
        nonce: str,
        now_s: float,
    ) -> None:
        """`matches` tells whether the master's log has these bytes, `host` is the peer's IP
        address, and `nonce` is chosen by the caller."""
        self._facts = facts
        self._host = host
        self._extent = extent
        self._matches = matches
        self._nonce = nonce
        self._buffer = bytearray()
        self._alive = Liveness(facts.heartbeat_s, facts.silence_s, now_s)
        self.state = MasterState.GREETING
        self.hello: Hello | None = None
        """The hello of the slave; None for a RocketMQ slave."""
        self.sent = PhysicalOffset(0)
        self.acked = PhysicalOffset(0)
        """Only in STREAMING: the slave holds everything below."""
        self._agreed: _Agreed | None = None
        """Set by the welcome; None for a RocketMQ slave."""

    @property
    def is_streaming(self) -> bool:
        return self.state is MasterState.STREAMING

    @property
    def counts(self) -> bool:
        """Whether the slave's confirmations count as those of a replica of this log."""
        return self.is_streaming and (self.hello is not None or self._facts.plain_copies)

    # Receiving

    def received(self, data: bytes, now_s: float) -> bytes:
        """Process received bytes; returns the bytes to send back."""
        self._alive.heard_s = now_s
        self._buffer += data
        answer = b""
        while self._buffer:
            is_words = self._buffer[0] == 0xFF and not self.is_streaming
            size = words_size(self._buffer) if is_words else REPORT.size
            if size is None or len(self._buffer) < size:
                break
            if is_words:
                answer += self._heard_words(size)
            else:
                self._heard_reports()
                size = len(self._buffer) // REPORT.size * REPORT.size
            del self._buffer[:size]
        if answer:
            self._alive.spoke_s = now_s
        return answer

    def _heard_words(self, size: int) -> bytes:
        if self.state is MasterState.GREETING:
            self.hello = decode_words(self._buffer, size, Hello)
            return self._welcome(self.hello)
        if self.state is not MasterState.PROVING:
            raise PeerRefused(
                f"a greeting where an offset was expected ({self.state.name.lower()})"
            )
        proof = decode_words(self._buffer, size, Proof)
        if not is_proof(proof.proof, self._facts.secret, "slave", self._nonce):
            raise PeerRefused("the slave does not know the secret of this group")
        self._become(MasterState.READY)
        return b""

    def _welcome(self, hello: Hello) -> bytes:
        facts = self._facts
        if (hello.cluster, hello.name) != (facts.cluster, facts.name):
            raise PeerRefused(
                f"a slave of {hello.name} in {hello.cluster} reached the master of {facts.name} "
                f"in {facts.cluster}"
            )
        if hello.id <= 0:
            raise PeerRefused(f"invalid slave id {hello.id}")
        if is_later(hello.marks, facts.marks):
            epoch = epoch_of(hello.marks)
            raise Superseded(
                f"slave {hello.id} followed a master of epoch {epoch}; ours is "
                f"{epoch_of(facts.marks)}",
                epoch,
            )
        extent, common_end = self._extent(), self._checked_common_end(hello)
        self._agreed = _Agreed(extent, common_end)
        self._become(MasterState.PROVING if facts.secret else MasterState.READY)
        return encode_spoken(
            Welcome(
                cluster=facts.cluster,
                name=facts.name,
                marks=facts.marks,
                min=extent.min,
                end=extent.end,
                file_bytes=facts.file_bytes,
                confirm_at_once=facts.confirm_at_once,
                confirm_flushed=facts.confirm_flushed,
                copies=facts.copies,
                copies_min=facts.copies_min,
                nonce=self._nonce,
                proof=proof_of(facts.secret, "master", hello.nonce),
            )
        )

    def _checked_common_end(self, hello: Hello) -> int:
        """Return where the logs diverge. A slave without a common history must at least hold the
        same bytes."""
        if not hello.end:
            return 0
        parted = parting(hello.marks, hello.end, self._facts.marks)
        if parted is not None:
            check_unique(hello.marks, hello.end, self._facts.marks)
            return parted
        if hello.marks or hello.probe is None or not self._matches(hello.probe):
            raise PeerRefused(
                f"slave {hello.id} holds {hello.end} bytes of another log than this one; "
                "give it an empty directory"
            )
        return hello.end

    def _heard_reports(self) -> None:
        """Process whole reports, of which the last one counts; they must increase."""
        usable = len(self._buffer) // REPORT.size * REPORT.size
        for (offset,) in REPORT.iter_unpack(bytes(self._buffer[:usable])):
            if self.is_streaming:
                self._confirm(offset)
            else:
                self._begin(offset)

    def _begin(self, offset: int) -> None:
        if self.state is MasterState.PROVING:
            raise PeerRefused("the slave did not prove that it knows the secret")
        if self.state is MasterState.GREETING and not self._facts.plain_peers.admits(self._host):
            raise PeerRefused(
                f"the peer at {self._host} requests the log without a greeting; if it is a "
                "RocketMQ slave of this group, list its address in ha_plain_peers"
            )
        if self.hello is not None:
            self._check_first(offset)
        extent = self._extent()
        start = offset
        if offset == 0 and self.hello is None:
            # RocketMQ slaves expect this from their master.
            start = max(extent.end // self._facts.file_bytes * self._facts.file_bytes, extent.min)
        if not extent.min <= start <= extent.end:
            raise PeerRefused(
                f"a slave requests the log from {start}; this log has {extent.min} to {extent.end}"
            )
        self.sent = PhysicalOffset(start)
        self.acked = PhysicalOffset(offset)
        self._become(MasterState.STREAMING)

    def _check_first(self, offset: int) -> None:
        """The first report confirms what it names, so it may not name more than the slave has in
        common with this log. Otherwise the slave starts where the log does, or, if it is empty,
        with the last file."""
        assert self.hello is not None
        assert self._agreed is not None
        extent, common_end = self._agreed
        starts = {int(extent.min)}
        if not self.hello.end:
            starts.add(extent.end // self._facts.file_bytes * self._facts.file_bytes)
        if offset > common_end and offset not in starts:
            raise PeerRefused(
                f"the first report of the slave is {offset}; by its greeting it has this log up to "
                f"{common_end}"
            )

    def _confirm(self, offset: int) -> None:
        # An empty slave keeps reporting 0 until it has a whole record.
        if not self.acked <= offset <= self.sent:
            raise PeerRefused(
                f"the slave reports {offset}; it reported {self.acked} before, and was sent the "
                f"log up to {self.sent}"
            )
        self.acked = PhysicalOffset(offset)

    # Sending

    def next_range(self) -> tuple[PhysicalOffset, int] | None:
        """Return where the next frame starts, and how many bytes of the log it may have; None if
        there is nothing to send. A frame never crosses the end of a file."""
        if not self.is_streaming:
            return None
        extent = self._extent()
        if self.sent < extent.min:
            raise PeerRefused(f"the log before {extent.min} expired; the slave was at {self.sent}")
        facts = self._facts
        most = facts.plain_frame_bytes if self.hello is None else facts.frame_bytes
        room = facts.file_bytes - self.sent % facts.file_bytes
        size = min(extent.end - self.sent, most, room)
        return (self.sent, size) if size else None

    def frame(self, data: bytes, now_s: float) -> bytes:
        """Return the frame for these bytes of the log."""
        header = FRAME.pack(self.sent, len(data))
        self.sent = PhysicalOffset(self.sent + len(data))
        self._alive.spoke_s = now_s
        return header + data

    def tick(self, now_s: float) -> bytes:
        """Return a heartbeat if one is due. Raises PeerSilent."""
        self._alive.check(now_s)
        if not self.is_streaming or not self._alive.heartbeat_due(now_s):
            return b""
        self._alive.spoke_s = now_s
        return FRAME.pack(self.sent, 0)

    def _become(self, state: MasterState) -> None:
        assert state in MASTER_ALLOWED[self.state], f"{self.state.name} may not become {state.name}"
        self.state = state


# The slave


class SlaveState(enum.Enum):
    WAITING = enum.auto()
    """Nothing was received yet."""
    AGREED = enum.auto()
    """The master sent its welcome."""
    STREAMING = enum.auto()
    """The master streams its log."""


SLAVE_ALLOWED: Final[Mapping[SlaveState, frozenset[SlaveState]]] = {
    SlaveState.WAITING: frozenset({SlaveState.AGREED, SlaveState.STREAMING}),
    SlaveState.AGREED: frozenset({SlaveState.STREAMING}),
    SlaveState.STREAMING: frozenset(),
}


class SlaveSession:
    """The slave's side of a connection. Owner: the caller that drives the connection."""

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
        self._alive = Liveness(heartbeat_s, silence_s, now_s)
        self._buffer = bytearray()
        self._left = 0
        """Bytes of the current frame that were not received yet."""
        self._next: PhysicalOffset | None = None
        """Offset of the next log byte."""
        self.state = SlaveState.WAITING
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
        self._reported, self._alive.spoke_s = end, now_s
        return REPORT.pack(end)

    def tick(self, now_s: float) -> bytes:
        """Return a heartbeat if one is due. Raises PeerSilent."""
        self._alive.check(now_s)
        if self._reported is None or not self._alive.heartbeat_due(now_s):
            return b""
        self._alive.spoke_s = now_s
        return REPORT.pack(self._reported)

    # Receiving

    def received(self, data: bytes, now_s: float) -> list[LogBytes]:
        """Process received bytes; returns bytes of the log, in order. A welcome sets `welcome`."""
        self._alive.heard_s = now_s
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
        if self._hello is not None and self.state is SlaveState.WAITING:
            raise PeerRefused("the master sends a log without a welcome")
        if self._next is not None and offset != self._next:
            raise PeerRefused(f"the master continues at {offset}; expected {self._next}")
        if self.state is not SlaveState.STREAMING:
            self._become(SlaveState.STREAMING)
        self._next, self._left = PhysicalOffset(offset), size
        self.master_end = PhysicalOffset(max(self.master_end, offset))

    def _welcomed(self, welcome: Welcome) -> None:
        hello = self._hello
        if hello is None or self.state is not SlaveState.WAITING:
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
        self._become(SlaveState.AGREED)

    def _become(self, state: SlaveState) -> None:
        assert state in SLAVE_ALLOWED[self.state], f"{self.state.name} may not become {state.name}"
        self.state = state
