"""docs/command-line.md: what it says about commands is what the commands do."""

import re
import shlex

import pytest

from cli.command_reference import DOCS, MARKER, PAGES, table
from cli.conftest import Run
from docs.pages import Page
from tianzhou.admin.commands.failures import ExitCode


@pytest.mark.parametrize("name", PAGES)
def test_command_reference_matches_the_commands(name: str) -> None:
    """`.venv/bin/python tests/cli/command_reference.py` writes it."""
    text = (DOCS / name).read_text(encoding="utf-8")
    assert text.partition(MARKER)[2] == "\n" + table(PAGES[name])


@pytest.mark.parametrize("name", PAGES)
def test_command_line_page_lists_the_exit_codes(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)} == {*ExitCode}


def test_command_line_page_commands_work(run: Run) -> None:
    lines = "".join(Page("docs/command-line.md").blocks("sh")).splitlines()
    assert len(lines) > 15
    for line in lines:
        words = shlex.split(line)
        stdin = ""
        if words[0] == "echo":
            stdin, words = words[1] + "\n", words[3:]
        if words[0] == "eval":  # a real bash does it in test_cli_processes.py
            assert words[1] == "$(tianzhou completion bash)", line
            continue
        assert words[0] == "tianzhou", line
        said = run(*words[1:], stdin=stdin)
        assert said.code == 0, f"{line}: {said.out}{said.err}"
