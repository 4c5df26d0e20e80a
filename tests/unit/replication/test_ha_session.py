"""Both sides of a connection, without a socket."""

import random
import struct

import pytest
from ha_pair import FILE_BYTES, FIRST, FakeLog, byte_at, facts, hello, slave_session, stream

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.replication.errors import PeerRefused, PeerSilent, Superseded
from tianzhou.replication.ha_epochs import Mark
from tianzhou.replication.ha_frames import (
    FRAME,
    FRAME_BYTES_MAX,
    REPORT,
    Hello,
    Probe,
    Proof,
    Welcome,
    encode_spoken,
    encode_words,
)
from tianzhou.replication.ha_session import (
    MASTER_ALLOWED,
    SLAVE_ALLOWED,
    MasterSession,
    MasterState,
    SlaveState,
)


def report(offset: int) -> bytes:
    return REPORT.pack(offset)


@pytest.mark.parametrize("cut", [1, 7, 8, 13, 100])
def test_session_streams_the_log_in_order_in_any_chunking(cut: int) -> None:
    log = FakeLog(end=2500)
    master, slave = log.session(facts()), slave_session(hello())
    answer = b"".join(_in_pieces(master, slave.greeting(), cut))
    assert slave.received(answer, 0.0) == []
    assert slave.welcome is not None
    assert (slave.welcome.end, slave.welcome.file_bytes) == (2500, FILE_BYTES)
    master.received(slave.agreed() + slave.report(PhysicalOffset(0), 0.0), 0.0)
    assert master.is_streaming
    sent = stream(master)
    got: dict[int, int] = {}
    for at in range(0, len(sent), cut):
        for piece in slave.received(sent[at : at + cut], 0.0):
            got |= {piece.offset + rank: byte for rank, byte in enumerate(piece.data)}
    assert got == {offset: byte_at(offset) for offset in range(2500)}
    assert slave.master_end == 2500
    master.received(slave.report(PhysicalOffset(2500), 0.0), 0.0)
    assert master.acked == 2500


def _in_pieces(master: MasterSession, data: bytes, cut: int) -> list[bytes]:
    return [master.received(data[at : at + cut], 0.0) for at in range(0, len(data), cut)]


def test_session_frames_stay_inside_a_file_and_below_the_limit() -> None:
    master = FakeLog(end=2500).session(facts())
    master.received(report(900), 0.0)  # one of RocketMQ's
    sent, at = stream(master), 0
    frames: list[tuple[int, int]] = []
    while at < len(sent):
        offset, size = FRAME.unpack_from(sent, at)
        frames.append((offset, size))
        at += FRAME.size + size
    assert frames[0] == (900, 100)
    assert all(
        size <= 100 and offset // FILE_BYTES == (offset + size - 1) // FILE_BYTES
        for offset, size in frames
    )
    assert sum(size for _, size in frames) == 1600


def test_session_of_an_empty_rocketmq_slave_starts_at_the_last_file() -> None:
    master = FakeLog(end=2500).session(facts())
    master.received(report(0), 0.0)
    assert master.next_range() == (2000, 100)
    assert master.acked == 0


@pytest.mark.parametrize("wrong", [2501, 400, 1 << 62])
def test_s32_report_beyond_the_sent_offset_or_going_back_is_rejected(wrong: int) -> None:
    master = FakeLog(end=2500).session(facts())
    master.received(report(500), 0.0)
    stream(master)
    with pytest.raises(PeerRefused, match=str(wrong)):
        master.received(report(wrong), 0.0)


LATER = (*FIRST, Mark(epoch=2, run=0, start=600, token="bb"))


@pytest.mark.parametrize(
    ("told", "first"),
    [
        (hello(), 2500),
        (hello(), 1500),
        (hello(end=500, marks=FIRST), 501),
        (hello(end=900, marks=FIRST), 900),  # it should have cut its log at 600
        (hello(end=900, marks=FIRST), 2000),
    ],
    ids=["all", "not the start of a file", "more than it has", "its own tail", "the last file"],
)
def test_s32_first_report_beyond_the_common_log_is_rejected(told: Hello, first: int) -> None:
    master = FakeLog(min=400, end=2500).session(facts(marks=LATER))
    master.received(encode_words(told), 0.0)
    with pytest.raises(PeerRefused, match=f"first report of the slave is {first}"):
        master.received(report(first), 0.0)
    assert (master.is_streaming, master.acked) == (False, 0)


