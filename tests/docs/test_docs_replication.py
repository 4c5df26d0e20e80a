"""The page about master and slaves: a pair as it says, its master lost, then changed on purpose."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clients.waiting import wait_until
from docs.pages import Page
from docs.terminal import Terminal, joined

PAGE = Page("docs/replication.md")


def is_complete(terminal: Terminal, slave: str) -> bool:
    """One master, and a slave that has everything: the log, and every ten seconds the topics."""
    rows = msgspec.json.decode(terminal.type("tianzhou cluster --json"), type=list[dict[str, Any]])
    # Each start here has a port of its own, so the master that was killed stays missing at its old.
    rows = [row for row in rows if row["missing_since_ms"] is None]
    has_log = {row["id"] for row in rows} == {0, 1} and len({row["end"] for row in rows}) == 1
    topics = terminal.place / slave / "config" / "topics.json"
    return has_log and topics.exists() and '"orders"' in topics.read_text()


@pytest.mark.slow
def test_replication_page_pair_and_promotion_commands_work(tmp_path: Path) -> None:
    start, _, promote = PAGE.blocks("sh")
    gone, switch = joined(promote)
    with Terminal(tmp_path) as terminal:
        terminal.type("tianzhou nameserver")
        for settings in PAGE.blocks("properties"):
            name = re.match(r"# (\S+\.conf)\n", settings)
            assert name is not None, settings
            terminal.save(name[1], settings)
        master_line, slave_line, look = joined(start)
        terminal.type(master_line)
        terminal.type("tianzhou produce orders --count 20 --size 100")
        terminal.type(slave_line)
        wait_until(lambda: is_complete(terminal, "slave"), within_s=60, what="the slave has all")
        assert terminal.type(look).count("broker-a") == 2
        _, master, _ = terminal.servers
        master.kill()
        terminal.type(gone)
        terminal.type(master_line)  # it returns, and is a slave now
        wait_until(lambda: is_complete(terminal, "master"), within_s=60, what="it has all")
        terminal.type(switch)
        read = "tianzhou consume orders --from earliest --until-end --json"
        assert len(terminal.type(read).splitlines()) == 20


@pytest.mark.slow
def test_replication_page_commands_change_the_confirming_replicas(tmp_path: Path) -> None:
    """The master waits for its slaves here; the one of the page does not, and the page says so."""
    start, copies, _ = PAGE.blocks("sh")
    settings, _ = PAGE.blocks("properties")
    with Terminal(tmp_path) as terminal:
        terminal.type("tianzhou nameserver")
        terminal.save("master.conf", settings.replace("ASYNC_MASTER", "SYNC_MASTER"))
        terminal.type(joined(start)[0])
        assert "inSyncReplicas=3" in terminal.play(copies)
