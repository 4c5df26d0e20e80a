"""The figures of a consumer's last minute, against what was put in."""

import pytest

from tianzhou.client.core.pace import Pace, TopicPace


def test_a_topic_nobody_worked_on_has_no_figures() -> None:
    assert Pace(100.0).of("orders", 160.0) == TopicPace()


def test_rates_are_per_second_of_life_and_times_are_averages() -> None:
    pace = Pace(100.0)
    pace.pulled("orders", 32, 0.004, 101.0)
    pace.pulled("orders", 8, 0.002, 105.0)
    pace.called("orders", 0.010, 30, 106.0)
    pace.called("orders", 0.020, 9, 107.0)
    pace.failed("orders", 1, 107.0)
    pace.finished("payments", 5, 107.0)
    figures = pace.of("orders", 110.0)
    assert figures.pulled == pytest.approx(4.0)
    assert figures.pull_ms == pytest.approx(3.0)
    assert figures.consumed == pytest.approx(3.9)
    assert figures.consume_ms == pytest.approx(15.0)
    assert (figures.failed, figures.failures) == (pytest.approx(0.1), 1)
    assert pace.of("payments", 110.0).consumed == pytest.approx(0.5)
    assert (pace.finished_count, pace.failed_count) == (44, 1)


def test_what_is_older_than_a_minute_counts_no_more() -> None:
    pace = Pace(0.0)
    for second in range(200):
        pace.finished("orders", 10 if second < 100 else 1, float(second))
    assert pace.of("orders", 200.0).consumed == pytest.approx(1.0, rel=0.2)
    assert pace.of("orders", 400.0) == TopicPace()
    assert pace.finished_count == 1100
