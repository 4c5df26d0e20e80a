"""Delay levels: not early, hardly late, none lost."""

from dataclasses import replace

import pytest

from tianzhou.base.kinds import queue_key
from tianzhou.broker.scheduled import delay
from tianzhou.record.chunk import Entry
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.testing.small_broker import STORE, SmallBroker
from tianzhou.wire.names import SCHEDULE_TOPIC


def send(broker: SmallBroker, body: bytes, level: int) -> None:
    answer = broker.send("orders", body, {"DELAY": str(level), "TAGS": "a"}, queue_id=1)
    assert answer.code == 0


def delivered(broker: SmallBroker) -> list[bytes]:
    return broker.bodies("orders", 1)


def saved(broker: SmallBroker) -> dict[int, int]:
    return broker.store.tables.delay_offsets.load().offset_table


@pytest.mark.parametrize(("level", "seconds"), [(1, 1), (2, 5), (3, 10), (5, 60), (18, 7200)])
def test_delay_delivers_not_early_and_at_most_a_second_late(level: int, seconds: int) -> None:
    broker = SmallBroker()
    send(broker, b"waits", level)
    broker.clock.advance(ms=seconds * 1000 - 101)
    broker.run(seconds=0.1)
    assert delivered(broker) == []
    broker.run(seconds=0.1)
    assert delivered(broker) == [b"waits"]


def test_delay_level_beyond_the_last_is_the_last() -> None:
    broker = SmallBroker()
    send(broker, b"waits", 99)
    assert broker.bodies(SCHEDULE_TOPIC, 17) == [b"waits"]
    broker.clock.advance(seconds=7200)
    broker.tick()
    assert delivered(broker) == [b"waits"]


def test_delay_delivers_the_message_unchanged() -> None:
    broker = SmallBroker()
    born_ms = broker.clock.now_ms()
    send(broker, b"body", 1)
    broker.run(seconds=2)
    (message,) = broker.messages("orders", 1)
    assert message.born_timestamp == born_ms
    assert message.born_host.address == "10.1.1.1"
    assert message.tags == "a"
    # RocketMQ leaves these in; a message that has them is not delayed a second time.
    assert message.properties["DELAY"] == "1"
    assert message.properties["REAL_TOPIC"] == "orders"
    assert message.properties["REAL_QID"] == "1"
    broker.run(seconds=5)
    assert delivered(broker) == [b"body"]


def test_delay_levels_are_delivered_independently() -> None:
    broker = SmallBroker()
    for level in (4, 3, 2, 1):
        send(broker, b"%d" % level, level)
    broker.run(seconds=31)
    assert delivered(broker) == [b"1", b"2", b"3", b"4"]


def test_delay_backlog_of_one_level_does_not_starve_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay, "CHUNK_COUNT_MAX", 4)
    monkeypatch.setattr(delay, "TICK_COUNT_MAX", 8)
    broker = SmallBroker()
    for _ in range(40):
        send(broker, b"many", 1)
    send(broker, b"one", 2)
    broker.clock.advance(seconds=6)
    broker.tick()
    assert b"one" in delivered(broker)
    assert len(delivered(broker)) <= 8 + 4
    broker.run(seconds=2)
    assert len(delivered(broker)) == 41


def test_delay_backlog_of_all_levels_is_bounded_per_tick_and_fair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delay, "CHUNK_COUNT_MAX", 4)
    monkeypatch.setattr(delay, "TICK_COUNT_MAX", 8)
    broker = SmallBroker()
    for level in (1, 2, 3, 4):
        for _ in range(20):
            send(broker, b"%d" % level, level)
    broker.clock.advance(seconds=60)
    broker.tick()
    assert delivered(broker) == [b"1"] * 4 + [b"2"] * 4
    broker.tick()
    assert set(delivered(broker)) == {b"1", b"2", b"3", b"4"}


def test_delay_delivers_messages_in_one_write() -> None:
    broker = SmallBroker()
    for rank in range(100):
        send(broker, b"%d" % rank, 1)
    broker.clock.advance(seconds=2)
    calls = len(broker.disk.calls)
    broker.tick()
    writes = [call for call in broker.disk.calls[calls:] if "commitlog" in call.path and call.size]
    assert len([call for call in writes if call.kind == "pwrite"]) == 1
    assert delivered(broker) == [b"%d" % rank for rank in range(100)]


def test_delay_progress_after_a_clean_stop_repeats_nothing() -> None:
    broker = SmallBroker()
    for rank in range(10):
        send(broker, b"%d" % rank, 1)
    broker.run(seconds=2)
    broker.restart()
    assert saved(broker) == {1: 10}
    broker.run(seconds=5)
    assert len(delivered(broker)) == 10


