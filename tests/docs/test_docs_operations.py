"""The pages of operators: their commands work, and do what the pages say."""

import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from clients.waiting import wait_until
from docs.pages import ROOT, Page
from docs.terminal import Terminal
from tianzhou.client.sync import Admin

SEND = "tianzhou produce orders --count 20 --size 100"
FAIR = 20
"""Of 60 messages on two brokers."""
READ = "tianzhou consume orders --from earliest --until-end --json"


def page(name: str) -> Page:
    return Page(f"docs/operations/{name}.md")


@pytest.mark.slow
def test_deploy_page_commands_work(tmp_path: Path) -> None:
    by_hand, second = page("deploy").blocks("sh")
    (settings,) = page("deploy").blocks("toml")
    with Terminal(tmp_path) as terminal:
        terminal.play(by_hand)
        terminal.save("broker-b.toml", settings)
        said = terminal.play(second)
        assert "broker-b" in said
        (kept,) = tmp_path.rglob("config/brokerName")
        assert kept.read_text().strip() in said, "the one that was started without a name"
        assert (tmp_path / "data-b" / "commitlog").is_dir()


@pytest.mark.slow
def test_scaling_page_commands_give_a_new_broker_its_share(tmp_path: Path) -> None:
    """What the page claims: after its commands both brokers get messages."""
    add, choose = page("scaling").blocks("sh")
    (settings,) = page("scaling").blocks("toml")

    def stored(topic: str) -> dict[str, int]:
        shown = msgspec.json.decode(terminal.type(f"tianzhou topic show {topic} --json"))
        found = {row["broker"]: 0 for row in shown["brokers"]}
        for queue in shown["queues"]:
            found[queue["broker"]] += queue["messages"]
        return found

    with Terminal(tmp_path) as terminal:
        terminal.type("tianzhou nameserver")
        terminal.type("tianzhou broker --set brokerName=broker-a -n 127.0.0.1:9876 --data data-a")
        terminal.type("tianzhou topic create orders --queues 4")
        terminal.save("broker-b.toml", settings)
        said = terminal.play(add)
        assert "it has no queue of topic orders" in said
        assert stored("orders") == {"broker-a": 0, "broker-b": 0}
        # At a rate each message is a batch of its own.
        terminal.type("tianzhou produce orders --count 60 --size 100 --rate 60")
        counts = stored("orders")
        assert sum(counts.values()) == 60
        assert min(counts.values()) >= FAIR
        terminal.play(choose)
        shown = msgspec.json.decode(terminal.type("tianzhou topic show refunds --json"))
        assert [
            (row["broker"], row["read_queues"], row["write_queues"], row["permission"])
            for row in shown["brokers"]
        ] == [("broker-a", 8, 4, "r"), ("broker-b", 8, 8, "rw")]


@pytest.mark.slow
def test_backup_page_commands_work(tmp_path: Path) -> None:
    cold, hot, back = page("backup").blocks("sh")
    with Terminal(tmp_path) as terminal:
        terminal.type("tianzhou up")
        terminal.type(SEND)
        with background(terminal, "tianzhou produce orders --count 1000 --size 100 --rate 500"):
            terminal.play(hot)
        terminal.stop_servers()
        assert "1,020 records" in terminal.play(cold)
        assert "orders" in terminal.play(back)
        # All that was acknowledged before the copy, and perhaps some of what came meanwhile.
        assert 20 <= len(terminal.type(READ).splitlines()) <= 1020


@contextmanager
def background(terminal: Terminal, line: str) -> Generator[None]:
    """Somebody else is at work; he comes to his end."""
    process = subprocess.Popen(
        shlex.split(line),
        cwd=terminal.place,
        env=terminal.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
        assert process.wait(300) == 0
    finally:
        process.kill()


@pytest.mark.slow
def test_disk_upgrade_and_tuning_page_commands_work(tmp_path: Path) -> None:
    """Disk, tuning and upgrading; what looks into a store comes when the broker has stopped."""
    status, store = page("disk").blocks("sh")
    drain, java, ledger = page("upgrade").blocks("sh")
    bench, change = page("tuning").blocks("sh")
    with Terminal(tmp_path) as terminal:
        terminal.type("tianzhou up")
        terminal.type(SEND)
        assert "disk" in terminal.play(status).lower()
        terminal.play(bench)
        terminal.play(change)
        assert "safe to stop broker-a" in terminal.play(drain)
        terminal.stop_servers()
        assert "orders" in terminal.play(java)
        assert '"sound": true' in terminal.play(store)
        shutil.rmtree(tmp_path / "tianzhou-data")
        with tarfile.open(ROOT / "tests/golden/samples/java-4.9.7-dledger.tar.gz") as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(tmp_path)
        (tmp_path / "store").rename(tmp_path / "java-store")
        assert "154 messages" in terminal.play(ledger)
        assert (tmp_path / "n0-data/raft/group").exists()


@pytest.mark.slow
def test_nameservers_page_commands_replace_a_nameserver(tmp_path: Path) -> None:
    """The page of docs/operations/nameservers.md, with the addresses of this machine."""
    add, remove = page("nameservers").blocks("sh")
    with Terminal(tmp_path) as terminal:
        places: dict[str, str] = {}
        for shown in ("10.0.0.1:9876", "10.0.0.2:9876", "10.0.0.4:9876"):
            terminal.type("tianzhou nameserver")
            places[shown] = terminal.servers[-1].nameserver
        old, stays, new = places.values()
        terminal.type(
            f'tianzhou broker -n "{old};{stays}" --set brokerName=broker-a --data data --no-http'
        )

        def play(block: str) -> str:
            for shown, real in places.items():
                block = block.replace(shown, real)
            return terminal.play(block)

        assert "no problems" in play(add)
        said = play(remove)
        assert "no problems" in said
        assert "does not list" not in said
        with Admin(nameserver=old) as admin:
            wait_until(lambda: not admin.brokers.all(), within_s=30, what="the broker left")
            assert not admin.brokers.missing()
        with Admin(nameserver=new) as admin:
            assert [place.name for place in admin.brokers.all()] == ["broker-a"]


def test_metrics_page_commands_work(tmp_path: Path) -> None:
    """The numbers of the page are compared in tests/e2e/test_metrics_page.py."""
    metrics = Page("docs/metrics.md")
    (scrape,), (board,) = metrics.blocks("yaml"), metrics.blocks("sh")
    assert yaml.safe_load(scrape)["scrape_configs"][0]["job_name"] == "tianzhou"
    assert msgspec.json.decode(Terminal(tmp_path).play(board), type=dict[str, Any])["panels"]


def test_verify_command_of_the_pages_fails_on_damage(tmp_path: Path) -> None:
    """The pages promise an exit code."""
    with Terminal(tmp_path) as terminal:
        terminal.type("tianzhou up")
        terminal.type(SEND)
        terminal.stop_servers()
        log = tmp_path / "tianzhou-data" / "commitlog" / f"{0:020d}"
        with log.open("r+b") as file:
            file.seek(100)
            byte = file.read(1)[0]
            file.seek(100)
            file.write(bytes([byte ^ 1]))
        with pytest.raises(AssertionError, match="damage"):
            terminal.type("tianzhou store verify tianzhou-data")
