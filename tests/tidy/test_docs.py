"""Documents: links lead somewhere, lists are complete, words are plain."""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from doc_tables import only_table, read, section_of, tables_of
from sources import ROOT, SRC, documents, name_of, python_files, tree_of

from docs.pages import Page
from tianzhou.store import incidents as incident_kinds

ARCHITECTURE = read(ROOT / "ARCHITECTURE.md")
PROJECT: dict[str, Any] = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PAGES = [Page(name_of(path)) for path in documents()]
LOUD = (
    "blazing",
    "cutting-edge",
    "effortless",
    "game-chang",
    "powerful",
    "revolution",
    "robust",
    "seamless",
    "state-of-the-art",
    "world-class",
    "enterprise-grade",
    "battle-tested",
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_docs_links_have_targets(page: Page) -> None:
    for target in page.links:
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        place, _, anchor = target.partition("#")
        found = (page.path.parent / place).resolve() if place else page.path
        assert found.exists(), f"{target} is not there"
        assert ROOT in found.parents, f"{target} leads out of the repository"
        assert not anchor or anchor in Page(name_of(found)).anchors, f"no heading {anchor}"


@pytest.mark.parametrize("path", documents(), ids=name_of)
def test_docs_contain_no_loud_words_or_emoji(path: Path) -> None:
    text = read(path).lower()
    assert not [word for word in LOUD if word in text]
    # Pictures in text: the emoji planes, and the signs that are shown as such.
    assert not re.search("[\U0001f300-\U0001faff\u2600-\u27bf]", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_docs_lines_fit_the_width(page: Page) -> None:
    """Tables and links may be longer; a paragraph is not."""
    for line in page.prose.splitlines():
        assert len(line) <= 125 or line.startswith("|") or "](" in line, line


def test_every_document_is_reachable_from_the_readme() -> None:
    """Follow links from the README, in any number of steps."""
    todo, seen = [ROOT / "README.md"], set[Path]()
    while todo:
        path = todo.pop()
        seen.add(path)
        for target in Page(name_of(path)).links:
            found = (path.parent / target.partition("#")[0]).resolve()
            if found.suffix == ".md" and found not in seen and found.exists():
                todo.append(found)
    # Samples have a page of their own beside them.
    missing = {path for path in documents() if "tests" not in path.relative_to(ROOT).parts} - seen
    assert not [name_of(path) for path in missing]


# ARCHITECTURE.md


def test_architecture_is_within_its_line_limit() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 300


def test_architecture_links_every_store_module() -> None:
    for path in (SRC / "store").glob("*.py"):
        if path.name != "__init__.py":
            link = f"[store/{path.name}](src/tianzhou/store/{path.name})"
            assert link in ARCHITECTURE, f"{link} is missing"


def test_architecture_lists_every_package() -> None:
    cells = [row["package"] for row in tables_of(section_of(ARCHITECTURE, "Layers"))[0]]
    named = {word for cell in cells for word in re.findall(r"\w+", LINK.sub(r"\1", cell))}
    present = {path.parent.name for path in SRC.glob("*/__init__.py")}
    assert not present - named


def test_architecture_diagram_matches_the_import_contract() -> None:
    """Rows of the picture are the layers of the import contract, in its order."""
    picture = ARCHITECTURE.split("\n```\n")[1]
    rows = [re.findall(r"[a-z]+", line[:34]) for line in picture.splitlines()]
    drawn = [set(row) for row in rows if row]
    contract = tomllib.loads(read(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"][0]
    layers = [
        {word.strip(" ()").removeprefix("tianzhou.") for word in layer.split("|")}
        for layer in contract["layers"]
    ]
    assert drawn == layers


# Lists


def names_in(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=;~! ]", line, maxsplit=1)[0] for line in requirements}


def test_every_dependency_has_a_reason() -> None:
    text = read(ROOT / "docs/dependencies.md")
    groups = {"Base": PROJECT["dependencies"]} | {
        f"Extra: {extra}": lines for extra, lines in PROJECT["optional-dependencies"].items()
    }
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == list(groups)
    for title, lines in groups.items():
        rows = only_table(text, title)
        assert {row["name"] for row in rows} == names_in(lines), title
        assert all(row["why"] for row in rows)


def test_contributing_explains_every_test_folder() -> None:
    rows = only_table(read(ROOT / "CONTRIBUTING.md"), "Tests")
    explained = {row["folder"].removeprefix("tests/") for row in rows}
    present = {path.relative_to(ROOT).parts[1] for path in python_files("tests")} - {"conftest.py"}
    assert present <= explained


def test_contributing_commands_exist() -> None:
    makefile = read(ROOT / "Makefile")
    rows = only_table(read(ROOT / "CONTRIBUTING.md"), "Set-up")
    for row in rows:
        target = row["command"].removeprefix("make ")
        assert re.search(rf"^{target}:.*##", makefile, re.MULTILINE), target


def test_changelog_sections_are_in_order() -> None:
    text = read(ROOT / "CHANGELOG.md")
    kinds = ["Renamed", "Safety", "Features", "Performance", "Fixes", "Internals"]
    for release in text.split("\n## ")[1:]:
        titles = re.findall(r"^### (.+)$", release, re.MULTILINE)
        assert titles == [kind for kind in kinds if kind in titles], release.partition("\n")[0]


def test_guarantees_page_covers_every_fault() -> None:
    faults, kept, incidents = tables_of(read(ROOT / "docs/guarantees.md"))
    kinds = {name for name in vars(incident_kinds) if name.isupper() and name.count("_")}
    kinds -= {"KEPT_MAX"}
    assert {row["incident"].strip("`") for row in incidents} == {
        getattr(incident_kinds, name) for name in kinds
    }
    names = [f"F{number}" for number in range(1, 9)]
    assert [row["fault"] for row in faults] == names
    assert [row["fault"] for row in kept] == names
    assert all(row["asynchronous flush"] and row["synchronous flush"] for row in kept)


def test_ownership_table_lists_existing_classes() -> None:
    """A class that was renamed must not live on in the table."""
    classes = {
        node.name
        for path in python_files("src")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
    }
    text = read(ROOT / "docs/ownership.md")
    named = set(re.findall(r"`([A-Z]\w+)[`.]", text))
    assert named
    assert named <= classes