@pytest.mark.parametrize(
    ("told", "first"),
    [
        (hello(), 400),  # where the log begins
        (hello(), 2000),  # where its last file begins: from_last_file
        (hello(end=900, marks=FIRST), 600),
        (hello(end=900, marks=FIRST), 450),  # what it has flushed
        (hello(end=300, marks=FIRST), 400),  # what follows has expired
        (hello(end=700, marks=LATER), 700),
    ],
)
def test_session_first_report_within_the_common_log_is_accepted(told: Hello, first: int) -> None:
    log = FakeLog(min=400, end=2500)
    master = log.session(facts(marks=LATER))
    master.received(encode_words(told), 0.0)
    log.end = 3100  # sends go on meanwhile
    master.received(report(first), 0.0)
    assert (master.is_streaming, master.acked, master.sent) == (True, first, first)


def test_session_report_beyond_the_sent_offset_is_rejected() -> None:
    master = FakeLog(end=2500).session(facts())
    master.received(report(500), 0.0)
    with pytest.raises(PeerRefused, match="up to 500"):
        master.received(report(600), 0.0)


@pytest.mark.parametrize("start", [2501, -5])
def test_session_start_outside_the_log_is_rejected(start: int) -> None:
    master = FakeLog(min=1000, end=2500).session(facts())
    with pytest.raises(PeerRefused):
        master.received(struct.pack(">q", start), 0.0)
    behind = FakeLog(min=1000, end=2500).session(facts())
    with pytest.raises(PeerRefused, match="1000 to 2500"):
        behind.received(report(999), 0.0)


def test_session_greeting_of_another_broker_or_log_is_rejected() -> None:
    for told, reason in (
        (hello(name="broker-b"), "broker-b"),
        (hello(id=0), "id 0"),
        (hello(end=10, marks=(Mark(epoch=1, run=0, start=0, token="zz"),)), "another log"),
        (hello(end=10), "another log"),
    ):
        with pytest.raises(PeerRefused, match=reason):
            FakeLog(end=100).session(facts()).received(encode_words(told), 0.0)
    with pytest.raises(PeerRefused, match="ha_plain_peers"):
        FakeLog().session(facts(admits_plain=False)).received(report(0), 0.0)


def test_session_log_without_epochs_must_match_the_probe() -> None:
    probe = Probe(start=0, size=10, crc=77)
    log = FakeLog(end=100, known={probe})
    log.session(facts()).received(encode_words(hello(end=10, probe=probe)), 0.0)


def test_session_greeting_with_a_later_epoch_is_accepted() -> None:
    later = (*FIRST, Mark(epoch=2, run=0, start=50, token="bb"))
    with pytest.raises(Superseded) as caught:
        FakeLog(end=100).session(facts()).received(encode_words(hello(end=60, marks=later)), 0.0)
    assert caught.value.epoch == 2


def test_session_slave_of_another_master_of_the_same_epoch_is_rejected() -> None:
    ours = (*FIRST, Mark(epoch=2, run=0, start=50, token="bb"))
    theirs = (*FIRST, Mark(epoch=2, run=0, start=40, token="cc"))
    log = FakeLog(end=100)
    with pytest.raises(PeerRefused, match="two masters of this group had epoch 2"):
        log.session(facts(marks=ours)).received(encode_words(hello(end=60, marks=theirs)), 0.0)
    log.session(facts(marks=ours)).received(encode_words(hello(end=60, marks=ours)), 0.0)


def test_session_with_a_secret_needs_proofs_of_both_sides() -> None:
    log = FakeLog(end=100)
    master, slave = log.session(facts(secret="s3")), slave_session(hello(), secret="s3")
    slave.received(master.received(slave.greeting(), 0.0), 0.0)
    master.received(slave.agreed(), 0.0)
    master.received(slave.report(PhysicalOffset(0), 0.0), 0.0)
    assert master.is_streaming
    liar = log.session(facts(secret="s3"))
    liar.received(encode_words(hello()), 0.0)
    with pytest.raises(PeerRefused, match="did not prove"):
        liar.received(report(0), 0.0)
    wrong = slave_session(hello(), secret="other")
    with pytest.raises(PeerRefused, match="does not know the secret"):
        wrong.received(log.session(facts(secret="s3")).received(wrong.greeting(), 0.0), 0.0)


