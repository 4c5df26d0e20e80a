"""Transactional messages: invisible until committed, decided once, asked about, never dropped."""

from dataclasses import replace

import pytest

from tianzhou.base.kinds import queue_key
from tianzhou.broker import names, transaction_checks
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.half_queue import HALF_QUEUE, op_entry
from tianzhou.record import properties
from tianzhou.record.chunk import Entry
from tianzhou.record.ids import Host
from tianzhou.record.message import MessageView
from tianzhou.store.config import FlushMode
from tianzhou.store.facts import SCHEDULE_TOPIC
from tianzhou.testing.small_broker import STORE, RecordingPeer, SmallBroker, Told
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_send import CheckTransactionStateRequest
from tianzhou.wire.header import Header

GROUP = "buyers"
COMMIT, ROLLBACK, UNKNOWN = "8", "12", "0"


def send_half(broker: SmallBroker, body: bytes = b"half", **named: str) -> MessageView:
    """Send a half message; the half as it is stored."""
    named = {"TRAN_MSG": "true", "PGROUP": GROUP, "TAGS": "a"} | named
    answer = broker.send("orders", body, named, queue_id=2, sys_flag=4)
    assert answer.code == 0
    half = broker.messages(names.HALF_TOPIC)[-1]
    assert answer.ext["queueOffset"] == str(half.queue_offset)
    assert answer.ext["transactionId"] == half.unique_id
    return half


def decide(
    broker: SmallBroker, half: MessageView, decision: str, *, oneway: bool = False, **more: str
) -> Header | None:
    ext = {
        "producerGroup": GROUP,
        "tranStateTableOffset": str(half.queue_offset),
        "commitLogOffset": str(half.physical_offset),
        "commitOrRollback": decision,
        "msgId": half.unique_id or "",
    } | more
    return broker.ask(RequestCode.END_TRANSACTION, ext, oneway=oneway)


def code_of(answer: Header | None) -> int:
    assert answer is not None
    return answer.code


def visible(broker: SmallBroker) -> list[bytes]:
    return broker.bodies("orders", 2)


def ops(broker: SmallBroker) -> list[bytes]:
    return broker.bodies(names.OP_TOPIC)


def producer(broker: SmallBroker, port: int = 1000) -> RecordingPeer:
    peer = RecordingPeer("10.2.2.2", port)
    broker.heartbeat(peer, f"producer-{port}", producers=(GROUP,))
    return peer


def checks(peer: RecordingPeer) -> list[Told]:
    told = peer.take_told()
    assert all(one.code == RequestCode.CHECK_TRANSACTION_STATE for one in told)
    return told


def test_a_half_is_invisible_and_remembers_where_it_is_meant_to_go() -> None:
    broker = SmallBroker()
    half = send_half(broker)
    assert visible(broker) == []
    assert half.sys_flag & 0xC == 0
    assert half.properties["REAL_TOPIC"] == "orders"
    assert half.properties["REAL_QID"] == "2"
    assert half.properties["__transactionId__"] == half.unique_id


def test_a_commit_reveals_the_message() -> None:
    broker = SmallBroker()
    half = send_half(broker)
    assert code_of(decide(broker, half, COMMIT)) == 0
    (message,) = broker.messages("orders", 2)
    assert message.body == b"half"
    assert message.sys_flag & 0xC == 8
    assert message.prepared_offset == half.physical_offset
    assert message.born_host == Host("10.1.1.1", 4711)
    assert message.born_timestamp == half.born_timestamp
    assert message.unique_id == half.unique_id
    assert message.tags == "a"
    assert message.properties["TRAN_MSG"] == "true"
    assert ops(broker) == [b"0"]
    (op,) = broker.messages(names.OP_TOPIC)
    assert op.tags == "d"


def test_both_records_of_a_commit_are_one_append() -> None:
    """A crash between two appends would leave a visible message that is asked about again."""
    broker = SmallBroker()
    half = send_half(broker)
    start = broker.store.log.end
    written = len(broker.disk.calls)
    decide(broker, half, COMMIT)
    calls = [call for call in broker.disk.calls[written:] if "commitlog" in call.path]
    assert [(call.kind, call.size) for call in calls] == [("pwrite", broker.store.log.end - start)]


