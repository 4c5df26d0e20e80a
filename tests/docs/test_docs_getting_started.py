"""Getting started, from top to bottom."""

from pathlib import Path

import pytest

from docs.pages import Page
from docs.terminal import Terminal

PAGE = Page("docs/getting-started.md")


@pytest.mark.slow
def test_getting_started_page_works_from_top_to_bottom(tmp_path: Path) -> None:
    """The SQL of the page is tested where Spark is installed:
    tests/pipelines/test_getting_started_sql.py."""
    up, shell, start, test, _, doctor = PAGE.blocks("sh")
    service, its_test = PAGE.blocks("python")
    with Terminal(tmp_path) as terminal:
        terminal.play(up)
        assert "T9" in terminal.play(shell)
        terminal.save("billing.py", service)
        said = terminal.play(start)
        assert "billed 30" in said
        assert "orders" in said
        terminal.save("test_billing.py", its_test)
        assert "1 passed" in terminal.play(test)
        terminal.play(doctor)