@pytest.mark.parametrize(
    "text",
    [
        b'{"cluster":"DefaultCluster","name":"broker-a","id":99999999999999999999,"end":0}',
        b'{"cluster":"DefaultCluster","name":"broker-a","id":1,"end":-1}',
        b'{"x":' * 10_000,
        b'{"cluster":"\xff"}',
    ],
)
def test_s32_greeting_that_cannot_be_decoded_is_rejected(text: bytes) -> None:
    text += b" " * (-len(text) % 7)
    words = b"".join(b"\xff" + text[at : at + 7] for at in range(0, len(text), 7))
    head = struct.pack(">B4sBH", 0xFF, b"TZHA", 1, len(text) // 7)
    with pytest.raises(PeerRefused, match="can't be read"):
        FakeLog(end=100).session(facts()).received(head + words, 0.0)


def test_s32_proof_that_is_not_ascii_is_rejected() -> None:
    master = FakeLog(end=100).session(facts(secret="s3"))
    master.received(encode_words(hello()), 0.0)
    with pytest.raises(PeerRefused, match="does not know the secret"):
        master.received(encode_words(Proof(proof="\u00e9\ud7ff")), 0.0)


def test_session_detects_silence_and_sends_keepalives() -> None:
    master, slave = FakeLog(end=100).session(facts()), slave_session(None)
    master.received(slave.report(PhysicalOffset(0), 0.0), 0.0)
    assert master.tick(4.9) == b""
    assert master.tick(5.1) == FRAME.pack(0, 0)
    assert slave.received(FRAME.pack(0, 0), 5.1) == []
    assert slave.tick(5.1) == REPORT.pack(0)
    with pytest.raises(PeerSilent, match="nothing was received"):
        master.tick(20.5)
    with pytest.raises(PeerSilent):
        slave.tick(25.2)


def test_session_with_garbage_closes_the_connection() -> None:
    dice = random.Random(7)
    for _ in range(3000):
        master = FakeLog(min=1000, end=2500).session(facts())
        data = bytes(dice.choices(range(256), k=dice.randrange(1, 60)))
        try:
            master.received(data, 0.0)
        except PeerRefused:
            continue
        assert not master.is_streaming or 1000 <= master.acked <= 2500
    for _ in range(3000):
        slave = slave_session(hello() if dice.random() < 0.5 else None)
        data = bytes(dice.choices(range(256), k=dice.randrange(1, 60)))
        try:
            pieces = slave.received(data, 0.0)
        except PeerRefused:
            continue
        assert all(piece.offset >= 0 for piece in pieces)


def test_session_hello_reads_as_negative_offsets_to_rocketmq() -> None:
    words = encode_words(hello(end=123_456, marks=FIRST))
    assert len(words) % 8 == 0
    assert all(offset < 0 for (offset,) in REPORT.iter_unpack(words))


def test_session_states_are_those_of_the_documents() -> None:
    assert MASTER_ALLOWED[MasterState.STREAMING] == frozenset()
    reached = {state for targets in MASTER_ALLOWED.values() for state in targets}
    assert reached == set(MasterState) - {MasterState.GREETING}
    assert SLAVE_ALLOWED[SlaveState.WAITING] == {SlaveState.AGREED, SlaveState.STREAMING}


# The slave's side

GOOD = Welcome(cluster="DefaultCluster", name="broker-a", marks=FIRST, end=10, file_bytes=1000)


def test_follower_accepts_a_log_from_rocketmq_without_a_welcome() -> None:
    slave = slave_session(None)
    assert slave.greeting() == b""
    (piece,) = slave.received(FRAME.pack(2000, 3) + b"abc", 0.0)
    assert piece == (2000, b"abc")
    assert slave.state is SlaveState.STREAMING
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
