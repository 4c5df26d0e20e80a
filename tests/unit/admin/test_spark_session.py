"""Ctrl-C while Spark runs: Spark's own handler and Py4J's stacks are kept out of it."""

import logging
import signal

import pytest

from tianzhou.admin.commands.spark_session import _own_interrupts


def test_own_interrupts_when_spark_sets_a_handler_restores_ours() -> None:
    ours = signal.getsignal(signal.SIGINT)
    try:
        with _own_interrupts():
            signal.signal(signal.SIGINT, lambda _number, _frame: None)  # as SparkContext does
        assert signal.getsignal(signal.SIGINT) is ours
    finally:
        signal.signal(signal.SIGINT, ours)


def test_own_interrupts_drops_only_logged_keyboard_interrupts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    root = logging.getLogger()
    filters = list(root.filters)
    try:
        with _own_interrupts():
            for error in (KeyboardInterrupt(), ValueError("x")):
                try:
                    raise error
                except (KeyboardInterrupt, ValueError):
                    root.exception("%s while sending command", type(error).__name__)
    finally:
        root.filters[:] = filters
    assert [record.args for record in caplog.records] == [("ValueError",)]
