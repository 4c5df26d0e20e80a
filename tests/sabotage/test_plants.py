"""Every planted bug still matches the code that it breaks. The suites that plant them take minutes;
this test finds outdated plants within a second."""

import importlib
from collections.abc import Iterator
from pathlib import Path

from planting import Bug, planted


def bugs() -> Iterator[Bug]:
    for path in sorted(Path(__file__).parent.glob("*bugs.py")):
        for value in vars(importlib.import_module(path.stem)).values():
            if type(value) is tuple and value and isinstance(value[0], Bug):
                yield from value


def test_every_planted_bug_matches_the_code() -> None:
    found = list(bugs())
    assert len(found) > 100
    for bug in found:
        with planted(bug):
            pass
