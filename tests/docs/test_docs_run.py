"""Every block of code in the README and the documents is run by a test, and this says by which."""

import re
import shlex

import pytest

from docs.pages import ROOT, Page, all_pages
from docs.terminal import accept, joined, know

RUN_BY = {
    "README.md": [
        "docs/test_docs_readme.py",
        "spark/test_spark_readme.py",
        "interop/test_interop_readme.py",
    ],
    "docs/admin.md": ["e2e/test_docs_admin.py"],
    "docs/client.md": ["client/test_producer_docs.py"],
    "docs/command-line.md": ["cli/test_cli_docs.py"],
    "docs/consumers.md": ["client/test_consumer_docs.py"],
    "docs/filters.md": ["tidy/test_filters_doc.py"],
    "docs/getting-started.md": [
        "docs/test_docs_getting_started.py",
        "pipelines/test_getting_started_sql.py",
    ],
    "docs/idempotence.md": ["client/test_idempotence_docs.py"],
    "docs/metrics.md": ["docs/test_docs_operations.py", "client/test_spans.py"],
    "docs/nameserver.md": ["abuse/test_abuse_cluster.py"],
    "docs/operations/backup.md": ["docs/test_docs_operations.py"],
    "docs/operations/deploy.md": ["docs/test_docs_operations.py"],
    "docs/operations/disk.md": ["docs/test_docs_operations.py"],
    "docs/operations/nameservers.md": ["docs/test_docs_operations.py"],
    "docs/operations/scaling.md": ["docs/test_docs_operations.py"],
    "docs/operations/tuning.md": ["docs/test_docs_operations.py"],
    "docs/operations/upgrade.md": ["docs/test_docs_operations.py"],
    "docs/pipelines.md": ["pipelines/test_pipelines_doc.py"],
    "docs/raft.md": ["docs/test_docs_raft.py"],
    "docs/replication.md": ["docs/test_docs_replication.py"],
    "docs/spark.md": ["spark/test_spark_doc.py"],
    "docs/testing.md": ["e2e/test_docs_testing.py"],
}
SHOWN_ONLY = {"", "mermaid", "console"}
"""Text, pictures, and commands that need root or a container engine: see below."""
PROGRAMS = {
    ".",
    "docker",
    "install",
    "make",
    "pip",
    "python3",
    "systemctl",
    "useradd",
    "/opt/tianzhou/bin/pip",
}


def test_every_page_with_code_has_a_test() -> None:
    """A page in another language shows the same code: test_docs_languages.py."""
    pages = [page for page in all_pages() if not page.is_translation]
    with_code = {p.name for p in pages if {b.language for b in p.all_blocks} - SHOWN_ONLY}
    assert with_code == set(RUN_BY)


@pytest.mark.parametrize("name", RUN_BY)
def test_test_of_a_page_refers_to_it(name: str) -> None:
    """The test contains the path of the page, or its name in the docs folder."""
    words = {name, name.removeprefix("docs/"), Page(name).path.stem}
    for test in RUN_BY[name]:
        text = (ROOT / "tests" / test).read_text(encoding="utf-8")
        assert any(f'"{word}"' in text or f"docs/{word}" in text for word in words), test


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: page.name)
def test_page_commands_that_cannot_run_here_are_valid(page: Page) -> None:
    for line in joined("".join(page.blocks("console"))):
        words = [word for word in shlex.split(line) if "=" not in word.partition("/")[0]]
        if words[:2] == ["docker", "compose"] and "exec" in words:
            words = words[words.index("exec") + 2 :]  # what runs in a container
        if words[0].rpartition("/")[2] == "tianzhou":
            accept(words[1:])
        else:
            assert words[0] in PROGRAMS, line
        for word in words:
            if word.startswith(("deploy/", "docs/", "src/")):
                assert (ROOT / word).exists(), line


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: page.name)
def test_commands_in_prose_exist(page: Page) -> None:
    """Commands between words: of ours, of make, of pytest, and modules that are run."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for text in re.findall(r"`([^`]+)`", page.prose):
        match shlex.split(text, posix=False):
            case ["tianzhou", word, *words] if word != "--help":
                know([word, *words])
            case ["make", target, *_]:
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), text
            case ["pytest", *paths]:
                files = [path.partition("::")[0] for path in paths if not path.startswith("-")]
                assert all((ROOT / file).exists() for file in files), text
            case ["python", "-m", module, *_] if module.startswith(("bench.", "tianzhou.")):
                place = ROOT / ("src" if module.startswith("tianzhou.") else "")
                assert (place / f"{module.replace('.', '/')}.py").exists(), text
            case _:
                pass
