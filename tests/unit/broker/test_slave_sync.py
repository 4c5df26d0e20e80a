"""What a slave takes from its master's responses."""

import pytest

from tianzhou.base.errors import RemoteProtocolError
from tianzhou.broker.slave_sync import LOG_END, TIMERS, _log_end_and_timers


def test_progress_without_our_fields_is_that_of_rocketmq() -> None:
    assert _log_end_and_timers({}) == (0, None)


@pytest.mark.parametrize(
    "ext",
    [
        {LOG_END: "x"},
        {LOG_END: "9" * 10_000},
        {TIMERS: ""},
        {TIMERS: "[]"},
        {TIMERS: "[" * 100_000},
        {TIMERS: '{"a":' * 100_000},
    ],
    ids=["text", "too long", "nothing", "list", "nested lists", "nested objects"],
)
def test_progress_that_can_not_be_read_is_a_protocol_error(ext: dict[str, str]) -> None:
    """Anything else would end the task that follows the master's tables."""
    with pytest.raises(RemoteProtocolError, match="progress of the master"):
        _log_end_and_timers(ext)
