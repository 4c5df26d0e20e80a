"""The pages of docs/paths against traced runs. `tools/gen_paths.py` writes the pages."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from docs.pages import ROOT, Page

sys.path.insert(0, str(ROOT / "tools"))

import gen_paths
import path_tracer

ROW = re.compile(r"^\| \[([^\]]+)\]\(../../src/tianzhou/\1\) `([^`]+)` \| (.+) \|$", re.MULTILINE)
ATTEMPTS = 3
"""A timer that fires in every repetition of a trace is rare."""
MOST: dict[str, tuple[int, int]] = {
    "send": (41, 106),
    "consume": (90, 480),
    "topic-list": (47, 270),
}
"""Files and moves; these may only go down. `make house` prints the targets."""


def trace(name: str) -> dict[str, Any]:
    """Trace in another process: in this one tests examine every append."""
    environment = {key: os.environ[key] for key in os.environ if not key.startswith("TIANZHOU_")}
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "paths.py", "--json", name],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@cache
def first_trace(name: str) -> dict[str, Any]:
    return trace(name)


def documented(name: str) -> dict[str, list[str]]:
    """The steps of a page, by place."""
    places = {heading: place for place, heading in gen_paths.DOCUMENTS[name].places.items()}
    sections = Page(f"docs/paths/{name}.md").text.split("\n## ")[1:]
    return {
        places[section.partition("\n")[0]]: [f"{file}:{at}" for file, at, _ in ROW.findall(section)]
        for section in sections
    }


def differences(expected: dict[str, list[str]], traced: dict[str, list[str]]) -> str:
    for place, steps in expected.items():
        found = traced.get(place, [])
        lacking = [step for step in steps if step not in found]
        extra = [step for step in found if step not in steps]
        if lacking or extra:
            return f"{place}: not run: {lacking}; not on the page: {extra}"
        if steps != found:
            return f"{place}: the order is {found}"
    return ""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["send", "consume", "dashboard-page"])
def test_paths_page_matches_a_traced_run(name: str) -> None:
    found = [differences(documented(name), first_trace(name)["tour"])]
    while found[-1] and len(found) < ATTEMPTS:
        found.append(differences(documented(name), trace(name)["tour"]))
    assert not found[-1], f"run tools/gen_paths.py {name}: {found}"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["promotion", "micro-batch"])
def test_paths_page_steps_are_all_executed(name: str) -> None:
    """In these runs background work differs from run to run: it may take further steps, or take
    one only in the next run."""
    missing = _not_run(first_trace(name)["steps"], documented(name))
    for _ in range(ATTEMPTS - 1):
        if missing:
            missing = _not_run(trace(name)["steps"], missing)
    assert not missing, f"run tools/gen_paths.py {name}"


def _not_run(ran: dict[str, list[str]], steps: dict[str, list[str]]) -> dict[str, list[str]]:
    found = {
        place: [step for step in row if step not in ran[place]] for place, row in steps.items()
    }
    return {place: row for place, row in found.items() if row}


@pytest.mark.slow
@pytest.mark.parametrize("name", MOST)
def test_paths_do_not_grow(name: str) -> None:
    files_max, moves_max = MOST[name]
    traced = first_trace(name)
    assert len(traced["files"]) <= files_max, traced["files"]
    assert traced["moves"] <= moves_max


@pytest.mark.parametrize("name", gen_paths.DOCUMENTS)
def test_paths_page_explains_every_row(name: str) -> None:
    text = Page(f"docs/paths/{name}.md").text
    rows = ROW.findall(text)
    assert rows
    assert len(rows) == text.count("](../../src/tianzhou/")
    assert all(len(about) > 10 for _, _, about in rows)


def test_tracer_names_the_enclosing_function() -> None:
    from tianzhou.record import properties

    code = properties.encode.__code__
    inner = [part for part in code.co_consts if hasattr(part, "co_qualname")]
    for each in (code, *inner):
        assert path_tracer.step_of(each) == "record/properties.py:encode"
    assert path_tracer.step_of(documented.__code__) is None
