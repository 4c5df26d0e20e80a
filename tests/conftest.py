"""Settings of hypothesis, signals of child processes, test timeouts, and the final summary."""

import importlib.util
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_timeout
from hypothesis import settings

from tianzhou.store import append_check
from tianzhou.testing import stored_form
from tianzhou.testing.kit.time_limit import start_limit

_ROOT = Path(__file__).resolve().parent.parent
_EXAMPLES = 100
_EXAMPLES_TORTURE = 5_000

settings.register_profile(
    "tianzhou",
    # A shared machine stalls for longer than any useful deadline; pytest limits the whole test.
    deadline=None,
    # In CI a result must depend on the change, not on chance.
    derandomize="CI" in os.environ,
    print_blob=True,
    max_examples=_EXAMPLES_TORTURE if os.environ.get("TIANZHOU_TORTURE") else _EXAMPLES,
)
settings.load_profile("tianzhou")

# Every chunk is checked before a store writes it: in this process, and through the environment
# variable also in every server that a test starts.
stored_form.install()
os.environ["TIANZHOU_CHECK_APPENDS"] = stored_form.__name__

# Tests start hundreds of processes. Where Python must not write bytecode beside the sources, as in
# most containers, each of them would compile every module again, which doubles the CPU time of its
# start. They share the bytecode in `build` instead, and so do later runs.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(_ROOT / "build" / "pycache"))

# A test run in the background ignores Ctrl-C, and child processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# Tests pass the address of their server; a developer's own server must not be used instead.
for _variable in ("TIANZHOU_NAMESERVER", "NAMESRV_ADDR"):
    os.environ.pop(_variable, None)


# `make setup-core` installs neither Spark nor what its tests import; the summary says so.
HAS_SPARK = importlib.util.find_spec("pyspark") is not None
collect_ignore_glob = [] if HAS_SPARK else ["unit/spark/*", "property/test_spark_*.py"]


@pytest.fixture
def unchecked_appends() -> Iterator[None]:
    """Disable the check of appended chunks, for tests that write malformed records on purpose."""
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
    """Print which tests were left out, and how long Raft groups were simulated (tests/raft), summed
    over all test processes."""
    if not HAS_SPARK:
        terminalreporter.write_line(
            "skipped: tests/unit/spark, tests/property/test_spark_*: Spark is not installed"
            " (make setup installs it)"
        )
    simulations = [
        value
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "simulated"
    ]
    if simulations:
        seeds, simulated_s, wall_s = map(sum, zip(*simulations, strict=True))
        terminalreporter.write_line(
            f"raft: {seeds} seeds, {simulated_s / 3600:.2f} simulated hours, "
            f"{simulated_s / wall_s:.0f} times real time on each process"
        )
