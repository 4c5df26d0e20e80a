"""Connections between the members of a Raft group.

Every member connects to every other one and sends on the connection that it opened; only the
greeting is answered on the same connection. A message that cannot be delivered now is dropped: Raft
resends what matters.

    frame     size 4, big-endian | payload
    greeting  the first frame of the dialling member: JSON with the group, both names, what it is
              (a copy or the witness), size of log files (equal on all copies) and the address of
              its broker
    answer    the first frame of the listening member: JSON with its broker's address and what it
              is, or an error
    proof     the second frame of the dialling member, if there is a shared secret: JSON
    message   all other frames, see `raft/codec.py`

With a secret, greeting and answer each carry a nonce, and answer and proof prove that their sender
knows the secret: an HMAC-SHA256 of the other's nonce, the kind of frame, the group, the sender's
name and the receiver's name. Other frames are ignored before that.
"""

import asyncio
import enum
import json
import logging
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

from tianzhou.base.errors import ProtocolError
from tianzhou.net.acceptor import Acceptor, bind
from tianzhou.net.admission import Slot
from tianzhou.net.connect import connect
from tianzhou.net.limits import RAFT_PORT
from tianzhou.raft import codec
from tianzhou.raft.messages import Message, NodeId
from tianzhou.replication.ha_frames import is_proof, proof_of

log: Final = logging.getLogger("tianzhou.raft")

FRAME_BYTES_MAX: Final = 64 << 20
GREETING_BYTES_MAX: Final = 4096
UNSENT_BYTES_MAX: Final = 64 << 20
"""More than this is not queued for a member that does not read."""
CONNECT_S: Final = 2.0
GREET_S: Final = RAFT_PORT.prove_s
"""A peer that has not proven its membership by then is not a member, or is dead."""
UNHEARD_MS: Final = 10_000
"""A machine that acknowledges nothing for this long has probably lost power. The member reconnects
until it is back; the system itself retries an old connection only every other minute."""
CONNECTIONS_PER_MEMBER: Final = 4
RETRY_S: Final = 0.2
RETRY_MAX_S: Final = 1.0
_VERSION: Final = 1


class MemberKind(enum.Enum):
    """What a member stores. Members must agree on it: messages for a copy and for a witness
    differ."""

    COPY = "copy"
    WITNESS = "witness"


class Greeting(NamedTuple):
    """The first frame of a connection: which member opened it."""

    group: str
    member: NodeId
    file_bytes: int
    broker: str
    """The address of this member's broker."""
    kind: MemberKind = MemberKind.COPY

    def text(self, to: NodeId, nonce: str) -> bytes:
        value = {**self._asdict(), "to": to, "version": _VERSION, "nonce": nonce}
        return json.dumps({**value, "kind": self.kind.value}).encode()


