"""The state of a Raft group as one member reports it. A Tianzhou extension."""

import msgspec

from tianzhou.wire.fastjson import BodyReader


class RaftPeer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One member, as the responding member knows it."""

    address: str
    is_connected: bool
    is_in_doubt: bool = False
    """It may have forgotten something, and does not count until it is repaired."""
    is_voter: bool
    is_witness: bool = False
    """It votes, and has no messages."""
    match: int = -1
    """As much of the leader's log is on its disk; -1: only the leader knows."""
    name: str


class RaftView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    applied: int
    commit: int
    first: int
    """The oldest entry that is left."""
    group: str
    is_changing: bool
    """A change of members is not finished."""
    is_in_doubt: bool
    is_leading: bool
    """It takes messages."""
    last: int
    leader: str
    leader_broker: str
    """Where clients find it."""
    member: str
    needs_witness: bool = False
    """The leader commits with the witness, because too few copies keep up: new messages are on
    fewer disks than usual."""
    peers: tuple[RaftPeer, ...]
    role: str
    term: int


decode_raft_view = BodyReader(RaftView).read
