"""docs/dashboard.md, in both languages: every page, every option, and pictures that are there."""

import re
from pathlib import Path

import click
import pytest

from docs.pages import ROOT, Page
from tianzhou.cmd.up import up
from tianzhou.dashboard.render import environment

PAGES = [Page("docs/dashboard.md"), Page("docs/dashboard.zh-CN.md")]


def first_cells(page: Page) -> list[str]:
    rows = re.findall(r"^\| ([^|]+) \|", page.text, re.MULTILINE)
    return [cell.strip("` ") for cell in rows if not cell.startswith("---")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_dashboard_page_explains_every_menu_entry(page: Page) -> None:
    source, _, _ = environment().loader.get_source(environment(), "frame.html")  # pyright: ignore[reportOptionalMemberAccess] - it has one
    entries = re.findall(r'\("\w+", "/[\w-]*", "([^"]+)", "\w"\)', source)
    assert len(entries) == 8
    # A translation adds its own word in brackets.
    cells = [cell.partition("（")[0] for cell in first_cells(page)]
    assert [cell for cell in cells if cell in entries] == entries


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_dashboard_page_explains_every_option(page: Page) -> None:
    options = {
        name
        for option in up.params
        if isinstance(option, click.Option)
        for name in option.opts
        if "http" in name
    }
    assert {cell for cell in first_cells(page) if cell.startswith("--")} == options


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_dashboard_page_pictures_exist_and_are_small(page: Page) -> None:
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.text)
    assert len(shown) == 8
    for name in shown:
        path: Path = ROOT / "docs" / name
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size < 300_000, name
