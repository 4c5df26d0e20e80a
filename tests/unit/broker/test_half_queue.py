"""Which halves are undecided: progress, copies, and what a start reads."""

import pytest
from transactional import (
    COMMIT,
    ROLLBACK,
    checks,
    code_of,
    decide,
    ops,
    producer,
    send_half,
    visible,
)

from tianzhou.base.kinds import queue_key
from tianzhou.broker import names
from tianzhou.broker.transactions import checks as transaction_checks
from tianzhou.broker.transactions.half_queue import HALF_QUEUE, op_entry
from tianzhou.record import properties
from tianzhou.record.chunk import Entry
from tianzhou.record.message import MessageView
from tianzhou.testing.small_broker import SmallBroker


def progress(broker: SmallBroker) -> tuple[int | None, int | None]:
    offsets, group = broker.slices.groups.tables.offsets, names.TRANSACTION_GROUP
    return offsets.get(group, names.HALF_TOPIC, 0), offsets.get(group, names.OP_TOPIC, 0)


def test_half_queue_progress_stops_at_the_oldest_undecided_half() -> None:
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


def test_half_queue_progress_is_not_saved_before_the_flush() -> None:
    broker = SmallBroker()
    decide(broker, send_half(broker), COMMIT)
    for _ in range(300):
        broker.clock.advance(ms=100)
        broker.tick(flush=False)
    assert progress(broker) == (None, None)
    broker.tick()
    assert progress(broker)[0] == 1


def test_half_queue_after_a_restart_checks_undecided_halves_only() -> None:
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
def test_half_queue_copies_an_old_half_so_that_progress_advances() -> None:
    broker, _ = with_copy()
    assert ops(broker)[-1] == b"0"
    broker.run(seconds=11)
    # The OP progress is known for times five seconds apart.
    assert progress(broker) == (31, 11)
    assert len(broker.messages(names.HALF_TOPIC)) == 32, "it was copied again and again"


@pytest.mark.usefixtures("small_spread")
@pytest.mark.parametrize("restarts", [False, True])
def test_half_queue_copied_half_is_decided_once_by_either_offset(restarts: bool) -> None:
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
def test_half_queue_copy_without_an_op_record_replaces_the_original(by_copy: bool) -> None:
    broker = SmallBroker()
    old = send_half(broker, b"old")
    text = properties.encode(dict(old.properties) | {"TRAN_PREPARED_QUEUE_OFFSET": "0"})
    broker.slices.base.writer.put([Entry(HALF_QUEUE, b"old", text)])
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
def test_half_queue_decision_without_an_op_record_is_completed(topic: str) -> None:
    broker = SmallBroker()
    half = send_half(broker, b"half")
    entry = Entry(queue_key(topic, 0), b"half", prepared_offset=half.physical_offset)
    flag = 8 if topic == "orders" else 0
    broker.slices.base.writer.put([entry._replace(sys_flag=flag)])
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
def test_half_queue_copy_is_checked_at_its_new_offset() -> None:
    broker, _ = with_copy()
    peer = producer(broker)
    broker.run(seconds=31)
    (asked,) = checks(peer)
    assert asked.ext["tranStateTableOffset"] == "31"
    shown = MessageView(asked.body)
    assert code_of(decide(broker, shown, COMMIT, fromTransactionCheck="true")) == 0
    assert visible(broker) == [b"old"]


@pytest.mark.usefixtures("small_spread")
def test_half_queue_does_not_copy_many_undecided_halves_repeatedly() -> None:
    broker = SmallBroker()
    for _ in range(100):
        send_half(broker)
    broker.run(seconds=60, step_ms=500)
    assert len(broker.messages(names.HALF_TOPIC)) == 100


def test_half_queue_copies_a_half_before_it_expires() -> None:
    broker = SmallBroker()
    old = send_half(broker, b"old")
    broker.clock.advance(hours=25)
    broker.run(seconds=1)
    assert len(broker.messages(names.HALF_TOPIC)) == 2
    assert code_of(decide(broker, old, COMMIT)) == 0
    assert visible(broker) == [b"old"]


def test_half_queue_reads_all_offsets_of_a_java_op_record() -> None:
    broker = SmallBroker()
    halves = [send_half(broker, b"%d" % n) for n in range(3)]
    op = op_entry(0, born_ms=0, host=bytes(8))._replace(body=b"0,2,")
    broker.slices.base.writer.put([op])
    broker.flush()
    broker.kill()
    for half in halves:
        assert code_of(decide(broker, half, COMMIT)) == 0
    assert visible(broker) == [b"1"]


@pytest.mark.parametrize("named", ["9999999999999999999", "9223372036854775807", "1"])
def test_half_queue_root_beyond_the_message_is_ignored(named: str) -> None:
    """A property that holds more than 8 bytes, or names a later half, must not stop the scan."""
    broker = SmallBroker()
    first = send_half(broker, b"first")
    text = properties.encode(dict(first.properties) | {"TRAN_PREPARED_QUEUE_OFFSET": named})
    broker.slices.base.writer.put([Entry(HALF_QUEUE, b"forged", text)])
    broker.flush()
    broker.kill()
    forged = broker.messages(names.HALF_TOPIC)[-1]
    decide(broker, first, COMMIT)
    decide(broker, forged, ROLLBACK)
    assert visible(broker) == [b"first"]
    assert ops(broker) == [b"0", b"1"]


def test_half_queue_copy_that_cannot_be_read_ends_its_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_checks, "SPREAD_MAX", 20)
    broker, old = with_copy()
    copy = broker.messages(names.HALF_TOPIC)[-1]
    broker.slices.transactions.checks._give_up(copy.queue_offset)
    assert len(broker.slices.transactions.checks._halves.pending) == 0
    assert code_of(decide(broker, old, COMMIT)) == 0
    assert visible(broker) == []


def test_transaction_checks_of_a_returning_group_are_bounded_per_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_checks, "CHECKED_MAX", 4)
    broker = SmallBroker()
    for _ in range(10):
        send_half(broker)
    broker.run(seconds=20)
    service = broker.slices.transactions.checks
    assert [len(waiting) for waiting in service._plan.waiting.values()] == [10]
    peer = producer(broker)
    broker.tick()
    assert [len(waiting) for waiting in service._plan.waiting.values()] == [6]
    broker.run(seconds=1)
    assert len(checks(peer)) == 10


def test_transaction_checks_due_together_run_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_checks, "CHECKED_MAX", 4)
    broker = SmallBroker()
    for _ in range(10):
        send_half(broker)
    broker.tick()
    service = broker.slices.transactions.checks
    broker.clock.advance(ms=7_000)
    for looked_at, is_more in ((4, True), (8, True), (10, False)):
        assert service.tick() is is_more
        assert [len(waiting) for waiting in service._plan.waiting.values()] == [looked_at]
