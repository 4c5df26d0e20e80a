"""Topics on chosen brokers, in a real browser: creating, changing and spreading them."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from dashboard.site import Site
from tianzhou.broker.config import BrokerConfig
from tianzhou.testing import RunningBroker
from tianzhou.wire.tables import TopicConfig

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A cluster of two brokers."""
    with (
        Site() as made,
        RunningBroker(config=BrokerConfig(name="broker-b"), nameserver=made.mq) as other,
    ):
        made.mq.create_topic("orders", queues=4)
        OTHERS.append(other)
        yield made
        OTHERS.clear()


OTHERS: list[RunningBroker] = []


def topic_at(mq: RunningBroker, name: str) -> tuple[int, int, int] | None:
    """Read queues, write queues and permission on one broker."""
    found: TopicConfig | None = mq._do(lambda: mq._running().slices.topics.topics.get(name))
    return found and (found.read_queue_nums, found.write_queue_nums, found.perm)


def test_topic_form_spreads_a_topic_after_showing_the_plan(page: Page, site: Site) -> None:
    page.goto("/topics/orders")
    page.get_by_role("link", name="Spread").click()
    expect(page.locator("#facts")).to_contain_text("broker-a keeps 4 queues.")
    expect(page.locator("#facts")).to_contain_text("broker-b gets 4 queues; now it has none.")
    assert topic_at(OTHERS[0], "orders") is None
    page.get_by_role("button", name="Spread orders").click()
    expect(page.get_by_role("status")).to_have_text(
        "Topic orders has queues on broker-a, broker-b."
    )
    assert topic_at(OTHERS[0], "orders") == (4, 4, 6)
    page.get_by_role("link", name="Spread").click()
    expect(page.locator("#facts")).to_contain_text("There is nothing to do.")
    expect(page.get_by_role("button", name="Spread orders")).to_have_count(0)


def test_topic_form_creates_a_topic_on_a_chosen_broker(page: Page, site: Site) -> None:
    page.goto("/new-topic")
    page.fill("input[name=name]", "refunds")
    page.fill("input[name=queues]", "3")
    page.fill("input[name=read_queues]", "5")
    page.select_option("select[name=permission]", "2")
    page.get_by_label("on broker-b").uncheck()
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status")).to_have_text("Topic refunds exists, with 3 queues.")
    assert topic_at(site.mq, "refunds") == (5, 3, 2)
    assert topic_at(OTHERS[0], "refunds") is None


def test_topic_form_changes_a_topic_on_one_broker(page: Page, site: Site) -> None:
    site.mq.create_topic("payments", queues=2)
    page.goto("/topics/payments/change")
    page.select_option("select[name=broker]", "broker-b")  # which does not have it
    page.fill("input[name=queues]", "6")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_have_text("Topic payments is changed on broker-b.")
    assert topic_at(OTHERS[0], "payments") == (6, 6, 6)
    assert topic_at(site.mq, "payments") == (2, 2, 6)

    page.goto("/topics/payments/change?broker=broker-b")
    assert page.input_value("input[name=queues]") == "6"
    page.select_option("select[name=permission]", "4")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("changed on broker-b")
    assert topic_at(OTHERS[0], "payments") == (6, 6, 4)
    assert topic_at(site.mq, "payments") == (2, 2, 6)


def test_topic_form_spreads_an_ordered_topic_only_after_its_name_is_typed(
    page: Page, site: Site
) -> None:
    page.goto("/new-topic")
    page.fill("input[name=name]", "steps")
    page.get_by_label("on broker-b").uncheck()
    page.get_by_label("ordered consumption").check()
    page.get_by_role("button", name="Create").click()
    page.get_by_role("link", name="Spread").click()
    expect(page.locator("#facts")).to_contain_text("out of order")
    page.fill("input[name=typed]", "step")
    page.get_by_role("button", name="Spread steps").click()
    expect(page.locator("main")).to_contain_text("topic steps is ordered")
    assert topic_at(OTHERS[0], "steps") is None
    page.go_back()
    page.fill("input[name=typed]", "steps")
    page.get_by_role("button", name="Spread steps").click()
    expect(page.get_by_role("status")).to_contain_text("broker-b")
    assert topic_at(OTHERS[0], "steps") == (8, 8, 6)
