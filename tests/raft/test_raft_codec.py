"""Messages survive encoding; invalid ones are rejected with a specific error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.base.errors import RemoteProtocolError, UsageError
from tianzhou.raft.codec import decode, encode
from tianzhou.raft.membership import members_of
from tianzhou.raft.messages import (
    Append,
    AppendReply,
    Entry,
    Install,
    Kind,
    LogIndex,
    Message,
    Start,
    Term,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)


def encoded(voters: set[str], addresses: str) -> bytes:
    return members_of(voters)._replace(addresses=addresses).encode()


WORD = st.integers(-(1 << 63), (1 << 63) - 1)
INDEX, TERM, NAME = WORD.map(LogIndex), WORD.map(Term), st.text(max_size=20)
VOTERS = st.sets(st.sampled_from(["n0", "n1", "n2"]), min_size=1)
MEMBERS = st.tuples(VOTERS, st.text(max_size=20)).map(lambda drawn: encoded(*drawn))
OTHERS = st.sampled_from([kind for kind in Kind if kind is not Kind.MEMBERS])
ENTRY = st.one_of(
    st.builds(Entry, INDEX, TERM, OTHERS, st.binary(max_size=30)),
    st.builds(Entry, INDEX, TERM, st.just(Kind.MEMBERS), MEMBERS),
)
HEAD = (TERM, NAME, NAME)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        Append, *HEAD, INDEX, TERM, st.lists(ENTRY, max_size=4).map(tuple), INDEX, WORD, WORD
    ),
    st.builds(AppendReply, *HEAD, INDEX, WORD, WORD, INDEX, INDEX, TERM),
    st.builds(Install, *HEAD, st.builds(Start, INDEX, TERM), MEMBERS, st.binary(), WORD),
    st.builds(VoteRequest, *HEAD, INDEX, TERM, pre=st.booleans(), forced=st.booleans()),
    st.builds(VoteReply, *HEAD, st.booleans(), st.booleans()),
    st.builds(TimeoutNow, *HEAD),
)


@given(MESSAGES)
def test_codec_round_trip_keeps_messages(message: Message) -> None:
    again = decode(b"".join(encode(message)))
    assert again == message
    assert type(again) is type(message)
    assert [type(field) for field in again] == [type(field) for field in message]


@given(MESSAGES, st.data())
def test_codec_of_a_partial_message_returns_none(message: Message, data: st.DataObject) -> None:
    whole = b"".join(encode(message))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(RemoteProtocolError, match="too early"):
        decode(whole[:cut])
    with pytest.raises(RemoteProtocolError, match="1 bytes behind a message"):
        decode(whole + b"x")


@given(st.binary(max_size=200))
def test_codec_rejects_invalid_messages_with_a_specific_error(data: bytes) -> None:
    try:
        message = decode(data)
    except RemoteProtocolError:
        return
    assert decode(b"".join(encode(message))) == message


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"\x09" + bytes(10), "no message of kind 9"),
        (b"\x05" + bytes(8) + b"\x01\x00\xff", "not text"),
        (b"\x00" + bytes(10) + bytes(43) + b"\x01" + bytes(16) + b"\x07" + bytes(4), "of kind 7"),
    ],
)
def test_codec_error_describes_the_problem(data: bytes, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        decode(data)


def test_codec_does_not_copy_data() -> None:
    chunk = bytes(100_000)
    entry = Entry(LogIndex(1), Term(1), Kind.CHUNK, chunk)
    message = Append(Term(1), "a", "b", LogIndex(0), Term(0), (entry,), LogIndex(0), 1, 0)
    assert any(piece is chunk for piece in encode(message))


def test_codec_rejects_names_that_are_too_long() -> None:
    with pytest.raises(UsageError, match="more than 255 bytes"):
        encode(TimeoutNow(Term(1), "x" * 256, "b"))


@pytest.mark.parametrize("members", [b"", b"n0", b"\xff\n\n\n", b"\n\n\n", b"n0\n\nn0\n"])
def test_unreadable_membership_raises_a_protocol_error(members: bytes) -> None:
    entry = Entry(LogIndex(2), Term(1), Kind.MEMBERS, members)
    head = Term(1), "n0", "n1"
    append = Append(*head, LogIndex(1), Term(1), (entry,), LogIndex(1), 1, 0)
    install = Install(*head, Start(LogIndex(2), Term(1)), members, b"[0,[]]", 1)
    for message in (append, install):
        with pytest.raises(RemoteProtocolError, match="members of the group"):
            decode(b"".join(map(bytes, encode(message))))
