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


def test_half_message_is_invisible_and_keeps_its_destination() -> None:
    broker = SmallBroker()
    half = send_half(broker)
    assert visible(broker) == []
    assert half.sys_flag & 0xC == 0
    assert half.properties["REAL_TOPIC"] == "orders"
    assert half.properties["REAL_QID"] == "2"
    assert half.properties["__transactionId__"] == half.unique_id


def test_commit_makes_the_message_visible() -> None:
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


def test_commit_writes_message_and_op_record_in_one_append() -> None:
    """A crash between two appends would leave a visible message whose half is checked again."""
    broker = SmallBroker()
    half = send_half(broker)
    start = broker.store.log.end
    written = len(broker.disk.calls)
    decide(broker, half, COMMIT)
    calls = [call for call in broker.disk.calls[written:] if "commitlog" in call.path]
    assert [(call.kind, call.size) for call in calls] == [("pwrite", broker.store.log.end - start)]


def test_rollback_writes_only_an_op_record() -> None:
    broker = SmallBroker()
    half = send_half(broker)
    assert code_of(decide(broker, half, ROLLBACK)) == 0
    assert visible(broker) == []
    assert ops(broker) == [b"0"]


def test_unknown_state_gets_no_response_and_stores_nothing() -> None:
    broker = SmallBroker()
    half = send_half(broker)
    assert decide(broker, half, UNKNOWN) is None
    assert ops(broker) == []


def test_oneway_decision_takes_effect_without_a_response() -> None:
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
def test_second_decision_has_no_effect(
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
def test_decision_that_does_not_match_the_half_is_rejected(wrong: dict[str, str]) -> None:
    broker = SmallBroker()
    half = send_half(broker, UNIQ_KEY="7F000001000000000000000000000000")
    answer = decide(broker, half, COMMIT, oneway=False, **wrong)
    assert code_of(answer) == ResponseCode.SYSTEM_ERROR
    assert visible(broker) == ops(broker) == []


def test_commit_of_a_message_that_is_not_a_half_is_rejected() -> None:
    broker = SmallBroker()
    broker.send("orders", b"plain", {"PGROUP": GROUP, "REAL_TOPIC": "x", "REAL_QID": "0"})
    (plain,) = broker.messages("orders")
    assert code_of(decide(broker, plain, COMMIT)) == ResponseCode.SYSTEM_ERROR
    assert broker.bodies("x") == []


def test_commit_of_a_delayed_half_delays_the_message() -> None:
    broker = SmallBroker()
    half = send_half(broker, DELAY="2")
    decide(broker, half, COMMIT)
    assert visible(broker) == []
    assert broker.bodies(SCHEDULE_TOPIC, 1) == [b"half"]
    broker.run(seconds=5.2)
    assert visible(broker) == [b"half"]


def test_decision_on_a_full_disk_is_rejected_and_can_be_repeated() -> None:
    broker = SmallBroker()
    half = send_half(broker)
    broker.store._fence.refusal = "full"
    assert code_of(decide(broker, half, COMMIT)) == ResponseCode.SERVICE_NOT_AVAILABLE
    broker.store._fence.refusal = ""
    assert code_of(decide(broker, half, COMMIT)) == 0
    assert visible(broker) == [b"half"]


def test_decision_with_sync_flush_responds_after_the_flush() -> None:
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


def test_message_with_a_forged_commit_flag_decides_nothing() -> None:
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
def test_end_transaction_with_an_unknown_decision_is_rejected(decision: str) -> None:
    broker = SmallBroker()
    half = send_half(broker)
    assert code_of(decide(broker, half, decision)) == ResponseCode.INVALID_PARAMETER
    assert ops(broker) == []


@pytest.mark.parametrize("dead", [False, True])
def test_restart_after_a_retry_decides_no_other_transaction(dead: bool) -> None:
    """A retry of a committed message keeps its flag but has no half: its prepared offset is 0,
    which is the offset of the first half in the log."""
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
