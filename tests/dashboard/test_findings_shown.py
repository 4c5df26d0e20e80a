"""The overview says that nothing is wrong if the doctor says so, and what is wrong in its words."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from cli.conftest import run_command
from dashboard.site import Site
from e2e.admin_world import commit, send
from tianzhou.broker.config import BrokerConfig
from tianzhou.testing import RunningBroker

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as made:
        yield made


def doctor(site: Site) -> dict[str, tuple[str, str]]:
    """Level and sentence, by what they are about; what is fine is left out."""
    said = run_command("doctor", "-n", site.mq.nameserver, "--observe", "0", "--json")
    return {
        row["about"]: (row["level"], row["said"])
        for row in json.loads(said.out)["findings"]
        if row["level"] != "fine"
    }


def test_overview_is_green_exactly_while_the_doctor_finds_nothing(page: Page, site: Site) -> None:
    page.goto("/")
    expect(page.locator(".allgood")).to_contain_text("Nothing is wrong: 1 broker serves")
    assert doctor(site) == {}

    # A group without consumers, and one of the broker's own, which needs no operator.
    site.mq.create_topic("orders", queues=1)
    send(site.mq, "orders", b"1", b"2")
    commit(site.mq, "billing", "orders", offset=1)
    offsets = site.mq._running().slices.groups.tables.offsets
    site.mq._do(lambda: offsets.put("CID_RMQ_SYS_TRANS", "orders", 0, 1))  # clients may not
    assert (
        run_command("group", "update", "billing", "--no-consume", "-n", site.mq.nameserver).code
        == 0
    )
    warning = page.locator(".alarms li")
    expect(warning).to_have_count(1)
    expect(warning).to_contain_text("it is disabled")
    expect(page.locator(".allgood")).to_have_count(0)
    level, said = doctor(site)["group billing"]
    assert (level, said in warning.inner_text()) == ("warning", True)
    expect(page.locator(".figures div", has_text="Unread")).to_contain_text("1")


def test_missing_broker_is_on_the_overview_until_it_is_forgotten(page: Page, site: Site) -> None:
    config = BrokerConfig(name="broker-b")
    with RunningBroker(config=config, nameserver=site.mq) as other:
        other.create_topic("orders", queues=3)
        page.goto("/")
        expect(page.locator("#live-brokers tbody tr")).to_have_count(2)
        other.kill()
        row = page.locator("#live-brokers tbody tr", has_text="broker-b")
        expect(row).to_contain_text("missing")
        expect(row).to_contain_text(f"was at {other.broker}")
        finding = page.locator(".alarms li", has_text="broker-b")
        expect(finding).to_contain_text("its 3 queues of 1 topic (orders)")
        expect(finding).to_contain_text("tianzhou broker forget broker-b")
        expect(finding.get_by_role("link")).to_have_count(0)  # there is no page of it
        level, said = doctor(site)["broker broker-b"]
        assert (level, "its 3 queues of 1 topic (orders)" in said) == ("problem", True)
        gone = run_command("broker", "forget", "broker-b", "-n", site.mq.nameserver)
        assert gone.code == 0, gone.err
        expect(row).to_have_count(0)
        expect(finding).to_have_count(0)
