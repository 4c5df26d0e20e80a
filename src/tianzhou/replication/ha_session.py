"""The master's side of one connection, without a socket, a clock or a file.

    GREETING --report--> STREAMING           a RocketMQ slave, if ha_plain_peers lists it
    GREETING --hello---> PROVING | READY     a Tianzhou slave; with a secret it must prove itself
    PROVING  --proof---> READY
    READY    --report--> STREAMING

The caller passes in received bytes and gets the bytes to send. In STREAMING the log is sent from
the first reported offset on, and every report confirms an offset: never more than was sent, never
less than before. Invalid input raises PeerRefused, and the connection closes.
"""

import enum
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.replication.errors import PeerRefused, PeerSilent, Superseded
from tianzhou.replication.ha_epochs import Marks, check_unique, epoch_of, is_later, parting
from tianzhou.replication.ha_frames import (
    FRAME,
    REPORT,
    Hello,
    Probe,
    Proof,
    Welcome,
    decode_words,
    encode_spoken,
    words_size,
)
from tianzhou.replication.ha_plain import PlainPeers


class State(enum.Enum):
    GREETING = enum.auto()
    """Nothing was received yet."""
    PROVING = enum.auto()
    """Hello received and welcome sent; the proof is missing."""
    READY = enum.auto()
    """Welcome sent; the slave has not reported where to continue yet."""
    STREAMING = enum.auto()
    """The log is streamed."""


ALLOWED: Final[Mapping[State, frozenset[State]]] = {
    State.GREETING: frozenset({State.PROVING, State.READY, State.STREAMING}),
    State.PROVING: frozenset({State.READY}),
    State.READY: frozenset({State.STREAMING}),
    State.STREAMING: frozenset(),
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


class MasterSession:
    """Owner: the caller that drives the connection.

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
        self._heard_s = self._spoke_s = now_s
        self.state = State.GREETING
        self.hello: Hello | None = None
        """The hello of the slave; None for a RocketMQ slave."""
        self.sent = PhysicalOffset(0)
        self.acked = PhysicalOffset(0)
        """Only in STREAMING: the slave holds everything below."""
        self._welcomed = Extent(PhysicalOffset(0), PhysicalOffset(0))
        """The extent of the log when the slave was welcomed."""
        self._common_end = 0
        """How far both logs are equal, according to the slave's hello."""

    @property
    def is_streaming(self) -> bool:
        return self.state is State.STREAMING

    @property
    def counts(self) -> bool:
        """Whether the slave's confirmations count as those of a replica of this log."""
        return self.is_streaming and (self.hello is not None or self._facts.plain_copies)

    # Receiving

    def received(self, data: bytes, now_s: float) -> bytes:
        """Process received bytes; returns the bytes to send back."""
        self._heard_s = now_s
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
            self._spoke_s = now_s
        return answer

    def _heard_words(self, size: int) -> bytes:
        if self.state is State.GREETING:
            self.hello = decode_words(self._buffer, size, Hello)
            return self._welcome(self.hello)
        if self.state is not State.PROVING:
            raise PeerRefused(
                f"a greeting where an offset was expected ({self.state.name.lower()})"
            )
        proof = decode_words(self._buffer, size, Proof)
        if not is_proof(proof.proof, self._facts.secret, "slave", self._nonce):
            raise PeerRefused("the slave does not know the secret of this group")
        self._become(State.READY)
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
        self._common_end = self._checked_common_end(hello)
        self._become(State.PROVING if facts.secret else State.READY)
        extent = self._welcomed = self._extent()
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
        if self.state is State.PROVING:
            raise PeerRefused("the slave did not prove that it knows the secret")
        if self.state is State.GREETING and not self._facts.plain_peers.admits(self._host):
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
        self._become(State.STREAMING)

    def _check_first(self, offset: int) -> None:
        """The first report confirms what it names, so it may not name more than the slave has in
        common with this log. Otherwise the slave starts where the log does, or, if it is empty,
        with the last file."""
        assert self.hello is not None
        starts = {int(self._welcomed.min)}
        if not self.hello.end:
            starts.add(self._welcomed.end // self._facts.file_bytes * self._facts.file_bytes)
        if offset > self._common_end and offset not in starts:
            raise PeerRefused(
                f"the first report of the slave is {offset}; by its greeting it has this log up to "
                f"{self._common_end}"
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
        self._spoke_s = now_s
        return header + data

    def tick(self, now_s: float) -> bytes:
        """Return a heartbeat if one is due. Raises PeerSilent."""
        if now_s - self._heard_s > self._facts.silence_s:
            raise PeerSilent(f"nothing was received for {now_s - self._heard_s:.1f} s")
        if not self.is_streaming or now_s - self._spoke_s < self._facts.heartbeat_s:
            return b""
        self._spoke_s = now_s
        return FRAME.pack(self.sent, 0)

    def _become(self, state: State) -> None:
        assert state in ALLOWED[self.state], f"{self.state.name} may not become {state.name}"
        self.state = state


def proof_of(secret: str, who: str, nonce: str) -> str:
    """Return the proof that `who` knows the secret, for the peer that chose the nonce."""
    if not secret:
        return ""
    return hmac.new(secret.encode(), f"{who}:{nonce}".encode(), hashlib.sha256).hexdigest()


def is_proof(proof: str, secret: str, who: str, nonce: str) -> bool:
    # Compared as bytes: compare_digest rejects text that is not ASCII.
    return hmac.compare_digest(
        proof.encode(errors="replace"), proof_of(secret, who, nonce).encode()
    )
