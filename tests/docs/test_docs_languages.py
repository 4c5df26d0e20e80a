"""Pages in two languages show the same: code, shape, links, names in tables."""

import re

import pytest

from docs.pages import Page, all_pages

TRANSLATED = [page.twin for page in all_pages() if page.is_translation]


def code_of(page: Page) -> list[tuple[str, str]]:
    """Blocks without what is said beside commands, which is translated; so is plain text."""
    return [
        (block.language, re.sub(r"\s+# .*$", "", block.code, flags=re.MULTILINE))
        for block in page.all_blocks
        if block.language
    ]


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda page: page.name)
def test_chinese_page_has_the_same_code_and_headings(page: Page) -> None:
    chinese = page.twin
    assert code_of(page) == code_of(chinese)
    levels = [[level for level, _ in each.headings] for each in (page, chinese)]
    assert levels[0] == levels[1]
    assert page.first_cells == chinese.first_cells


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda page: page.name)
def test_chinese_and_english_pages_link_to_each_other(page: Page) -> None:
    assert page.links[0] == page.twin.path.name
    assert page.twin.links[0] == page.path.name


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda page: page.name)
def test_chinese_page_links_lead_to_chinese_pages(page: Page) -> None:
    """A link to a page that has a twin leads to the twin; the first link is the way out."""
    chinese = page.twin
    places = [(chinese.path.parent / link.partition("#")[0]).resolve() for link in chinese.links]
    known = {one.path for one in TRANSLATED} - {page.path}
    assert not known.intersection(places)