def test_delay_progress_is_saved_at_the_configured_interval() -> None:
    broker = SmallBroker()
    send(broker, b"a", 1)
    broker.run(seconds=9)
    assert saved(broker) == {}
    broker.run(seconds=2)
    assert saved(broker) == {1: 1}


def test_delay_progress_is_not_saved_before_deliveries_are_flushed() -> None:
    """The file would survive a loss of power, and the delivered messages would not."""
    broker = SmallBroker()
    send(broker, b"a", 1)
    broker.flush()
    for _ in range(300):
        broker.clock.advance(ms=100)
        broker.tick(flush=False)
    assert delivered(broker) == [b"a"]
    assert saved(broker) == {}
    broker.tick()
    assert saved(broker) == {1: 1}


@pytest.mark.parametrize("mode", list(FlushMode))
def test_delay_after_a_kill_delivers_every_message(mode: FlushMode) -> None:
    broker = SmallBroker(store_config=replace(STORE, flush_mode=mode))
    for rank in range(50):
        send(broker, b"%d" % rank, 1 + rank % 3)
    broker.run(seconds=6)
    broker.kill()
    broker.run(seconds=6)
    assert set(delivered(broker)) == {b"%d" % rank for rank in range(50)}


def test_delay_expired_during_downtime_is_delivered_at_start() -> None:
    broker = SmallBroker()
    send(broker, b"a", 3)
    broker.kill()
    broker.clock.advance(hours=5)
    broker.tick()
    assert delivered(broker) == [b"a"]


def test_delay_with_a_clock_set_back_is_not_extended() -> None:
    broker = SmallBroker()
    send(broker, b"a", 3)
    broker.clock.jump(-3_600_000)
    broker.tick()
    assert delivered(broker) == [b"a"]


def test_delay_with_a_clock_set_ahead_shrinks_by_the_same_amount() -> None:
    broker = SmallBroker()
    send(broker, b"a", 5)
    broker.clock.jump(30_000)
    broker.run(seconds=29)
    assert delivered(broker) == []
    broker.run(seconds=2)
    assert delivered(broker) == [b"a"]


def changed(broker: SmallBroker, config: StoreConfig) -> SmallBroker:
    broker.stop()
    return SmallBroker(broker.disk, store_config=config, clock=broker.clock)


def test_delay_of_a_level_removed_from_the_settings_is_delivered() -> None:
    broker = SmallBroker()
    send(broker, b"a", 18)
    broker = changed(broker, replace(STORE, delay_levels_ms=(1000, 2000)))
    broker.run(seconds=2)
    assert delivered(broker) == [b"a"]


def test_delay_of_a_level_that_was_shortened_uses_the_new_delay() -> None:
    broker = SmallBroker()
    send(broker, b"a", 1)
    broker = changed(broker, replace(STORE, delay_levels_ms=(500,)))
    broker.tick()
    assert delivered(broker) == [b"a"]


def test_delay_with_a_full_disk_delivers_when_there_is_room() -> None:
    broker = SmallBroker()
    send(broker, b"a", 1)
    broker.store._fence.refusal = "full"
    broker.run(seconds=3)
    assert delivered(broker) == []
    broker.store._fence.refusal = ""
    broker.run(seconds=0.2)
    assert delivered(broker) == [b"a"]


def test_delay_skips_a_message_without_a_destination() -> None:
    broker = SmallBroker()
    entry = Entry(queue_key(SCHEDULE_TOPIC, 0), b"lost", b"DELAY\x011\x02")
    broker.slices.base.writer.put([entry])
    broker.flush()
    send(broker, b"a", 1)
    broker.run(seconds=2)
    assert delivered(broker) == [b"a"]


def test_delay_skips_a_damaged_message() -> None:
    broker = SmallBroker()
    for rank in range(3):
        send(broker, b"%d" % rank, 1)
    middle = broker.messages(SCHEDULE_TOPIC, 0)[1]
    segment = broker.store.log.segment_at(middle.physical_offset)
    assert segment is not None
    segment.file.pwrite(middle.physical_offset - segment.start + 84, b"\x7f\xff\xff\xff")
    broker.run(seconds=2)
    assert delivered(broker) == [b"0", b"2"]


def test_delay_level_with_too_many_digits_is_ignored() -> None:
    broker = SmallBroker()
    answer = broker.send("orders", b"a", {"DELAY": "9" * 5000}, queue_id=1)
    assert answer.code == 0
    assert delivered(broker) == [b"a"]
