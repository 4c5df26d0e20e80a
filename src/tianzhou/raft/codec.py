"""Raft messages as bytes, independent of the transport.

    SIZE  NAME         MEANING
    1     kind         which message, see _KINDS
    8     term
    1     sender_size  of the two names in UTF-8
    1     to_size
    ..    sender, to
    ..    the fields of the message, in the order of its class

Numbers are signed, big-endian, 8 bytes; truth values 1 byte; runs of bytes have 4 bytes of size in
front. An append has the number of its entries, then of each: index, term, kind (1 byte), data.

Encoding copies no entry: it returns buffers for a gathering write.
"""

import struct
from typing import Final

from tianzhou.base.errors import RemoteProtocolError, UsageError
from tianzhou.base.kinds import Bytes
from tianzhou.raft import membership
from tianzhou.raft.messages import (
    Append,
    AppendReply,
    Entry,
    Install,
    Kind,
    LogIndex,
    Message,
    NodeId,
    Start,
    Term,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)

_KINDS: Final[tuple[type[Message], ...]] = (
    Append,
    AppendReply,
    Install,
    VoteRequest,
    VoteReply,
    TimeoutNow,
)
_ENTRY_KINDS: Final = frozenset(Kind)
_HEAD: Final = struct.Struct(">BqBB")
_APPEND: Final = struct.Struct(">qqqqqI")
_ENTRY: Final = struct.Struct(">qqBI")
_REPLY: Final = struct.Struct(">qqqqqq")
_INSTALL: Final = struct.Struct(">qqqII")
_REQUEST: Final = struct.Struct(">qq??")
_VOTE: Final = struct.Struct(">??")
NAME_BYTES_MAX: Final = 255


def encode(message: Message) -> list[Bytes]:
    """Return the bytes of a message as buffers; the data of entries is not copied."""
    sender, to = message.sender.encode(), message.to.encode()
    if max(len(sender), len(to)) > NAME_BYTES_MAX:
        raise UsageError(f"{message.sender!r} or {message.to!r} has more than 255 bytes")
    kind = _KINDS.index(type(message))
    head = _HEAD.pack(kind, message.term, len(sender), len(to)) + sender + to
    match message:
        case Append(_, _, _, prev_index, prev_term, entries, commit, round_, repaired):
            fixed = (prev_index, prev_term, commit, round_, repaired, len(entries))
            pieces: list[Bytes] = [head + _APPEND.pack(*fixed)]
            for entry in entries:
                size = len(entry.data)
                pieces += (_ENTRY.pack(entry.index, entry.term, entry.kind, size), entry.data)
            return pieces
        case AppendReply():
            return [head + _REPLY.pack(*message[3:])]
        case Install(_, _, _, start, members, mark, round_):
            fixed = _INSTALL.pack(*start, round_, len(members), len(mark))
            return [head + fixed, members, mark]
        case VoteRequest():
            return [head + _REQUEST.pack(*message[3:])]
        case VoteReply():
            return [head + _VOTE.pack(*message[3:])]
        case TimeoutNow():
            return [head]


def decode(data: Bytes) -> Message:
    """Decode one message, which must use all of the bytes."""
    reader = _Reader(data)
    kind, term, sender_size, to_size = reader.numbers(_HEAD)
    if kind >= len(_KINDS):
        raise RemoteProtocolError(f"there is no message of kind {kind}")
    head = Term(term), reader.name(sender_size), reader.name(to_size)
    message = _decode(_KINDS[kind], head, reader)
    reader.end()
    return message


def _decode(kind: type[Message], head: tuple[Term, NodeId, NodeId], reader: "_Reader") -> Message:
    if kind is Append:
        index, term, commit, round_, repaired, count = reader.numbers(_APPEND)
        entries = tuple(_entry(reader) for _ in range(count))
        return Append(
            *head, LogIndex(index), Term(term), entries, LogIndex(commit), round_, repaired
        )
    if kind is AppendReply:
        match, round_, doubt, rejected, hint, hint_term = reader.numbers(_REPLY)
        where = LogIndex(rejected), LogIndex(hint), Term(hint_term)
        return AppendReply(*head, LogIndex(match), round_, doubt, *where)
    if kind is Install:
        index, term, round_, members_size, mark_size = reader.numbers(_INSTALL)
        members, mark = reader.run(members_size), reader.run(mark_size)
        _check_members(members)
        return Install(*head, Start(LogIndex(index), Term(term)), members, mark, round_)
    if kind is VoteRequest:
        last_index, last_term, pre, forced = reader.numbers(_REQUEST)
        last = LogIndex(last_index), Term(last_term)
        return VoteRequest(*head, *last, pre=bool(pre), forced=bool(forced))
    if kind is VoteReply:
        granted, pre = reader.numbers(_VOTE)
        return VoteReply(*head, bool(granted), bool(pre))
    return TimeoutNow(*head)


def _entry(reader: "_Reader") -> Entry:
    index, term, kind, size = reader.numbers(_ENTRY)
    if kind not in _ENTRY_KINDS:
        raise RemoteProtocolError(f"entry {index} is of kind {kind}, which does not exist")
    data = reader.run(size)
    if kind == Kind.MEMBERS:
        _check_members(data)
    return Entry(LogIndex(index), Term(term), Kind(kind), data)


def _check_members(data: bytes) -> None:
    try:
        membership.check(membership.decode(data))
    except (ValueError, UsageError) as error:
        raise RemoteProtocolError(f"the members of the group can't be read: {error}") from error


class _Reader:
    """Reads fields from the start, and raises if bytes are missing."""

    def __init__(self, data: Bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def numbers(self, layout: struct.Struct) -> tuple[int, ...]:
        self._need(layout.size)
        found: tuple[int, ...] = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return found

    def run(self, size: int) -> bytes:
        self._need(size)
        self._at += size
        return bytes(self._data[self._at - size : self._at])

    def name(self, size: int) -> NodeId:
        raw = self.run(size)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"the name of a member is not text: {raw!r}") from error

    def end(self) -> None:
        if self._at != len(self._data):
            raise RemoteProtocolError(f"{len(self._data) - self._at} bytes behind a message")

    def _need(self, size: int) -> None:
        missing = self._at + size - len(self._data)
        if missing > 0:
            raise RemoteProtocolError(f"a message ends {missing} bytes too early, at {self._at}")
