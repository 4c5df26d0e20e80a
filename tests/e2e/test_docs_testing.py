"""docs/testing.md, in both languages: its examples work, its tables are complete."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import Page
from tianzhou.testing import RunningBroker
from tianzhou.testing.kit.faults import Faults

PAGE = Page("docs/testing.md")
EXAMPLES = PAGE.blocks("python")


def run(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_examples_of_the_testing_page_work(tmp_path: Path) -> None:
    """Each example runs in its own file, as a user would run it."""
    tests = [code for code in EXAMPLES if "\ndef test_" in code]
    scripts = [code for code in EXAMPLES if code not in tests]
    for number, code in enumerate(tests):
        (tmp_path / f"test_example_{number}.py").write_text(code, encoding="utf-8")
    said = run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert f"{len(tests)} passed" in said
    for code in scripts:
        (tmp_path / "example.py").write_text(code, encoding="utf-8")
        run("example.py", cwd=tmp_path)
    assert (len(tests), len(scripts)) == (9, 1)


def test_tables_of_the_testing_page_are_complete(mq: RunningBroker) -> None:
    """Code and page state the same facts, so a test compares them."""
    of_faults = {name for name in dir(Faults) if not name.startswith("_")}
    of_mq = {name for name in dir(mq) if not name.startswith("_")}
    listed = [re.findall(r"\w+", name)[0] for cell in PAGE.first_cells for name in cell]
    assert set(listed[: len(of_faults)]) == of_faults
    assert sorted(listed[len(of_faults) :]) == sorted(of_mq)