def test_a_rollback_leaves_only_its_mark() -> None:
    broker = SmallBroker()
    half = send_half(broker)
    assert code_of(decide(broker, half, ROLLBACK)) == 0
    assert visible(broker) == []
    assert ops(broker) == [b"0"]


def test_not_knowing_yet_is_neither_answered_nor_stored() -> None:
    broker = SmallBroker()
    half = send_half(broker)
    assert decide(broker, half, UNKNOWN) is None
    assert ops(broker) == []


def test_one_way_decides_without_an_answer() -> None:
    broker = SmallBroker()
    half = send_half(broker)
    assert decide(broker, half, COMMIT, oneway=True) is None
    assert visible(broker) == [b"half"]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "seen"),
    [
        (COMMIT, COMMIT, [b"half"]),
        (COMMIT, ROLLBACK, [b"half"]),
        (ROLLBACK, COMMIT, []),
        (ROLLBACK, ROLLBACK, []),
    ],
)
def test_the_first_decision_wins(
    first: str, second: str, seen: list[bytes], restarts: bool
) -> None:
    """RocketMQ issue 8158: a late decision and a check both took effect."""
    broker = SmallBroker()
    half = send_half(broker)
    assert code_of(decide(broker, half, first)) == 0
    if restarts:
        broker.kill()
    again = decide(broker, half, second)
    assert code_of(again) == 0
    assert again is not None
    assert "before" in (again.remark or "")
    assert visible(broker) == seen
    assert ops(broker) == [b"0"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"producerGroup": "thieves"},
        {"tranStateTableOffset": "7"},
        {"commitLogOffset": "3"},
        {"commitLogOffset": "-1"},
        {"commitLogOffset": str(1 << 50)},
    ],
)
def test_a_decision_must_name_the_half_exactly(wrong: dict[str, str]) -> None:
    broker = SmallBroker()
    half = send_half(broker)
    answer = decide(broker, half, COMMIT, oneway=False, **wrong)
    assert code_of(answer) == ResponseCode.SYSTEM_ERROR
    assert visible(broker) == ops(broker) == []


def test_only_halves_can_be_committed() -> None:
    broker = SmallBroker()
    broker.send("orders", b"plain", {"PGROUP": GROUP, "REAL_TOPIC": "x", "REAL_QID": "0"})
    (plain,) = broker.messages("orders")
    assert code_of(decide(broker, plain, COMMIT)) == ResponseCode.SYSTEM_ERROR
    assert broker.bodies("x") == []


def test_delay_rules_hold_for_what_a_commit_reveals() -> None:
    broker = SmallBroker()
    half = send_half(broker, DELAY="2")
    decide(broker, half, COMMIT)
    assert visible(broker) == []
    assert broker.bodies(SCHEDULE_TOPIC, 1) == [b"half"]
    broker.run(seconds=5.2)
    assert visible(broker) == [b"half"]


def test_a_disk_that_is_full_decides_nothing() -> None:
    broker = SmallBroker()
    half = send_half(broker)
    broker.store._refuse("full")
    assert code_of(decide(broker, half, COMMIT)) == ResponseCode.SERVICE_NOT_AVAILABLE
    broker.store._refuse("")
    assert code_of(decide(broker, half, COMMIT)) == 0
    assert visible(broker) == [b"half"]


def test_a_synced_decision_is_answered_when_it_is_on_the_medium() -> None:
    broker = SmallBroker(store_config=replace(STORE, flush_mode=FlushMode.SYNC))
    half = send_half(broker)
    peer = RecordingPeer()
    ext = {
        "producerGroup": GROUP,
        "tranStateTableOffset": str(half.queue_offset),
        "commitLogOffset": str(half.physical_offset),
        "commitOrRollback": COMMIT,
        "msgId": half.unique_id or "",
    }
    assert broker.ask(RequestCode.END_TRANSACTION, ext, peer=peer) is None
    assert visible(broker) == []
    # A second decision that comes before the first is synced changes nothing.
    ext["commitOrRollback"] = ROLLBACK
    assert code_of(broker.ask(RequestCode.END_TRANSACTION, ext)) == 0
    broker.flush()
    assert [answer.code for answer in peer.answers()] == [0]
    assert visible(broker) == [b"half"]
    assert ops(broker) == [b"0"]


