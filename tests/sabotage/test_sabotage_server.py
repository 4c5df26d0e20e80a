"""Testing the tests of servers: each planted bug must be caught by the test it names."""

import importlib
import inspect
import sys
from pathlib import Path

import pytest
from planting import Bug, planted
from server_bugs import BUGS

UNIT = Path(__file__).parents[1] / "unit"
CAUGHT_S = 5.0
"""How long a test may wait for what a planted bug prevents."""
PLANTED_BADLY = (NameError, TypeError, AttributeError, SyntaxError, ImportError)


@pytest.fixture(autouse=True)
def unit_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of these folders can be imported by their names, which are unique."""
    folders = [str(UNIT / name) for name in ("net", "broker", "nameserver", "store")]
    monkeypatch.setattr(sys, "path", [*folders, *sys.path])


def play(bug: Bug, directory: Path, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
    """Run the test, in a new directory if it wants one."""
    name, _, function = bug.suite.partition(":")
    module = importlib.import_module(name)
    if monkeypatch is not None and hasattr(module, "WAIT_S"):
        monkeypatch.setattr(module, "WAIT_S", CAUGHT_S)
    test = getattr(module, function)
    if "tmp_path" in inspect.signature(test).parameters:
        directory.mkdir()
        test(directory)
    else:
        test()


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_planted_bug_of_a_server_is_caught(
    bug: Bug, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(bug, tmp_path / "sound")  # without the bug it passes
    with planted(bug), pytest.raises((Exception, pytest.fail.Exception)) as caught:
        play(bug, tmp_path / "planted", monkeypatch)
    assert not isinstance(caught.value, PLANTED_BADLY), caught.value


def test_no_two_bugs_of_servers_are_alike() -> None:
    assert len({bug.name for bug in BUGS}) == len({bug.edits for bug in BUGS}) == len(BUGS)
