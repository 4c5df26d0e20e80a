"""The bytes between master and slave.

RocketMQ's, which every peer understands:

    slave → master   i64 end of the slave's log: where to continue, and what it confirms
    master → slave   i64 offset | i32 size | size bytes of the log; without bytes: a heartbeat

Tianzhou's greeting, before these, so that both sides know their peer. A slave sends words of eight
bytes, each of which starts with FF: a RocketMQ master reads them as negative offsets, which it
ignores. The master responds with a frame whose offset is negative, which RocketMQ never sends.

    slave → master   FF "TZHA" version 1 | count 2, then `count` words FF | 7 bytes of text
    master → slave   i64 -1 | i32 size | size bytes of text
"""

import hashlib
import hmac
import struct
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.replication.errors import PeerRefused
from tianzhou.replication.ha_epochs import Count, Epoch, Mark

REPORT: Final = struct.Struct(">q")
FRAME: Final = struct.Struct(">qi")
SPOKEN: Final = -1
"""Offset of a frame that holds a greeting instead of log bytes."""
WORD: Final = 8
_MARK: Final = 0xFF
_HEAD: Final = struct.Struct(">B4sBH")
_NAME: Final = b"TZHA"
_VERSION: Final = 1
WORDS_MAX: Final = 8_192
"""56 KiB of text: thousands of masters, one after the other."""
SPOKEN_BYTES_MAX: Final = 64 * 1024
COPIES_MAX: Final = 16
FRAME_BYTES_MAX: Final = 4 * 1024 * 1024
"""RocketMQ's slaves have a buffer of this size."""

assert _HEAD.size == WORD


class LogBytes(NamedTuple):
    """Bytes of the master's log."""

    offset: PhysicalOffset
    data: bytes


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """The last bytes of a log: a log with different bytes at this offset is a different log."""

    start: Count
    size: Count
    crc: Count


class Hello(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first message of a slave."""

    cluster: str
    name: str
    id: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    end: Count
    marks: tuple[Mark, ...] = ()
    probe: Probe | None = None
    nonce: str = ""
    address: str = ""
    """The address at which the slave serves clients."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The master's response to a hello."""

    cluster: str = ""
    name: str = ""
    marks: tuple[Mark, ...] = ()
    min: Count = 0
    end: Count = 0
    file_bytes: Count = 0
    confirm_at_once: bool = True
    """Whether responses wait for reports; otherwise the slave may delay and combine them."""
    confirm_flushed: bool = False
    """Whether to report only flushed bytes."""
    copies: Annotated[int, msgspec.Meta(ge=1, le=COPIES_MAX)] = 1
    """Replicas that must hold a message before it is acknowledged; a promoted slave adopts it."""
    copies_min: Annotated[int, msgspec.Meta(ge=0, le=COPIES_MAX)] = 0
    """The lowest value an operator may set at run time; 0 from masters of earlier versions."""
    nonce: str = ""
    proof: str = ""
    refusal: str = ""
    """Why the master refuses to send its log; the connection is closed."""
    superseded_by: Epoch = 0
    """Epoch of a later master that the refused side should follow instead."""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The slave's message after the welcome, if a secret is shared."""

    proof: str


T = TypeVar("T")


def encode_words(value: msgspec.Struct) -> bytes:
    """Encode a message from slave to master."""
    text = msgspec.json.encode(value)
    text += b" " * (-len(text) % (WORD - 1))
    count = len(text) // (WORD - 1)
    assert count <= WORDS_MAX, f"a greeting of {len(text)} bytes is too long"
    pieces = [_HEAD.pack(_MARK, _NAME, _VERSION, count)]
    pieces += [b"\xff" + text[at : at + WORD - 1] for at in range(0, len(text), WORD - 1)]
    return b"".join(pieces)


def words_size(buffer: bytes | bytearray) -> int | None:
    """Return the size of the greeting at the start of the buffer; None: not enough was received."""
    if len(buffer) < WORD:
        return None
    mark, name, version, count = _HEAD.unpack_from(buffer)
    if (mark, name) != (_MARK, _NAME) or not 0 < count <= WORDS_MAX:
        raise PeerRefused(f"{bytes(buffer[:16]).hex(' ')} is neither an offset nor a greeting")
    if version != _VERSION:
        raise PeerRefused(f"the peer speaks version {version}; this broker speaks {_VERSION}")
    return WORD * (1 + count)


def decode_words(buffer: bytes | bytearray, size: int, kind: type[T]) -> T:
    text = b"".join(bytes(buffer[at + 1 : at + WORD]) for at in range(WORD, size, WORD))
    return _decode(text, kind)


def encode_spoken(value: msgspec.Struct) -> bytes:
    """Encode a message from master to slave."""
    text = msgspec.json.encode(value)
    return FRAME.pack(SPOKEN, len(text)) + text


def decode_spoken(text: bytes | bytearray) -> Welcome:
    return _decode(bytes(text), Welcome)


def _decode(text: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise PeerRefused(f"the greeting can't be read: {error}") from error


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
