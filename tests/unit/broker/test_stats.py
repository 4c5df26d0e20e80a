"""Counters, windows and rates, with time as an argument."""

import pytest

from tianzhou.broker import stats as module
from tianzhou.broker.stats import DAY, HOUR, MINUTE, Durations, Flow, Growth, Stats

START = 1_700_000_000_000


def run(stats: Stats, start_s: int, end_s: int, per_second: int) -> None:
    for second in range(start_s, end_s):
        if per_second:
            stats.put("orders", per_second, per_second * 100)
        stats.tick(START + (second + 1) * 1000)


def test_stats_without_traffic_are_zero() -> None:
    stats = Stats(START)
    assert stats.put_rates() == [0.0, 0.0, 0.0]
    assert stats.puts.growth(MINUTE, START) == Growth()


def test_stats_rates_cover_three_windows() -> None:
    stats = Stats(START)
    run(stats, 0, 600, 10)
    assert stats.put_rates() == [10.0, 10.0, 10.0]
    run(stats, 600, 630, 70)
    assert stats.put_rates() == pytest.approx([70.0, 40.0, 13.0])
    run(stats, 630, 640, 0)
    assert stats.put_rates()[0] == 0.0


def test_stats_rates_of_a_new_broker_divide_by_its_age() -> None:
    stats = Stats(START)
    run(stats, 0, 5, 10)
    assert stats.put_rates() == [10.0, 10.0, 10.0]


def test_stats_ticks_within_a_second_count_once() -> None:
    stats = Stats(START)
    stats.put("orders", 100, 0)
    for ms in (1, 500, 999):
        stats.tick(START + ms)
    assert stats.put_rates() == [0.0, 0.0, 0.0]
    stats.tick(START + 1000)
    assert stats.put_rates()[0] == 100.0


def test_stats_count_gets_by_group_and_outcome() -> None:
    stats = Stats(START)
    for _ in range(4):
        stats.got("orders", "readers", 5, 50)
    stats.missed()
    stats.tick(START + 1000)
    assert stats.transferred_rates()[0] == 20.0
    assert stats.found_rates()[0] == 4.0
    assert stats.missed_rates()[0] == 1.0
    assert stats.group_gets["orders", "readers"].size == 200


def test_stats_growth_of_a_topic_covers_each_window() -> None:
    stats = Stats(START)
    run(stats, 0, 7200, 1)
    now_ms = START + 7_200_000
    flow = stats.topic_puts["orders"]
    assert flow.growth(MINUTE, now_ms).total == pytest.approx(60, abs=10)
    assert flow.growth(HOUR, now_ms).total == pytest.approx(3600, abs=600)
    assert flow.growth(DAY, now_ms).total == 7200
    for window in (MINUTE, HOUR, DAY):
        assert flow.growth(window, now_ms).per_second == pytest.approx(1.0, rel=0.01)
        assert flow.growth(window, now_ms).per_call == 1.0
    assert flow.growth(DAY, now_ms, of_size=True).total == 720_000


def test_stats_growth_includes_the_first_message_of_a_topic() -> None:
    stats = Stats(START)
    stats.tick(START + 30_000)
    stats.put("orders", 3, 30)
    assert stats.topic_puts["orders"].growth(MINUTE, START + 31_000).total == 3


def test_stats_totals_at_midnight_are_kept_for_two_days() -> None:
    stats = Stats(START)
    day_ms = 86_400_000
    stats.put("orders", 5, 0)
    stats.tick(START + day_ms)
    assert (stats.mornings.yesterday, stats.mornings.today) == ((0, 0), (5, 0))
    stats.got("orders", "readers", 2, 0)
    stats.tick(START + day_ms + 1000)
    assert stats.mornings.today == (5, 0)
    stats.tick(START + 2 * day_ms)
    assert (stats.mornings.yesterday, stats.mornings.today) == ((5, 0), (5, 2))


def test_stats_of_deleted_topics_and_groups_are_removed() -> None:
    stats = Stats(START)
    for topic in ("a", "b"):
        stats.put(topic, 1, 1)
        for group in ("g", "h"):
            stats.got(topic, group, 1, 1)
            stats.sent_back(topic, group)
    stats.topic_deleted("a")
    assert list(stats.topic_puts) == ["b"]
    stats.group_deleted("g")
    assert list(stats.group_gets) == list(stats.group_send_backs) == [("b", "h")]
    assert stats.puts.count == 2


def test_stats_limit_the_number_of_topics_and_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLOWS_MAX", 3)
    stats = Stats(START)
    for number in range(5):
        stats.put(f"t{number}", 1, 1)
        stats.got(f"t{number}", "g", 1, 1)
        stats.sent_back(f"t{number}", "g")
    assert len(stats.topic_puts) + len(stats.group_gets) + len(stats.group_send_backs) == 3
    assert (stats.puts.count, stats.gets.count) == (5, 5)


def test_stats_durations_have_buckets_and_percentiles() -> None:
    times = Durations()
    assert times.percentile(0.99) == 0
    for ms in [0] * 98 + [7, 30_000]:
        times.add(ms)
    assert times.buckets[0] == 98
    assert times.buckets[-1] == 1
    assert times.percentile(0.5) == 0
    assert times.percentile(0.99) == 10
    assert times.percentile(0.999) == times.longest_ms == 30_000


def test_stats_history_is_averaged_per_step() -> None:
    stats = Stats(START)
    for second in range(1, 31):
        stats.put("t", second, 1)
        stats.got("t", "g", 2, 1)
        stats.tick(START + second * 1000)
    puts, gets = stats.history(10)
    assert len(puts) == len(gets) == 2
    assert gets == [2.0, 2.0]
    assert puts[1] - puts[0] == 10.0
    assert Stats(START).history(10) == ([], [])


def test_stats_flow_returns_the_growth_of_each_step() -> None:
    flow = Flow(START)
    for second in range(10, 40, 10):
        flow.add(second, 1)
        flow.sample(START + second * 1000)
    flow.add(7, 1)
    assert flow.steps(MINUTE) == [10, 20, 30, 7]
