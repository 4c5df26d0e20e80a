"""The documents as a site: links and anchors lead somewhere, and nothing comes from elsewhere."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from docs.pages import ROOT
from docs.terminal import BIN

LOADED = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=["']?(https?:[^"' >]+)""")


def build(config: Path, place: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does."""
    return subprocess.run(
        [BIN / "mkdocs", "build", "--strict", "-f", config, "-d", place],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )


@pytest.mark.slow
def test_site_builds_and_loads_nothing_external(tmp_path: Path) -> None:
    """Strict: a page that is in no menu, a link and an anchor that lead nowhere are errors."""
    done = build(ROOT / "mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        assert not LOADED.findall(page.read_text(encoding="utf-8")), page
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:", style.read_text(encoding="utf-8")), style


@pytest.mark.slow
def test_site_build_fails_on_a_broken_link(tmp_path: Path) -> None:
    """The settings of the site are strict, and stay so."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# One\n\n[two](#nowhere)\n")
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    config = tmp_path / "mkdocs.yml"
    config.write_text(re.sub(r"(?s)\nhooks:.*?\n|\nnav:.*", "\n", text))
    done = build(config, tmp_path / "site")
    assert done.returncode != 0
    assert "#nowhere" in done.stderr
