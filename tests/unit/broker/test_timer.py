"""Messages with an arbitrary delivery time, and cancelling them."""

import tracemalloc
from dataclasses import replace

import pytest

from tianzhou.base.kinds import queue_key
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.scheduled import timer
from tianzhou.broker.scheduled.timer import Timers
from tianzhou.broker.scheduled.timer_progress import TimerProgress, progress_table
from tianzhou.broker.writing import recall_handle as recall
from tianzhou.record.chunk import Entry
from tianzhou.store.config import FlushMode
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.small_broker import STORE, RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.codec import Header


def send(broker: SmallBroker, body: bytes, **named: str) -> Header:
    answer = broker.send("orders", body, named)
    assert answer.code == 0
    return answer


def send_at(broker: SmallBroker, body: bytes, moment: int) -> Header:
    return send(broker, body, TIMER_DELIVER_MS=str(moment))


def take_back(
    broker: SmallBroker, handle: str, topic: str = "orders", peer: RecordingPeer | None = None
) -> Header | None:
    ext = {"topic": topic, "recallHandle": handle, "producerGroup": "producers"}
    return broker.ask(RequestCode.RECALL_MESSAGE, ext, peer=peer)


def code_of(answer: Header | None) -> int:
    assert answer is not None
    return answer.code


def delivered(broker: SmallBroker) -> list[bytes]:
    return broker.bodies("orders")


@pytest.mark.parametrize(
    "named", [{"TIMER_DELAY_SEC": "7"}, {"TIMER_DELAY_MS": "7000"}, {"TIMER_DELIVER_MS": "+7000"}]
)
def test_timer_delivers_not_early_and_at_most_a_second_late(named: dict[str, str]) -> None:
    broker = SmallBroker()
    named = {
        name: str(broker.clock.now_ms() + int(value)) if value.startswith("+") else value
        for name, value in named.items()
    }
    send(broker, b"timed", **named)
    broker.run(seconds=6.9)
    assert delivered(broker) == []
    broker.run(seconds=0.2)
    assert delivered(broker) == [b"timed"]


def test_timer_delivers_the_message_unchanged() -> None:
    broker = SmallBroker()
    sent_ms = broker.clock.now_ms()
    answer = broker.send("orders", b"timed", {"TIMER_DELAY_SEC": "3", "TAGS": "a"}, queue_id=3)
    assert answer.ext["queueId"] == "0"
    broker.run(seconds=4)
    (message,) = broker.messages("orders", 3)
    assert message.tags == "a"
    assert message.born_timestamp == sent_ms
    assert message.properties["TIMER_DELIVER_MS"] == str(sent_ms + 3000)
    assert message.unique_id == answer.ext["transactionId"]


def test_timer_delivers_in_order_of_delivery_time() -> None:
    broker = SmallBroker()
    now = broker.clock.now_ms()
    for seconds in (5, 1, 4, 2, 3):
        send_at(broker, b"%d" % seconds, now + seconds * 1000)
    broker.run(seconds=6)
    assert delivered(broker) == [b"1", b"2", b"3", b"4", b"5"]


def test_timer_with_a_past_time_delivers_at_once() -> None:
    broker = SmallBroker()
    send_at(broker, b"late", broker.clock.now_ms() - 5)
    assert delivered(broker) == [b"late"]


def test_timer_rejects_delays_over_three_days() -> None:
    broker = SmallBroker()
    send(broker, b"far", TIMER_DELAY_SEC=str(3 * 86_400))
    too_far = broker.send("orders", b"x", {"TIMER_DELAY_SEC": str(3 * 86_400 + 1)})
    assert too_far.code == ResponseCode.MESSAGE_ILLEGAL
    huge = broker.send("orders", b"plain", {"TIMER_DELAY_SEC": "9" * 5000})
    assert huge.code == 0
    assert delivered(broker) == [b"plain"]


def test_timer_rolls_long_delays_before_they_expire() -> None:
    broker = SmallBroker()
    send(broker, b"far", TIMER_DELAY_SEC=str(3 * 86_400))
    broker.clock.advance(hours=48)
    broker.run(seconds=1)
    assert delivered(broker) == []
    (_, rolled) = broker.messages(names.TIMER_TOPIC)
    assert rolled.properties["TIMER_ROLL_TIMES"] == "1"
    broker.clock.advance(seconds=24 * 3600 - 2)
    broker.tick()
    assert delivered(broker) == []
    broker.run(seconds=1.2)
    assert delivered(broker) == [b"far"]


@pytest.mark.slow
@pytest.mark.parametrize("restarts", ["stop", "kill"])
def test_timer_restart_loses_nothing_and_repeats_nothing_saved(restarts: str) -> None:
    broker = SmallBroker()
    now = broker.clock.now_ms()
    for rank in range(600):
        # The first that were sent wait longest, so the offset alone says nothing.
        send_at(broker, b"%d" % rank, now + 60_000 - rank * 50)
    broker.run(seconds=45)
    early = len(delivered(broker))
    assert 0 < early < 600
    broker.restart() if restarts == "stop" else broker.kill()
    broker.run(seconds=60)
    found = delivered(broker)
    assert set(found) == {b"%d" % rank for rank in range(600)}
    repeated = len(found) - 600
    if restarts == "stop":
        assert repeated == 0
    else:
        # Progress is saved every ten seconds: later deliveries are repeated.
        assert repeated <= 220


def test_timer_progress_has_a_time_and_an_offset() -> None:
    broker = SmallBroker()
    now = broker.clock.now_ms()
    send_at(broker, b"late", now + 100_000)
    send_at(broker, b"early", now + 1_000)
    broker.run(seconds=2)
    broker.restart()
    saved = progress_table(broker.store).load()
    assert (saved.low, saved.scanned) == (0, 2)
    assert (saved.moment, saved.offset) == (now + 100_000, 0)
    broker.run(seconds=100, step_ms=1000)
    assert delivered(broker) == [b"early", b"late"]


def test_timer_start_reads_in_slices_and_saves_when_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = SmallBroker()
    now = broker.clock.now_ms()
    send_at(broker, b"last", now + 200_000)
    for rank in range(40):
        send_at(broker, b"%d" % rank, now + 1000)
    broker.run(seconds=2)
    assert len(delivered(broker)) == 40
    broker.restart()
    before = progress_table(broker.store).load()
    monkeypatch.setattr(timer, "SCAN_SLICES_MAX", 1)
    monkeypatch.setattr(timer, "_SLICE", replace(timer._SLICE, count=1))
    broker.clock.advance(seconds=30)
    for _ in range(10):
        broker.tick()
        broker.clock.advance(ms=1)
    assert progress_table(broker.store).load() == before
    broker.restart()
    assert progress_table(broker.store).load() == before
    broker.run(seconds=20)
    assert len(delivered(broker)) == 40


def test_timer_progress_beyond_the_queue_end_hides_nothing() -> None:
    broker = SmallBroker()
    far = TimerProgress(low=50, scanned=100, moment=1 << 50, offset=0, roll_ms=1 << 40)
    progress_table(broker.store).save(far)
    broker.kill()
    send(broker, b"new", TIMER_DELAY_SEC="1")
    broker.run(seconds=2)
    assert delivered(broker) == [b"new"]


def test_timer_clock_set_back_loses_nothing() -> None:
    broker = SmallBroker()
    now = broker.clock.now_ms()
    send_at(broker, b"a", now + 5_000)
    broker.run(seconds=6)
    broker.clock.jump(-4_000)
    send_at(broker, b"b", now + 4_500)
    broker.run(seconds=20)
    broker.kill()
    broker.run(seconds=20)
    assert set(delivered(broker)) == {b"a", b"b"}


