"""Examples in Python are typed, as a user has them who checks strictly."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from docs.fragments import whole
from docs.pages import Page
from docs.terminal import BIN

PAGES = (
    "README",
    "docs/getting-started",
    "docs/client",
    "docs/consumers",
    "docs/idempotence",
    "docs/admin",
)
RULES = {
    "typeCheckingMode": "strict",
    "pythonVersion": "3.11",
    "include": ["."],
    "venvPath": str(Path(sys.prefix).parent),
    "venv": Path(sys.prefix).name,
    # What fragments leave unused, their readers use. Spark's own types are not whole.
    "reportUnusedVariable": False,
    "reportUnusedImport": False,
    "reportUnknownMemberType": False,
}


@pytest.mark.slow
def test_page_examples_pass_the_type_checker(tmp_path: Path) -> None:
    """One run for all pages; fixtures of pytest have no types in examples."""
    for name in PAGES:
        for number, code in enumerate(Page(f"{name}.md").blocks("python"), start=1):
            if "\ndef test_" not in code:
                file = tmp_path / f"{Path(name).stem.replace('-', '_').lower()}_{number}.py"
                file.write_text(whole(code), encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(RULES))
    done = subprocess.run(
        [BIN / "pyright", "-p", tmp_path], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout
