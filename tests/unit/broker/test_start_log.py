"""What the log says about a start."""

import logging

import pytest

from tianzhou.broker.observe.health import log_recovery
from tianzhou.testing.small_broker import SmallBroker


def lines(caplog: pytest.LogCaptureFixture, broker: SmallBroker) -> list[logging.LogRecord]:
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="tianzhou.broker"):
        log_recovery(broker.store)
    return list(caplog.records)


def test_start_log_after_a_clean_stop_is_empty(caplog: pytest.LogCaptureFixture) -> None:
    broker = SmallBroker()
    broker.send("orders")
    broker.restart()
    assert lines(caplog, broker) == []


def test_start_log_after_a_kill_is_one_info_line(caplog: pytest.LogCaptureFixture) -> None:
    broker = SmallBroker()
    broker.send("orders")
    broker.kill()
    (line,) = lines(caplog, broker)
    assert (line.getMessage(), line.levelno) == ("store.recovered", logging.INFO)
    assert line.__dict__["records"] >= 1