class PeerConnection(asyncio.Protocol):
    """One connection: frames in, frames out. Owner: the event loop."""

    def __init__(
        self,
        on_frame: Callable[["PeerConnection", bytes], None],
        on_closed: Callable[["PeerConnection"], None],
        slot: Slot | None = None,
    ) -> None:
        """`slot` belongs to an accepted connection; outgoing connections have none."""
        self.slot = slot
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self.member: NodeId = ""
        """The name of the peer, once it has greeted and, with a secret, proven it."""
        self.greeted: dict[str, Any] = {}
        """The greeting of a peer that has not proven itself yet."""
        self.nonce = secrets.token_hex(16)
        """The nonce that the peer must sign."""
        loop = asyncio.get_running_loop()
        self.since = loop.time()
        self.closed = loop.create_future()
        # For an accepted connection the deadline of its slot applies.
        self._expiry = loop.call_later(GREET_S, self._expire) if slot is None else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if sys.platform == "linux":
            made = self._transport.get_extra_info("socket")
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNHEARD_MS)

    def _expire(self) -> None:
        if not self.member:
            self.abort()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 4:
            size = int.from_bytes(buffer[at : at + 4], "big")
            if size > (FRAME_BYTES_MAX if self.member else GREETING_BYTES_MAX):
                log.warning("raft.frame_too_large", extra={"peer": self.remote, "size": size})
                self.close()
                return
            if len(buffer) - at - 4 < size:
                break
            self._on_frame(self, bytes(buffer[at + 4 : at + 4 + size]))
            at += 4 + size
        del buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._expiry is not None:
            self._expiry.cancel()
        if self.slot is not None:
            self.slot.release()
        if not self.closed.done():
            self.closed.set_result(None)
        self._on_closed(self)

    def send(self, pieces: list[Any]) -> bool:
        """Queue a frame; False if it was dropped."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        if transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            return False
        size = sum(map(len, pieces))
        transport.writelines([size.to_bytes(4, "big"), *pieces])
        return True

    @property
    def remote(self) -> str:
        name = self._transport.get_extra_info("peername") if self._transport else None
        return "{}:{}".format(*name[:2]) if name else "unknown"

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Peers:
    """Connections to all members of a group. Owner: the event loop."""

    def __init__(
        self,
        greeting: Greeting,
        on_message: Callable[[Message], None],
        on_lost: Callable[[NodeId], None],
        kind_of: Callable[[NodeId], MemberKind | None],
        *,
        secret: str = "",
    ) -> None:
        self._secret = secret
        self._greeting = greeting
        self._on_message = on_message
        self._on_lost = on_lost
        self._kind_of = kind_of
        self._acceptor: Acceptor | None = None
        self._addresses: dict[NodeId, str] = {}
        self._dialers: dict[NodeId, asyncio.Task[None]] = {}
        self._out: dict[NodeId, PeerConnection] = {}
        self._in: set[PeerConnection] = set()
        self._refused: dict[NodeId, str] = {}
        self.brokers: dict[NodeId, str] = {greeting.member: greeting.broker}
        """Addresses of the members' brokers, as far as known."""

    def listen(self, host: str, port: int) -> int:
        """Accept members at this address; port 0 selects a free one. Returns the port."""
        bound = bind(host, port)
        self._acceptor = Acceptor(replace(RAFT_PORT, prove_s=GREET_S), self._accept)
        self._acceptor.listen(bound)
        return bound.getsockname()[1]

    def reach(self, addresses: Mapping[NodeId, str]) -> None:
        """Keep connections to these members, and to no others."""
        wanted = {name: at for name, at in addresses.items() if name != self._greeting.member}
        for name in self._addresses.keys() - {
            n for n, at in wanted.items() if at == self._addresses.get(n)
        }:
            self._dialers.pop(name).cancel()
            if (wire := self._out.pop(name, None)) is not None:
                wire.close()
        for name in wanted.keys() - self._dialers.keys():
            task = asyncio.get_running_loop().create_task(self._dial(name, wanted[name]))
            self._dialers[name] = task
        self._addresses = wanted

    def is_connected(self, member: NodeId) -> bool:
        return member in self._out

    def send(self, message: Message) -> None:
        wire = self._out.get(message.to)
        if wire is not None:
            wire.send(codec.encode(message))

    # Dialing

    async def _dial(self, member: NodeId, address: str) -> None:
        host, _, port = address.rpartition(":")
        pause = RETRY_S
        while True:
            try:
                wire = await connect(
                    lambda: PeerConnection(self._on_answer, self._on_dropped),
                    host.strip("[]"),
                    int(port),
                    timeout_s=CONNECT_S,
                )
            except (OSError, TimeoutError, MemoryError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_MAX_S)
                continue
            wire.send([self._greeting.text(member, wire.nonce)])
            try:
                await wire.closed
            finally:
                wire.close()
            pause = RETRY_S if member not in self._refused else RETRY_MAX_S
            await asyncio.sleep(pause)

    def _on_answer(self, wire: PeerConnection, frame: bytes) -> None:
        """Handle the answer of a member to our greeting."""
        value = _json(frame)
        name = value.get("member", "")
        reason = str(value.get("error", ""))
        if not reason and self._addresses.get(name) is None:
            reason = f"{name!r} answered, which is not a member"
        if not reason and not self._is_proof("answer", value, wire.nonce, by=name):
            reason = f"{name} does not know raft_secret; set the same raft_secret on all members"
        if not reason:
            reason = self._misfit(name, value)
        if reason:
            if self._refused.get(name) != reason:
                log.warning("raft.refused", extra={"peer": wire.remote, "reason": reason})
            self._refused[name] = reason
            wire.close()
            return
        self._refused.pop(name, None)
        if self._secret:
            proof = self._proof("proof", value, to=name)
            wire.send([json.dumps({"proof": proof}).encode()])
        wire.member = name
        self.brokers[name] = str(value.get("broker", ""))
        self._out[name] = wire

    def _on_dropped(self, wire: PeerConnection) -> None:
        if self._out.get(wire.member) is wire:
            del self._out[wire.member]

    # Listening

    def _accept(self, slot: Slot) -> PeerConnection:
        wire = PeerConnection(self._received, self._on_closed, slot)
        self._in.add(wire)
        return wire

    def _received(self, wire: PeerConnection, frame: bytes) -> None:
        if wire.greeted:
            self._on_proof(wire, frame)
            return
        if not wire.member:
            self._on_greeting(wire, frame)
            return
        try:
            message = codec.decode(frame)
        except ProtocolError as error:
            log.warning("raft.nonsense", extra={"peer": wire.member, "reason": str(error)})
            wire.close()
            return
        if message.sender == wire.member and message.to == self._greeting.member:
            self._on_message(message)

    def _on_greeting(self, wire: PeerConnection, frame: bytes) -> None:
        value, ours = _json(frame), self._greeting
        problem = self._problem(value)
        if problem:
            self._reject(wire, problem)
            return
        proof = self._proof("answer", value, to=value["member"])
        answer = {
            "member": ours.member,
            "broker": ours.broker,
            "kind": ours.kind.value,
            "nonce": wire.nonce,
            "proof": proof,
        }
        wire.send([json.dumps(answer).encode()])
        if self._secret:
            wire.greeted = value
        else:
            self._admit(wire, value)

    def _on_proof(self, wire: PeerConnection, frame: bytes) -> None:
        value, wire.greeted = wire.greeted, {}
        if self._is_proof("proof", _json(frame), wire.nonce, by=value["member"]):
            self._admit(wire, value)
        else:
            self._reject(wire, f"{value['member']} does not know raft_secret")

    def _reject(self, wire: PeerConnection, problem: str) -> None:
        log.warning("raft.stranger", extra={"peer": wire.remote, "reason": problem})
        answer = {"error": problem, "member": self._greeting.member}
        wire.send([json.dumps(answer).encode()])
        wire.close()

    def _admit(self, wire: PeerConnection, value: dict[str, Any]) -> None:
        assert wire.slot is not None, "only accepted connections are admitted"
        if not wire.slot.prove():
            self._reject(wire, "members have too many connections; close some of them")
            return
        self._replace_oldest(value["member"])
        wire.member = value["member"]
        self.brokers[wire.member] = str(value.get("broker", ""))

    def _replace_oldest(self, member: NodeId) -> None:
        """Close the oldest connection of a member that has too many. A member needs one; an old one
        may remain for a while after it reconnected, but more would take the slots of other
        members."""
        known = [wire for wire in self._in if wire.member == member]
        if len(known) >= CONNECTIONS_PER_MEMBER:
            min(known, key=lambda wire: wire.since).abort()

    # Proving

    def _proof(self, frame: str, value: dict[str, Any], *, to: NodeId) -> str:
        context = _proof_context(frame, self._greeting.group, self._greeting.member, to)
        return proof_of(self._secret, context, str(value.get("nonce", "")))

    def _is_proof(self, frame: str, value: dict[str, Any], nonce: str, *, by: NodeId) -> bool:
        if not self._secret:
            return True
        context = _proof_context(frame, self._greeting.group, by, self._greeting.member)
        return is_proof(str(value.get("proof", "")), self._secret, context, nonce)

    def _problem(self, value: dict[str, Any]) -> str:
        """Return why a greeting is rejected; empty if it is accepted."""
        ours = self._greeting
        if value.get("version") != _VERSION or value.get("group") != ours.group:
            return f"this is {ours.member} of group {ours.group}, version {_VERSION}"
        if value.get("to") != ours.member:
            return f"this is {ours.member}, not {value.get('to')!r}"
        name = value.get("member", "")
        if self._kind_of(name) is None:
            return f"{name!r} is not a member of group {ours.group}; add it first"
        if misfit := self._misfit(name, value):
            return misfit
        has_files = MemberKind.WITNESS not in (ours.kind, self._kind_of(name))
        if has_files and value.get("file_bytes") != ours.file_bytes:
            return (
                f"log files have {value.get('file_bytes')} bytes there and {ours.file_bytes} here; "
                "set the same commit_log_file_bytes on all members"
            )
        return ""

    def _misfit(self, name: NodeId, value: dict[str, Any]) -> str:
        """Return why a member that says what it is does not fit the group; empty if it does."""
        kind, wanted = value.get("kind", MemberKind.COPY.value), self._kind_of(name)
        if wanted is None or kind == wanted.value:
            return ""
        return (
            f"group {self._greeting.group} has {name} as a {wanted.value}, but it runs as a "
            f"{kind}; set the same raft_witness on all members, or remove it and add it under "
            "another name"
        )

    def _on_closed(self, wire: PeerConnection) -> None:
        """Handle the end of a connection. If it was the member's last one, the member is probably
        gone."""
        self._in.discard(wire)
        if wire.member and not any(other.member == wire.member for other in self._in):
            self._on_lost(wire.member)

    # Ending

    async def close(self) -> None:
        for task in self._dialers.values():
            task.cancel()
        await asyncio.gather(*self._dialers.values(), return_exceptions=True)
        if self._acceptor is not None:
            self._acceptor.close()
        for wire in (*self._out.values(), *tuple(self._in)):
            wire.close()

    def abort(self) -> None:
        """Close everything at once, as the end of a process does."""
        for task in self._dialers.values():
            task.cancel()
        if self._acceptor is not None:
            self._acceptor.close()
        for wire in (*self._out.values(), *tuple(self._in)):
            wire.abort()


def _proof_context(frame: str, group: str, by: NodeId, to: NodeId) -> str:
    """The context of a proof: sender, receiver and kind of frame. It prevents replaying the proof
    of another member, and reflecting an answer as the proof that a dialling member must send."""
    return json.dumps([frame, group, by, to])


def _json(frame: bytes) -> dict[str, Any]:
    """Parse an untrusted frame; only strings and integers are kept."""
    try:
        value = json.loads(frame)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    fields = cast("dict[str, Any]", value)
    return {name: field for name, field in fields.items() if isinstance(field, str | int)}
