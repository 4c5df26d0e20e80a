"""How hypothesis works here, which signals the processes of tests can be stopped with, how long a
test may take, and what is told at the end."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import pytest_timeout
from hypothesis import settings

from tianzhou.store import append_check
from tianzhou.testing import stored_form
from tianzhou.testing.kit.time_limit import start_limit

_EXAMPLES = 100
_EXAMPLES_TORTURE = 5_000

settings.register_profile(
    "tianzhou",
    # A shared machine stalls for longer than any deadline worth having; pytest limits the whole.
    deadline=None,
    # In CI a run must say something about the change, not about its luck.
    derandomize="CI" in os.environ,
    print_blob=True,
    max_examples=_EXAMPLES_TORTURE if os.environ.get("TIANZHOU_TORTURE") else _EXAMPLES,
)
settings.load_profile("tianzhou")

# Every chunk that a test makes a store write is examined first: in this process, and by the
# variable also in every server that a test starts.
stored_form.install()
os.environ["TIANZHOU_CHECK_APPENDS"] = stored_form.__name__

# Whoever runs the tests in the background lets Ctrl-C be ignored, and processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# Tests name their servers; a developer's own must not answer in their place.
for _variable in ("TIANZHOU_NAMESERVER", "NAMESRV_ADDR"):
    os.environ.pop(_variable, None)


@pytest.fixture
def unchecked_appends() -> Iterator[None]:
    """For tests that write malformed records on purpose."""
    append_check.remove(stored_form.check_chunk)
    yield
    stored_form.install()


def pytest_timeout_set_timer(item: Any, settings: Any) -> bool | None:
    """Stretch the timeout of a test while the machine is busy; see kit/time_limit.py."""
    if settings.method != "signal" or threading.current_thread() is not threading.main_thread():
        return None  # pytest-timeout's own timer
    plugin: Any = pytest_timeout
    item.cancel_timeout = start_limit(
        settings.timeout, lambda: plugin.timeout_sigalrm(item, settings)
    )
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How long groups were simulated (tests/raft): the sum of what all processes did."""
    told = [
        value
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "simulated"
    ]
    if told:
        seeds, simulated_s, wall_s = map(sum, zip(*told, strict=True))
        terminalreporter.write_line(
            f"raft: {seeds} seeds, {simulated_s / 3600:.2f} simulated hours, "
            f"{simulated_s / wall_s:.0f} times real time on each process"
        )