def test_timers_with_a_backlog_are_bounded_per_tick_and_report_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timer, "TICK_COUNT_MAX", 8)
    monkeypatch.setattr(timer, "CHUNK_COUNT_MAX", 4)
    monkeypatch.setattr(timer, "_SLICE", replace(timer._SLICE, count=5))
    broker = SmallBroker()
    service, now = broker.slices.scheduled.timers, broker.clock.now_ms()
    for rank in range(20):
        send_at(broker, b"%d" % rank, now + 1000)
    broker.flush()
    scans = [service.scan() for _ in range(4)]
    assert scans == [False, False, False, True], "five messages at a time"
    broker.clock.advance(seconds=2)
    ticks = [(service.tick(), len(service)) for _ in range(3)]
    assert ticks == [(True, 12), (True, 4), (False, 0)]


def test_timer_full_disk_delays_delivery() -> None:
    broker = SmallBroker()
    for rank in range(5):
        send(broker, b"%d" % rank, TIMER_DELAY_SEC="1")
    broker.store._fence.refusal = "full"
    broker.run(seconds=3)
    assert delivered(broker) == []
    broker.store._fence.refusal = ""
    broker.run(seconds=0.2)
    assert sorted(delivered(broker)) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.slow
def test_timers_20000_waiting_take_under_48_bytes_each() -> None:
    """A million must fit into 100 MB: memory holds a time and an offset of each, no object."""
    broker = SmallBroker()
    count, now = 20_000, broker.clock.now_ms()
    for start in range(0, count, 1000):
        broker.slices.base.writer.put(
            [
                Entry(
                    queue_key(names.TIMER_TOPIC, 0),
                    b"",
                    b"TIMER_DELIVER_MS\x01%d\x02" % (now + 1_000_000 + rank * 7919 % 86_400_000),
                )
                for rank in range(start, start + 1000)
            ]
        )
    broker.flush()
    tracemalloc.start()
    try:
        timers = Timers(broker.store, broker.slices.base.writer, broker.clock, save_every_ms=10_000)
        while len(timers) < count:
            timers.tick()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / count < 48


# Recall


def test_recall_prevents_delivery() -> None:
    broker = SmallBroker()
    answer = send(broker, b"mistake", TIMER_DELAY_SEC="5")
    send(broker, b"right", TIMER_DELAY_SEC="5")
    told = take_back(broker, answer.ext["recallHandle"])
    assert code_of(told) == 0
    assert told is not None
    assert told.ext["msgId"] == answer.ext["transactionId"]
    broker.run(seconds=10)
    assert delivered(broker) == [b"right"]


@pytest.mark.parametrize("restarts", ["stop", "kill"])
def test_recall_survives_a_restart(restarts: str) -> None:
    broker = SmallBroker()
    answer = send(broker, b"mistake", TIMER_DELAY_SEC="5")
    assert code_of(take_back(broker, answer.ext["recallHandle"])) == 0
    broker.restart() if restarts == "stop" else broker.kill()
    # At the restart the delivery time has passed, and the recall is read after its message.
    broker.clock.advance(seconds=20)
    broker.run(seconds=2)
    assert delivered(broker) == []


def test_recall_is_read_before_delivery_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = SmallBroker()
    handles = [send(broker, b"%d" % n, TIMER_DELAY_SEC="5").ext["recallHandle"] for n in range(30)]
    for handle in handles:
        assert code_of(take_back(broker, handle)) == 0
    broker.kill()
    broker.clock.advance(seconds=20)
    monkeypatch.setattr(timer, "SCAN_SLICES_MAX", 1)
    monkeypatch.setattr(timer, "_SLICE", replace(timer._SLICE, count=3))
    for _ in range(40):
        broker.tick()
    assert delivered(broker) == []


