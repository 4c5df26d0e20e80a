"""Testing the tests of servers: each planted bug must be caught by the test it names."""

import importlib
import inspect
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import answer_bugs
import pytest
import server_bugs
from planting import Bug, planted

from tianzhou.testing.small_broker import SmallBroker

BUGS = (*server_bugs.BUGS, *answer_bugs.BUGS)
UNIT = Path(__file__).parents[1] / "unit"
CAUGHT_S = 5.0
"""How long a test may wait for what a planted bug prevents."""
PLANTED_BADLY = (NameError, TypeError, AttributeError, SyntaxError, ImportError)


@pytest.fixture(autouse=True)
def unit_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the modules of these folders importable by their unique names."""
    monkeypatch.setattr(sys, "path", [*map(str, UNIT.iterdir()), *sys.path])


def play(bug: Bug, directory: Path, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
    """Run the test with all its parameters, each in a new directory if it takes one."""
    name, _, function = bug.suite.partition(":")
    module = importlib.import_module(name)
    if monkeypatch is not None and hasattr(module, "WAIT_S"):
        monkeypatch.setattr(module, "WAIT_S", CAUGHT_S)
    test = getattr(module, function)
    for number, given in enumerate(parameters(test)):
        if "tmp_path" in inspect.signature(test).parameters:
            given["tmp_path"] = directory / str(number)
            given["tmp_path"].mkdir(parents=True)
        if "broker" in inspect.signature(test).parameters:
            make = inspect.unwrap(module.broker)
            given["broker"] = SmallBroker() if inspect.signature(make).parameters else make()
        test(**given)


def parameters(test: Any) -> Iterator[dict[str, Any]]:
    """The arguments that pytest would pass to the test, without fixtures."""
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    for row in itertools.product(*(mark.args[1] for mark in marks)):
        given: dict[str, Any] = {}
        for mark, values in zip(marks, row, strict=True):
            names = mark.args[0]
            given |= (
                {names: values} if isinstance(names, str) else dict(zip(names, values, strict=True))
            )
        yield given


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_planted_server_bug_is_caught(
    bug: Bug, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(bug, tmp_path / "sound")  # without the bug it passes
    with planted(bug), pytest.raises((Exception, pytest.fail.Exception)) as caught:
        play(bug, tmp_path / "planted", monkeypatch)
    assert not isinstance(caught.value, PLANTED_BADLY), caught.value


def test_planted_server_bugs_are_distinct() -> None:
    assert len({bug.name for bug in BUGS}) == len({bug.edits for bug in BUGS}) == len(BUGS)
