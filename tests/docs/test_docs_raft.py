"""The page about Raft groups: a group on this machine, members elsewhere, one seed in words."""

import shlex
from pathlib import Path

import pytest

from docs.pages import ROOT, Page
from docs.terminal import Terminal, accept, joined

TRY, MEMBER, SIMULATE = Page("docs/raft.md").blocks("sh")


@pytest.mark.slow
def test_a_group_on_this_machine(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        said = terminal.play(TRY)
        assert said.count("Follower") == 2
        assert said.count("Leader") == 1


def test_a_member_on_a_machine_of_its_own() -> None:
    (line,) = joined(MEMBER)
    program, *words = shlex.split(line)
    assert program == "tianzhou"
    accept(words)


@pytest.mark.slow
def test_one_seed_is_told_and_made_shorter(tmp_path: Path) -> None:
    make, trace, shrink = joined(SIMULATE)
    assert make.split()[:2] == ["make", "sim"]
    assert "\nsim:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    terminal = Terminal(tmp_path)
    assert "Outcome(seed=1220" in terminal.type(trace)
    with pytest.raises(AssertionError, match="seed 1220 passes"):
        terminal.type(shrink)
