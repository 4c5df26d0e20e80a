"""The figures of a consumer's last minute, against what was put in."""

import pytest

from tianzhou.client.core.consume_rates import ConsumeRates, TopicRates


def test_consume_rates_of_an_unused_topic_are_zero() -> None:
    assert ConsumeRates(100.0).of("orders", 160.0) == TopicRates()


def test_consume_rates_are_per_second_and_times_are_averages() -> None:
    rates = ConsumeRates(100.0)
    rates.pulled("orders", 32, 0.004, 101.0)
    rates.pulled("orders", 8, 0.002, 105.0)
    rates.called("orders", 0.010, 30, 106.0)
    rates.called("orders", 0.020, 9, 107.0)
    rates.failed("orders", 1, 107.0)
    rates.finished("payments", 5, 107.0)
    figures = rates.of("orders", 110.0)
    assert figures.pulled == pytest.approx(4.0)
    assert figures.pull_ms == pytest.approx(3.0)
    assert figures.consumed == pytest.approx(3.9)
    assert figures.consume_ms == pytest.approx(15.0)
    assert (figures.failed, figures.failures) == (pytest.approx(0.1), 1)
    assert rates.of("payments", 110.0).consumed == pytest.approx(0.5)
    assert (rates.finished_count, rates.failed_count) == (44, 1)


def test_consume_rates_ignore_samples_older_than_a_minute() -> None:
    rates = ConsumeRates(0.0)
    for second in range(200):
        rates.finished("orders", 10 if second < 100 else 1, float(second))
    assert rates.of("orders", 200.0).consumed == pytest.approx(1.0, rel=0.2)
    assert rates.of("orders", 400.0) == TopicRates()
    assert rates.finished_count == 1100