# Checks


def test_an_undecided_half_is_asked_about_after_6_seconds_then_every_30() -> None:
    broker = SmallBroker()
    peer = producer(broker)
    half = send_half(broker)
    broker.run(seconds=5.9)
    assert checks(peer) == []
    broker.run(seconds=0.2)
    (asked,) = checks(peer)
    fields = CheckTransactionStateRequest.from_ext(asked.ext)
    assert fields.topic == "orders"
    assert fields.tran_state_table_offset == half.queue_offset
    assert fields.commit_log_offset == half.physical_offset
    assert fields.msg_id == fields.transaction_id == half.unique_id
    assert fields.offset_msg_id == half.offset_id
    shown = MessageView(asked.body)
    assert (shown.topic, shown.queue_id) == ("orders", 2)
    assert shown.queue_offset == half.queue_offset
    assert shown.physical_offset == half.physical_offset
    assert shown.store_timestamp == half.store_timestamp
    assert shown.body == b"half"
    shown.verify()
    broker.run(seconds=29.8)
    assert checks(peer) == []
    broker.run(seconds=0.4)
    assert len(checks(peer)) == 1
    assert code_of(decide(broker, half, COMMIT, fromTransactionCheck="true")) == 0
    broker.run(seconds=100, step_ms=1000)
    assert checks(peer) == []
    assert visible(broker) == [b"half"]


def test_after_15_checks_it_is_parked_and_not_dropped() -> None:
    broker = SmallBroker()
    peer = producer(broker)
    send_half(broker, b"forgotten")
    broker.run(seconds=6 + 14 * 30 + 1, step_ms=500)
    assert len(checks(peer)) == 15
    assert broker.bodies(names.CHECKED_OUT_TOPIC) == []
    broker.run(seconds=31, step_ms=500)
    assert broker.bodies(names.CHECKED_OUT_TOPIC) == [b"forgotten"]
    (parked,) = broker.messages(names.CHECKED_OUT_TOPIC)
    assert parked.properties["REAL_TOPIC"] == "orders"
    broker.run(seconds=100, step_ms=1000)
    assert checks(peer) == []
    broker.kill()
    broker.run(seconds=100, step_ms=1000)
    assert broker.bodies(names.CHECKED_OUT_TOPIC) == [b"forgotten"]


def test_without_a_living_producer_it_waits_uncounted() -> None:
    broker = SmallBroker(config=BrokerConfig(transaction_checks_max=1))
    send_half(broker)
    broker.run(seconds=300, step_ms=1000)
    assert broker.bodies(names.CHECKED_OUT_TOPIC) == []
    peer = producer(broker)
    broker.run(seconds=0.2)
    assert len(checks(peer)) == 1


def test_a_closed_connection_is_not_asked() -> None:
    broker = SmallBroker()
    dead, living = producer(broker, 1000), producer(broker, 1001)
    dead.close()
    for _ in range(4):
        send_half(broker)
    broker.run(seconds=6.2)
    assert checks(dead) == []
    assert len(checks(living)) == 4


def test_producers_of_a_group_take_turns() -> None:
    broker = SmallBroker()
    peers = [producer(broker, port) for port in (1000, 1001)]
    for _ in range(4):
        send_half(broker)
    broker.run(seconds=6.2)
    assert [len(checks(peer)) for peer in peers] == [2, 2]


def test_a_half_can_ask_to_be_left_alone() -> None:
    broker = SmallBroker()
    peer = producer(broker)
    half = send_half(broker, CHECK_IMMUNITY_TIME_IN_SECONDS="20")
    broker.run(seconds=19.8)
    assert checks(peer) == []
    broker.run(seconds=0.4)
    assert len(checks(peer)) == 1
    late = decide(broker, half, COMMIT)
    assert code_of(late) == ResponseCode.ILLEGAL_OPERATION
    assert code_of(decide(broker, half, COMMIT, fromTransactionCheck="true")) == 0


