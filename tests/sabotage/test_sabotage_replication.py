"""Testing the tests of replication: each planted bug must be caught by the test it names."""

import importlib
import sys
from pathlib import Path

import pytest
from planting import Bug, planted
from replication_bugs import BUGS

UNIT = Path(__file__).parents[1] / "unit"
CAUGHT_S = 5.0
"""How long a test may wait for what a planted bug prevents."""
PLANTED_BADLY = (NameError, TypeError, AttributeError, SyntaxError, ImportError)


@pytest.fixture(autouse=True)
def unit_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the modules of these folders importable by their unique names."""
    folders = [str(UNIT / name) for name in ("broker", "client", "nameserver", "replication")]
    monkeypatch.setattr(sys, "path", [*folders, *sys.path])


def play(bug: Bug) -> None:
    module, _, function = bug.suite.partition(":")
    getattr(importlib.import_module(module), function)()


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_planted_replication_bug_is_caught(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    play(bug)  # without the bug it passes
    for waiting in ("raft_trio", "test_ha_master"):
        monkeypatch.setattr(importlib.import_module(waiting), "WAIT_S", CAUGHT_S)
    with (
        planted(bug),
        pytest.raises((AssertionError, pytest.fail.Exception, TimeoutError)) as caught,
    ):
        play(bug)
    assert not isinstance(caught.value.__cause__, PLANTED_BADLY), caught.value


def test_planted_replication_bugs_are_distinct() -> None:
    assert len({bug.name for bug in BUGS}) == len({bug.edits for bug in BUGS}) == len(BUGS)
