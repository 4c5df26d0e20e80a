"""Copies of a log on the pages: a real master with slaves, and a real Raft group, well and not."""

import os
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from cli.conftest import run_command
from clients.waiting import wait_until
from dashboard.copies_world import Copied, master_and_slaves, raft_group
from dashboard.site import ask
from tianzhou.cmd import raft_up
from tianzhou.cmd.http import PASSWORD_FILE, HttpOptions
from tianzhou.cmd.up_settings import UpOptions
from tianzhou.dashboard.access import is_password

pytestmark = pytest.mark.slow

PATIENCE_MS = 20_000


def opened(browser: Browser, url: str) -> Page:
    page = browser.new_page(base_url=url)
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    return page


def copies(page: Page) -> dict[str, str]:
    """The rows of the panel, by name."""
    rows = page.locator("#live-copies tbody tr")
    return {row.locator("th").inner_text(): row.inner_text() for row in rows.all()}


def test_broker_page_of_a_master_shows_slaves_and_their_lag(
    browser: Browser, tmp_path: Path
) -> None:
    with master_and_slaves(tmp_path, slaves=1) as group:
        group.send(20)
        page = opened(browser, group.url)
        page.goto("/")
        expect(page.locator("#live-brokers")).to_contain_text("2 of 2 in sync")
        page.goto("/brokers/broker-a")
        expect(page.locator("#live-copies")).to_contain_text("2 of 2")
        slave = page.locator("#live-copies tbody tr").nth(1)
        expect(slave).to_contain_text("in sync")
        end = end_of(page)
        expect(slave).to_contain_text(end)

        # A slave that stands still is behind, in bytes and in time; the page moves by itself.
        group.servers[1].pause()
        group.send(20)
        expect(slave).to_contain_text(re.compile(r"\d KiB"))
        assert re.search(r"\d (ms|s)\b", slave.inner_text())
        assert end in slave.inner_text()
        group.servers[1].resume()
        expect(slave).not_to_contain_text("KiB")

        # One that dies is forgotten by the NameServer at once, and missed by its master.
        group.servers[1].kill()
        expect(slave).to_contain_text("does not follow")
        expect(page.locator(".alarms")).to_contain_text("slave 1 at")
        assert "warning broker broker-a: slave 1 at" in doctor(group)
        group.servers[1].start()
        url = group.servers[1].wait_ready()["http"]
        expect(slave).to_contain_text("in sync")

        # Without a master a slave tells what it knows.
        group.servers[0].kill()
        page = opened(browser, url)
        wait_until(
            lambda: "no master" in ask_of(url, "/brokers/broker-a"),
            within_s=20,
            what="the NameServer knows that the master is gone",
        )
        page.goto("/")
        expect(page.locator(".alarms")).to_contain_text("tianzhou broker promote broker-a")
        assert "or: tianzhou broker promote broker-a" in doctor(group)
        page.goto("/brokers/broker-a")
        expect(page.locator(".note.bad")).to_contain_text("the state that a slave reports")
        assert "slave 1" in copies(page)
        page.goto("/topics/orders")
        expect(page.locator(".figures")).to_contain_text("40")


def end_of(page: Page) -> str:
    """Where the log ends, as the page writes it."""
    found = re.search(r"to ([\d,]+)", page.inner_text("#live-copies .strip"))
    assert found is not None
    return found[1]


def ask_of(url: str, path: str) -> str:
    return ask(int(url.rpartition(":")[2]), path).text


def doctor(group: Copied) -> str:
    return run_command("doctor", "-n", group.nameserver, "--observe", "0").out


def test_broker_page_of_a_raft_group_shows_members_term_and_leader(
    browser: Browser, tmp_path: Path
) -> None:
    with raft_group(tmp_path) as (group, pids):
        group.send(10)
        page = opened(browser, group.url)
        page.goto("/brokers/broker-a")
        strip = page.locator("#live-copies .strip")
        expect(strip).to_contain_text("3 of 3 in sync")
        told = strip.inner_text()
        found = {
            word: re.search(rf"{word}\s+(\S+)", told)
            for word in ("Leader", "Term", "Committed", "Applied")
        }
        values = {word: match[1] for word, match in found.items() if match}
        assert values["Leader"] in pids
        assert int(values["Term"]) >= 1
        assert int(values["Committed"]) >= 10
        assert int(values["Applied"]) >= 10
        rows = copies(page)
        assert sorted(rows) == ["n0", "n1", "n2"]
        assert [name for name, text in rows.items() if "leader" in text] == [values["Leader"]]

        # Each member has pages of its own: they are there when the first one is gone.
        assert len(group.others) == 2
        assert "term" in ask_of(group.others[0], "/")
        gone = next(name for name in pids if name not in (values["Leader"], "n0"))
        os.kill(pids[gone], signal.SIGKILL)
        group.send(5)
        expect(page.locator("#live-copies tbody tr", has_text=gone)).to_contain_text("away")
        expect(page.locator("#live-copies tbody tr", has_text=gone)).to_contain_text(
            re.compile(r"\d entr(y|ies)")
        )
        page.goto("/")
        expect(page.locator(".alarms")).to_contain_text(f"member {gone} at")
        expect(page.locator("#live-brokers")).to_contain_text("2 of 3 in sync")
        assert f"warning broker broker-a: member {gone} at" in doctor(group)
        page.goto("/brokers/broker-a")
        os.kill(pids[next(name for name in pids if name not in (gone, "n0"))], signal.SIGKILL)
        expect(page.locator("#live-head")).to_contain_text("no leader")
        told = doctor(group)
        assert "problem broker broker-a: it has no leader: 1 of 3 members are connected" in told
        assert "brokerId" not in told, "must not suggest starting a master by hand"


def test_s40_members_of_a_group_share_one_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process that starts the group creates and shows it; members find its hash only."""
    http = HttpOptions(host="0.0.0.0", port=0, is_chosen=True, names=("mq.example",))
    wanted = UpOptions(tmp_path, 3, None, http)
    given = {f"n{n}": raft_up._http_arguments(wanted, f"n{n}") for n in range(3)}
    lines = capsys.readouterr().err.splitlines()
    assert ["dashboard password" in line for line in lines] == [True]
    password = lines[0].rpartition(" ")[2]
    for name, arguments in given.items():
        kept = tmp_path / name / "store" / PASSWORD_FILE
        assert is_password(password, kept.read_text().strip())
        assert kept.stat().st_mode & 0o777 == 0o600
        assert arguments[:4] == ["--http-host", "0.0.0.0", "--http-port", "0"]
        assert arguments[4:] == ["--http-name", "mq.example"]
    assert not capsys.readouterr().err


def test_up_with_replicas_passes_the_http_options_to_members(tmp_path: Path) -> None:
    wanted = UpOptions(tmp_path, 3, None, HttpOptions(port=None))
    assert raft_up._http_arguments(wanted, "n0") == ["--no-http"]
    usual = wanted._replace(http=HttpOptions())
    assert raft_up._http_arguments(usual, "n0") == ["--http-host", "127.0.0.1"]
    assert raft_up._http_arguments(usual, "n1") == ["--http-host", "127.0.0.1", "--http-port", "0"]