def test_one_bad_half_does_not_stall_the_others() -> None:
    """RocketMQ issues 9500 and 1568."""
    broker = SmallBroker()
    peer = producer(broker)
    send_half(broker, b"bad")
    bad = broker.messages(names.HALF_TOPIC)[0]
    half = send_half(broker, b"good")
    damage(broker, bad)
    broker.run(seconds=6.2)
    (asked,) = checks(peer)
    assert asked.ext["tranStateTableOffset"] == str(half.queue_offset)


def damage(broker: SmallBroker, message: MessageView) -> None:
    segment = broker.store.log.segment_at(message.physical_offset)
    assert segment is not None
    # The length of the body: the record stays where it is and makes no sense.
    segment.file.pwrite(message.physical_offset - segment.start + 84, b"\x7f\xff\xff\xff")


def test_a_half_from_a_producer_can_not_pose_as_a_copy() -> None:
    broker = SmallBroker()
    half = send_half(broker, b"first")
    thief = send_half(
        broker, b"thief", TRAN_PREPARED_QUEUE_OFFSET="0", TRANSACTION_CHECK_TIMES="99"
    )
    broker.run(seconds=1)
    assert code_of(decide(broker, thief, ROLLBACK)) == 0
    assert code_of(decide(broker, half, COMMIT)) == 0
    assert visible(broker) == [b"first"]


# Progress


def progress(broker: SmallBroker) -> tuple[int | None, int | None]:
    offsets, group = broker.parts.offsets, names.TRANSACTION_GROUP
    return offsets.get(group, names.HALF_TOPIC, 0), offsets.get(group, names.OP_TOPIC, 0)


def test_progress_stays_behind_the_oldest_undecided() -> None:
    broker = SmallBroker()
    halves = [send_half(broker) for _ in range(6)]
    for half in (halves[0], halves[1], halves[3]):
        decide(broker, half, COMMIT)
    broker.run(seconds=11)
    assert progress(broker) == (2, 0)
    decide(broker, halves[2], ROLLBACK)
    broker.run(seconds=11)
    assert progress(broker)[0] == 4
    decide(broker, halves[4], ROLLBACK)
    decide(broker, halves[5], ROLLBACK)
    broker.run(seconds=16)
    assert progress(broker) == (6, 6)


def test_progress_is_not_saved_ahead_of_the_medium() -> None:
    broker = SmallBroker()
    decide(broker, send_half(broker), COMMIT)
    for _ in range(300):
        broker.clock.advance(ms=100)
        broker.tick(flush=False)
    assert progress(broker) == (None, None)
    broker.tick()
    assert progress(broker)[0] == 1


def test_after_a_start_only_what_is_undecided_is_asked_about() -> None:
    broker = SmallBroker()
    halves = [send_half(broker, b"%d" % n) for n in range(20)]
    for half in halves[::2]:
        decide(broker, half, COMMIT)
    broker.run(seconds=3)
    broker.restart()
    peer = producer(broker)
    broker.run(seconds=7)
    asked = {int(one.ext["tranStateTableOffset"]) for one in checks(peer)}
    assert asked == set(range(1, 20, 2))
    assert len(visible(broker)) == 10


# Copies


@pytest.fixture
def small_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_checks, "SPREAD_MAX", 20)


def with_copy() -> tuple[SmallBroker, MessageView]:
    """A broker with an old undecided half that was copied, and the half."""
    broker = SmallBroker()
    old = send_half(broker, b"old")
    for rank in range(30):
        decide(broker, send_half(broker, b"new"), ROLLBACK)
        if rank == 10:
            broker.run(seconds=5.1)
    broker.run(seconds=0.2)
    copy = broker.messages(names.HALF_TOPIC)[-1]
    assert copy.body == b"old"
    assert copy.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert copy.queue_offset == 31
    return broker, old


@pytest.mark.usefixtures("small_spread")
def test_an_old_half_is_copied_so_that_progress_goes_on() -> None:
    broker, _ = with_copy()
    assert ops(broker)[-1] == b"0"
    broker.run(seconds=11)
    # The OP progress is known for moments five seconds apart.
    assert progress(broker) == (31, 11)
    assert len(broker.messages(names.HALF_TOPIC)) == 32, "it was copied again and again"


