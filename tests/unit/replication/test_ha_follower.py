"""The slave's side of a connection."""

import pytest
from ha_pair import FIRST, hello, slave_session

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.replication.errors import PeerRefused, Superseded
from tianzhou.replication.ha_follower import State
from tianzhou.replication.ha_frames import FRAME, FRAME_BYTES_MAX, Welcome, encode_spoken

GOOD = Welcome(cluster="DefaultCluster", name="broker-a", marks=FIRST, end=10, file_bytes=1000)


def test_follower_accepts_a_log_from_rocketmq_without_a_welcome() -> None:
    slave = slave_session(None)
    assert slave.greeting() == b""
    (piece,) = slave.received(FRAME.pack(2000, 3) + b"abc", 0.0)
    assert piece == (2000, b"abc")
    assert slave.state is State.STREAMING
    assert slave.master_end == 2003


def test_follower_rejects_a_master_that_skips_bytes() -> None:
    slave = slave_session(None)
    slave.received(FRAME.pack(0, 3) + b"abc", 0.0)
    with pytest.raises(PeerRefused, match="continues at 5; expected 3"):
        slave.received(FRAME.pack(5, 1) + b"x", 0.0)


@pytest.mark.parametrize(("offset", "size"), [(-2, 5), (0, -1), (0, FRAME_BYTES_MAX + 1)])
def test_follower_rejects_frames_with_invalid_sizes(offset: int, size: int) -> None:
    with pytest.raises(PeerRefused, match="announces"):
        slave_session(None).received(FRAME.pack(offset, size), 0.0)


def test_follower_rejects_a_master_without_a_valid_welcome() -> None:
    with pytest.raises(PeerRefused, match="sends a log without a welcome"):
        slave_session(hello()).received(FRAME.pack(0, 0), 0.0)
    for wrong, reason in (
        (Welcome(cluster="Other", name="broker-a"), "Other"),
        (Welcome(refusal="go away"), "go away"),
    ):
        with pytest.raises(PeerRefused, match=reason):
            slave_session(hello()).received(encode_spoken(wrong), 0.0)
    with pytest.raises(Superseded):
        slave_session(hello()).received(encode_spoken(Welcome(superseded_by=3)), 0.0)
    twice = slave_session(hello())
    with pytest.raises(PeerRefused, match="second or late welcome"):
        twice.received(encode_spoken(GOOD) * 2, 0.0)


def test_follower_reports_an_offset_once_and_never_a_lower_one() -> None:
    slave = slave_session(None)
    assert slave.report(PhysicalOffset(5), 0.0) != b""
    assert slave.report(PhysicalOffset(5), 0.0) == b""
    with pytest.raises(AssertionError, match="never shrinks"):
        slave.report(PhysicalOffset(4), 0.0)
