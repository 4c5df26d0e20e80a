"""What a member says of its group, as JSON and back."""

import pytest

from tianzhou.base.errors import TianzhouError
from tianzhou.wire import fastjson
from tianzhou.wire.raft_bodies import RaftPeer, RaftView, decode_raft_view

LOOK = RaftView(
    applied=7,
    commit=8,
    first=1,
    group="g",
    is_changing=False,
    is_in_doubt=False,
    is_leading=True,
    last=9,
    leader="n0",
    leader_broker="127.0.0.1:10911",
    member="n0",
    peers=(
        RaftPeer(address="127.0.0.1:10912", is_connected=True, is_voter=True, match=9, name="n0"),
        RaftPeer(address="", is_connected=False, is_in_doubt=True, is_voter=False, name="n1"),
    ),
    role="Leader",
    term=3,
)


def test_raft_view_round_trips() -> None:
    assert decode_raft_view(fastjson.encode(LOOK)) == LOOK


def test_raft_view_uses_the_names_of_other_bodies() -> None:
    text = fastjson.encode(LOOK)
    assert b'"isLeading":true' in text
    assert b'"leaderBroker":"127.0.0.1:10911"' in text


def test_raft_view_with_missing_fields_is_rejected() -> None:
    with pytest.raises(TianzhouError):
        decode_raft_view(b'{"applied": 7}')
