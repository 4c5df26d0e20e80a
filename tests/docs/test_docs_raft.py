"""The page about Raft groups: a group on this machine, members elsewhere, one seed in words."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from docs.pages import ROOT, Page
from docs.terminal import Terminal, accept, joined
from tianzhou.replication.raft_settings import RaftSettings, check

TRY, MEMBER, CONVERT, LIKE, TRY_PAIR, PAIR, SIMULATE = Page("docs/raft.md").blocks("sh")


@pytest.mark.slow
def test_raft_page_starts_a_group_on_one_machine(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        said = terminal.play(TRY)
        assert said.count("Follower") == 2
        assert said.count("Leader") == 1


def test_raft_page_member_command_is_accepted() -> None:
    (line,) = joined(MEMBER)
    program, *words = shlex.split(line)
    assert program == "tianzhou"
    accept(words)


@pytest.mark.slow
def test_raft_page_conversion_commands_work(tmp_path: Path) -> None:
    """On a broker, and on a copy of its directory, as a slave would have it."""
    with Terminal(tmp_path) as terminal:
        terminal.type("tianzhou up")
        terminal.type("tianzhou produce orders --count 20 --size 100")
        terminal.stop_servers()
        shutil.copytree(tmp_path / "tianzhou-data", tmp_path / "slave-data")
        (convert,), (like,) = joined(CONVERT), joined(LIKE)
        assert "n0 of orders" in terminal.type(f"{convert} --yes")
        shutil.copy(tmp_path / "tianzhou-data/raft/plain", tmp_path / "plain-of-n0")
        assert "n1 of orders" in terminal.type(f"{like} --yes")
        assert "n1 of orders already" in terminal.type(f"{like} --yes")


@pytest.mark.slow
def test_raft_page_starts_a_pair_with_a_witness(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        said = terminal.play(TRY_PAIR)
        assert (said.count("Leader"), said.count("Follower")) == (1, 1)
        assert "Witness" in said


def test_raft_page_commands_of_a_pair_are_accepted() -> None:
    for line in joined(PAIR):
        program, *words = shlex.split(line)
        assert program == "tianzhou"
        accept(words)


@pytest.mark.slow
def test_raft_page_simulation_commands_trace_and_shrink_a_seed(tmp_path: Path) -> None:
    make, trace, shrink = joined(SIMULATE)
    assert make.split()[:2] == ["make", "sim"]
    assert "\nsim:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    terminal = Terminal(tmp_path)
    assert "Outcome(seed=1220" in terminal.type(trace)
    with pytest.raises(AssertionError, match="seed 1220 passes"):
        terminal.type(shrink)


def test_election_settings_of_the_comparison_page_are_accepted() -> None:
    text = Page("docs/comparison.md").text
    given = {
        name: int(value)
        for name, value in re.findall(r"`(raft_\w+_ms) = (\d+)`", text)
        if value != "1000"  # the default, which the page names too
    }
    assert given == {"raft_election_ms": 150, "raft_heartbeat_ms": 50}
    group = {"raft_group": "orders", "raft_id": "n0", "raft_peers": "n0=127.0.0.1:10912"}
    assert check(RaftSettings(**group, **given))  # pyright: ignore[reportArgumentType]
    assert RaftSettings().raft_election_ms == 1000
