"""`make demo` does what the README says, and leaves no files or processes."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tianzhou.cmd.demo_view import Show

ROOT = Path(__file__).parents[2]
FIGURES = (
    "stored by the broker",
    "consumed by a group of two",
    "out of order",
    "rows in the archive",
    "seen by SQL",
    "sums exact to the cent",
    "late payments counted",
    "in quarantine",
)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_demo_output_matches_the_readme(tmp_path: Path) -> None:
    script = Path(sys.prefix) / "bin" / "tianzhou"
    environment = {**os.environ, "COLUMNS": "120", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [script, "demo"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    for figure in FIGURES:
        assert re.search(rf"ok +{figure}", done.stdout), f"{figure}: {done.stdout}"
    assert "Every result matches the input" in done.stdout
    stored = re.search(r"stored by the broker +([\d,]+)", done.stdout)
    assert stored is not None
    for name in ("README.md", "README.zh-CN.md"):
        assert stored[1] in (ROOT / name).read_text("utf-8")
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith("tianzhou")]
    assert not left, "the demo left something behind"


def test_demo_json_lists_every_check() -> None:
    """The output of `tianzhou demo --json`, without running the demo for another minute."""
    show = Show(Console(file=io.StringIO()))
    show.check("stored", wanted=3, found=3, note="all")
    show.check("seen", wanted=3, found=2)
    facts = json.loads(json.dumps(show.facts()))
    assert not facts["right"]
    assert [(row["what"], row["right"]) for row in facts["checks"]] == [
        ("stored", True),
        ("seen", False),
    ]