def test_recall_with_sync_flush_counts_before_it_is_visible() -> None:
    broker = SmallBroker(store_config=replace(STORE, flush_mode=FlushMode.SYNC))
    answer = send(broker, b"mistake", TIMER_DELAY_SEC="5")
    broker.run(seconds=4.9)
    peer = RecordingPeer()
    assert take_back(broker, answer.ext["recallHandle"], peer=peer) is None
    broker.clock.advance(seconds=1)
    broker.tick(flush=False)
    broker.flush()
    assert [one.code for one in peer.answers()] == [0]
    broker.run(seconds=2)
    assert delivered(broker) == []


def test_recall_of_a_rolled_message_works() -> None:
    broker = SmallBroker()
    answer = send(broker, b"far", TIMER_DELAY_SEC=str(3 * 86_400))
    broker.clock.advance(hours=48)
    broker.run(seconds=1)
    assert code_of(take_back(broker, answer.ext["recallHandle"])) == 0
    broker.restart()
    broker.clock.advance(hours=25)
    broker.run(seconds=1)
    assert delivered(broker) == []


def test_recall_that_fails_reports_the_reason() -> None:
    broker = SmallBroker(config=BrokerConfig(name="broker-a"))
    answer = send(broker, b"timed", TIMER_DELAY_SEC="5")
    good = recall.decode(answer.ext["recallHandle"])
    assert good is not None
    cases = {
        "invalid recall handle": "bm9uc2Vuc2U=",
        "topic orders, not other": answer.ext["recallHandle"],
        "at broker b, not broker-a": good._replace(broker="b").encode(),
        "waits": good._replace(unique_id="nobody").encode(),
        "delivered": good._replace(deliver_ms=broker.clock.now_ms() - 1).encode(),
    }
    for reason, handle in cases.items():
        told = take_back(broker, handle, "other" if "other" in reason else "orders")
        assert code_of(told) == ResponseCode.ILLEGAL_OPERATION
        assert told is not None
        assert reason in (told.remark or "")
    moved = good._replace(deliver_ms=good.deliver_ms + 1).encode()
    assert code_of(take_back(broker, moved)) == ResponseCode.ILLEGAL_OPERATION
    broker.run(seconds=6)
    assert delivered(broker) == [b"timed"]
    assert code_of(take_back(broker, answer.ext["recallHandle"])) == ResponseCode.ILLEGAL_OPERATION


def test_recall_forged_by_a_producer_is_ignored() -> None:
    broker = SmallBroker()
    answer = send(broker, b"victim", TIMER_DELAY_SEC="5")
    key = f"orders+{answer.ext['transactionId']}"
    send(broker, b"forged", TIMER_DELAY_SEC="4", TIMER_DEL_UNIQKEY=key)
    broker.run(seconds=6)
    assert delivered(broker) == [b"forged", b"victim"]


def test_recall_handle_is_absent_without_a_delay() -> None:
    broker = SmallBroker()
    assert "recallHandle" not in send(broker, b"plain").ext
    assert "recallHandle" not in send(broker, b"level", DELAY="3").ext


@pytest.mark.parametrize(
    "text", ["", "%%%", "djEgYQ==", "é", "A" * 2000, "djIgdG9waWMgYnJva2VyIDEga2V5", "YQ"]
)
def test_recall_handle_that_is_invalid_is_rejected(text: str) -> None:
    assert recall.decode(text) is None


def test_recall_handle_round_trips() -> None:
    handle = recall.Handle("orders", "broker-a", 1_700_000_000_123, "AC1100018A6418B4AAC2")
    assert recall.decode(handle.encode()) == handle


def test_timer_uses_the_clock_of_the_broker() -> None:
    """Delivery times are compared with the broker's wall clock, not the producer's."""
    clock = ManualClock(5_000_000)
    broker = SmallBroker(clock=clock)
    send_at(broker, b"soon", 5_001_000)
    broker.run(seconds=0.9)
    assert delivered(broker) == []
    broker.run(seconds=0.2)
    assert delivered(broker) == [b"soon"]
