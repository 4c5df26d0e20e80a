"""The README from top to bottom, as a new user goes through it."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from docs.pages import ROOT, Page
from docs.terminal import Terminal, joined

README = Page("README.md")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
COMMANDS, UP, ASK = README.blocks("sh")
PYTHON, SPARK = README.blocks("python")


@pytest.mark.parametrize("line", joined(COMMANDS))
def test_readme_make_targets_exist(line: str) -> None:
    """The output of `make demo` is compared with the README in tests/pipelines/test_demo.py."""
    make, target = line.split()
    assert make == "make"
    assert re.search(rf"^{target}:.*  ## \S", MAKEFILE, re.MULTILINE), f"no help for {target}"
    # Without the flags of a `make test` that may be running us.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_make_demo_runs_the_demo_command() -> None:
    assert re.search(r"^demo:.*\n\t@\$\(BIN\)/tianzhou demo$", MAKEFILE, re.MULTILINE)


@pytest.mark.slow
def test_readme_python_example_sends_and_receives(tmp_path: Path) -> None:
    """The Java of the page runs in `make interop`, its Spark where there is one: tests/spark."""
    with Terminal(tmp_path) as terminal:
        terminal.play(UP)
        assert terminal.run_python(PYTHON) == "fruit b'two apples'\n"
        assert "two apples" in terminal.play(ASK)
    assert (tmp_path / "tianzhou-data" / "commitlog").is_dir()


@pytest.mark.parametrize("code", [PYTHON, SPARK], ids=["python", "spark"])
def test_readme_examples_have_at_most_ten_lines(code: str) -> None:
    lines = [line for line in code.splitlines() if line and not line.startswith(("import", "from"))]
    assert len(lines) <= 10
