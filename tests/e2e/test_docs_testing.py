"""docs/testing.md, in both languages: its examples work, its tables are complete."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tianzhou.testing import RunningBroker
from tianzhou.testing.kit.faults import Faults

DOCS = Path(__file__).parents[2] / "docs"
ENGLISH, CHINESE = (
    (DOCS / name).read_text(encoding="utf-8") for name in ("testing.md", "testing.zh-CN.md")
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXAMPLES = [code for language, code in BLOCK.findall(ENGLISH) if language == "python"]


def first_cells(text: str) -> list[str]:
    return [name for row in re.findall(r"^\| (`.+?`) \|", text, re.MULTILINE) for name in
            re.findall(r"`(\w+)", row)]  # fmt: skip


def run(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_examples_work(tmp_path: Path) -> None:
    """As a user would run them: each in a file of its own."""
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


def test_both_languages_show_the_same() -> None:
    assert BLOCK.findall(ENGLISH) == BLOCK.findall(CHINESE)
    assert re.findall(r"^(#+) ", ENGLISH, re.MULTILINE) == re.findall(
        r"^(#+) ", CHINESE, re.MULTILINE
    )
    assert first_cells(ENGLISH) == first_cells(CHINESE)
    assert "](testing.zh-CN.md)" in ENGLISH
    assert "](testing.md)" in CHINESE


def test_the_tables_are_complete(mq: RunningBroker) -> None:
    """Said twice, so it is compared."""
    of_faults = {name for name in dir(Faults) if not name.startswith("_")}
    of_mq = {name for name in dir(mq) if not name.startswith("_")}
    listed = first_cells(ENGLISH)
    assert set(listed[: len(of_faults)]) == of_faults
    assert sorted(listed[len(of_faults) :]) == sorted(of_mq)
