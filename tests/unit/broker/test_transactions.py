"""Decisions about transactional messages: invisible until committed, decided once."""

from dataclasses import replace

import pytest
from transactional import (
    COMMIT,
    GROUP,
    ROLLBACK,
    UNKNOWN,
    code_of,
    decide,
    ops,
    send_half,
    visible,
)

from tianzhou.broker import names
from tianzhou.record.ids import Host
from tianzhou.store.config import FlushMode
from tianzhou.testing.small_broker import STORE, RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.names import SCHEDULE_TOPIC


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
        {"msgId": "7F000001000000000000000000000001"},
    ],
)
def test_a_decision_must_name_the_half_exactly(wrong: dict[str, str]) -> None:
    broker = SmallBroker()
    half = send_half(broker, UNIQ_KEY="7F000001000000000000000000000000")
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


def test_a_message_that_claims_to_be_a_decision_decides_nothing() -> None:
    """1. A half is at the beginning of the log. 2. A client sends a message whose flag says that
    a transaction was committed; its half would be at 0. 3. The broker is killed, and at its
    restart checks whether the last record is a decision that a crash interrupted."""
    broker = SmallBroker()
    half = send_half(broker)
    assert half.physical_offset == 0
    broker.tick()
    assert broker.send("others", b"claims", sys_flag=8).code == 0
    (message,) = broker.messages("others")
    assert message.sys_flag == 0
    broker.flush()
    broker.kill()
    assert code_of(decide(broker, half, COMMIT)) == 0
    assert visible(broker) == [b"half"]


@pytest.mark.parametrize("decision", ["4", "64", "-1", "2147483647"])
def test_end_transaction_with_an_unknown_decision_is_refused(decision: str) -> None:
    broker = SmallBroker()
    half = send_half(broker)
    assert code_of(decide(broker, half, decision)) == ResponseCode.INVALID_PARAMETER
    assert ops(broker) == []


@pytest.mark.parametrize("dead", [False, True])
def test_start_after_a_crash_behind_a_retry_decides_no_other_transaction(dead: bool) -> None:
    """A retry of a committed message keeps its flag but names no half: the place that stands there,
    0, is that of the first half in the log."""
    broker = SmallBroker()
    first = send_half(broker, b"undecided")
    assert first.physical_offset == 0
    second = send_half(broker, b"committed")
    assert code_of(decide(broker, second, COMMIT)) == 0
    (committed,) = broker.messages("orders", 2)
    ext = {
        "offset": str(committed.physical_offset),
        "group": "g",
        "delayLevel": "-1" if dead else "0",
    }
    answer = broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
    assert code_of(answer) == 0
    marks = ops(broker)
    broker.kill()
    assert ops(broker) == marks
    assert code_of(decide(broker, first, COMMIT)) == 0
    assert visible(broker) == [b"committed", b"undecided"]