@pytest.mark.usefixtures("small_spread")
@pytest.mark.parametrize("restarts", [False, True])
def test_a_copied_half_is_decided_once_by_either_name(restarts: bool) -> None:
    broker, old = with_copy()
    copy = broker.messages(names.HALF_TOPIC)[-1]
    if restarts:
        broker.restart()
    assert code_of(decide(broker, old, COMMIT)) == 0
    assert visible(broker) == [b"old"]
    if restarts:
        broker.kill()
    assert code_of(decide(broker, copy, COMMIT)) == 0
    assert code_of(decide(broker, old, ROLLBACK)) == 0
    assert visible(broker) == [b"old"]
    assert ops(broker)[-1] == b"31"
    (message,) = broker.messages("orders", 2)
    assert "TRAN_PREPARED_QUEUE_OFFSET" not in message.properties


@pytest.mark.parametrize("by_copy", [False, True])
def test_a_copy_whose_mark_was_torn_off_replaces_the_older_one(by_copy: bool) -> None:
    broker = SmallBroker()
    old = send_half(broker, b"old")
    text = properties.encode(dict(old.properties) | {"TRAN_PREPARED_QUEUE_OFFSET": "0"})
    broker.parts.writer.put([Entry(HALF_QUEUE, b"old", text)])
    broker.flush()
    broker.kill()
    copy = broker.messages(names.HALF_TOPIC)[-1]
    peer = producer(broker)
    broker.run(seconds=31)
    assert {one.ext["tranStateTableOffset"] for one in checks(peer)} == {"1"}
    decide(broker, copy if by_copy else old, COMMIT)
    decide(broker, old if by_copy else copy, COMMIT)
    broker.kill()
    decide(broker, old, COMMIT)
    decide(broker, copy, COMMIT)
    assert visible(broker) == [b"old"]


@pytest.mark.parametrize("topic", ["orders", names.CHECKED_OUT_TOPIC])
def test_a_decision_whose_mark_was_torn_off_is_completed(topic: str) -> None:
    broker = SmallBroker()
    half = send_half(broker, b"half")
    entry = Entry(queue_key(topic, 0), b"half", prepared_offset=half.physical_offset)
    flag = 8 if topic == "orders" else 0
    broker.parts.writer.put([entry._replace(sys_flag=flag)])
    broker.flush()
    broker.kill()
    broker.flush()
    assert ops(broker) == [b"0"]
    peer = producer(broker)
    broker.run(seconds=10)
    assert checks(peer) == []
    assert code_of(decide(broker, half, COMMIT)) == 0
    assert visible(broker) == []
    assert broker.bodies(topic) == [b"half"]


@pytest.mark.usefixtures("small_spread")
def test_a_copy_is_asked_about_under_its_new_name() -> None:
    broker, _ = with_copy()
    peer = producer(broker)
    broker.run(seconds=31)
    (asked,) = checks(peer)
    assert asked.ext["tranStateTableOffset"] == "31"
    shown = MessageView(asked.body)
    assert code_of(decide(broker, shown, COMMIT, fromTransactionCheck="true")) == 0
    assert visible(broker) == [b"old"]


@pytest.mark.usefixtures("small_spread")
def test_many_undecided_halves_are_not_copied_forever() -> None:
    broker = SmallBroker()
    for _ in range(100):
        send_half(broker)
    broker.run(seconds=60, step_ms=500)
    assert len(broker.messages(names.HALF_TOPIC)) == 100


def test_an_aged_half_is_copied_before_it_expires() -> None:
    broker = SmallBroker()
    old = send_half(broker, b"old")
    broker.clock.advance(hours=25)
    broker.run(seconds=1)
    assert len(broker.messages(names.HALF_TOPIC)) == 2
    assert code_of(decide(broker, old, COMMIT)) == 0
    assert visible(broker) == [b"old"]


def test_offsets_that_java_wrote_in_one_op_are_all_read() -> None:
    broker = SmallBroker()
    halves = [send_half(broker, b"%d" % n) for n in range(3)]
    op = op_entry(0, born_ms=0, host=bytes(8))._replace(body=b"0,2,")
    broker.parts.writer.put([op])
    broker.flush()
    broker.kill()
    for half in halves:
        assert code_of(decide(broker, half, COMMIT)) == 0
    assert visible(broker) == [b"1"]
