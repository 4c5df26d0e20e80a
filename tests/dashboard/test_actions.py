"""Each thing that can be done, in a real browser: first what will happen, then that it did."""

import re

import pytest
from playwright.sync_api import Page, expect

from dashboard.site import Site
from e2e.admin_world import park, send, send_half
from tianzhou.wire.tables import decode_group_table

pytestmark = pytest.mark.slow


def test_topic_forms_create_update_and_delete_a_topic(page: Page, site: Site) -> None:
    page.goto("/topics")
    page.get_by_role("link", name="New topic").click()
    expect(page.locator(".will")).to_contain_text("broker-a")
    page.fill("input[name=name]", "made-here")
    page.fill("input[name=queues]", "3")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status")).to_have_text("Topic made-here exists, with 3 queues.")
    assert page.locator("#live-queues tbody tr").count() == 3

    page.get_by_role("link", name="Change").click()
    expect(page.locator(".will")).to_contain_text("no message is lost")
    page.fill("input[name=queues]", "5")
    page.select_option("select[name=permission]", "4")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".figures")).to_contain_text("read only")
    assert page.locator("#live-queues tbody tr").count() == 5

    page.get_by_role("link", name="Delete").click()
    expect(page.locator("#facts")).to_contain_text("0 messages can't be read any more")
    page.fill("input[name=typed]", "made-her")
    page.get_by_role("button", name="Delete made-here").click()
    expect(page.locator("main")).to_contain_text("type made-here to delete it")
    page.go_back()
    page.fill("input[name=typed]", "made-here")
    page.get_by_role("button", name="Delete made-here").click()
    expect(page.get_by_role("status")).to_have_text("Topic made-here is deleted.")
    topics = site.mq._do(lambda: dict(site.mq._running().slices.topics.topics.all()))
    assert "made-here" not in topics


def test_topic_form_reduces_queues_without_losing_messages(page: Page, site: Site) -> None:
    site.mq.create_topic("shrinking", queues=4)
    send(site.mq, "shrinking", b"in the last queue", queue_id=3)
    site.mq._do(
        lambda: site.mq._running().slices.groups.tables.offsets.put("slow", "shrinking", 3, 0)
    )
    page.goto("/topics/shrinking/change")
    page.fill("input[name=queues]", "2")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("slow: 1")
    expect(page.locator("#live-queues tbody tr")).to_have_count(4)


def test_topic_form_rejects_an_existing_topic(page: Page) -> None:
    page.goto("/new-topic")
    page.fill("input[name=name]", "orders")
    page.get_by_role("button", name="Create").click()
    expect(page.locator("main")).to_contain_text("there is a topic orders already")


def test_reset_form_previews_and_moves_offsets(page: Page, site: Site) -> None:
    before = site.mq.committed("shipping", "orders")
    page.goto("/groups/shipping")
    page.get_by_role("link", name="Move offsets").click()
    page.get_by_text("the oldest message still stored").click()
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#facts")).to_contain_text("It will see 40 messages again.")
    expect(page.locator("#facts")).to_contain_text("Its 2 connected members switch at once.")
    assert site.mq.committed("shipping", "orders") == before
    page.get_by_role("button", name="Move offsets").click()
    expect(page.get_by_role("status")).to_contain_text("It will see 40 messages again.")
    assert set(site.mq.committed("shipping", "orders").values()) == {0}

    page.goto("/groups/shipping/reset?topic=orders&where=latest")
    expect(page.locator("#facts")).to_contain_text("It will never see 40 messages.")
    page.get_by_role("button", name="Move offsets").click()
    expect(page.get_by_role("status")).to_contain_text("never see")
    assert site.mq.committed("shipping", "orders") == before


def test_reset_form_accepts_a_time_in_the_zone_of_the_user(page: Page, site: Site) -> None:
    page.goto("/groups/shipping/reset")
    page.get_by_text("the first message stored at or after a time").click()
    page.fill("input[name=time]", "2024-01-01T00:00:00")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#facts")).to_contain_text("It will see 40 messages again.")
    assert "time=1704038400000" in page.url


def test_group_form_disables_and_enables_a_group(page: Page, site: Site) -> None:
    page.goto("/groups/shipping/switch")
    expect(page.locator("#facts")).to_contain_text("no more messages; 2 members stay connected")
    page.get_by_role("button", name="Switch off").click()
    expect(page.locator("h1")).to_contain_text("switched off")
    assert not is_enabled(site, "shipping")
    page.get_by_role("link", name="Switch on").click()
    page.get_by_role("button", name="Switch on").click()
    expect(page.get_by_role("status")).to_have_text("It is switched on.")
    assert is_enabled(site, "shipping")


def is_enabled(site: Site, name: str) -> bool:
    """As it is on the disk."""
    path = site.mq.directory / "store" / "config" / "subscriptionGroup.json"
    return decode_group_table(path.read_bytes()).subscription_group_table[name].consume_enable


def test_broker_form_drains_a_broker_and_undoes_it(page: Page, site: Site) -> None:
    page.goto("/brokers/broker-a")
    page.get_by_role("link", name="Drain").click()
    expect(page.locator("#facts")).to_contain_text("sends fail until this is undone")
    page.get_by_role("button", name="Stop writes").click()
    expect(page.locator("h1")).to_contain_text("draining")
    assert site.mq._do(lambda: site.mq._running().slices.topics.permission.bits) == 4
    page.goto("/")
    expect(page.locator(".alarms")).to_contain_text("it is being drained")
    page.goto("/brokers/broker-a/drain")
    page.get_by_role("button", name="Allow writes").click()
    expect(page.locator("h1")).to_contain_text("serves")
    assert site.mq._do(lambda: site.mq._running().slices.topics.permission.bits) == 6


def test_broker_form_cleans_a_broker(page: Page, site: Site) -> None:
    """The files of the site are large, so nothing expires; tests/cli/test_cli_clean.py removes."""
    page.goto("/brokers/broker-a")
    page.get_by_role("link", name="Clean").click()
    expect(page.locator("#facts")).to_contain_text("Messages of the last 72 hours stay")
    page.fill("input[name=keep]", "5")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#facts")).to_contain_text("Messages of the last 5 hours stay")
    expect(page.locator("tbody")).to_contain_text(site.mq.broker)
    expect(page.locator("main")).to_contain_text("Nothing to remove")
    # Queues of a topic that no longer exists, as after its table was restored from a backup.
    send(site.mq, "left-behind", b"one")
    forget_topic(site, "left-behind")
    page.reload()
    expect(page.locator("#facts")).to_contain_text("Topics that no longer exist: left-behind.")
    page.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("status")).to_contain_text("Removed 0 log files")
    page.goto("/brokers/broker-a/clean?keep=0x5")
    expect(page.locator("main")).to_contain_text("must be a whole number, got '0x5'")


def forget_topic(site: Site, name: str) -> None:
    def forget() -> None:
        topics = site.mq._running().slices.topics.topics
        topics.remove(name)

    site.mq._do(forget)


def test_dlq_form_replays_dead_letters_once_unless_repeated(page: Page, site: Site) -> None:
    page.goto("/dlq")
    page.locator("tbody").get_by_role("link", name="shipping").click()
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Replay selected…").click()
    expect(page.locator("main")).to_contain_text("select at least one")
    page.go_back()
    rows.filter(has_text='{"refund": 1}').get_by_role("checkbox").check()
    page.get_by_role("button", name="Replay selected…").click()
    expect(page.locator("#facts")).to_contain_text(
        "1 dead letters are sent to group shipping alone"
    )
    assert site.mq.stored("%RETRY%shipping") == []
    page.get_by_role("button", name="Replay 1").click()
    expect(page.get_by_role("status")).to_contain_text("1 sent to %RETRY%shipping")
    assert [message.body for message in site.mq.stored("%RETRY%shipping")] == [b'{"refund": 1}']

    expect(page.locator("tbody tr", has_text='{"refund": 1}')).to_contain_text("yes")

    # One that was replayed is skipped, unless the user asks for it.
    before = len(site.mq.stored("refunds"))
    page.check("#all")
    page.select_option("select[name=to]", "topic")
    page.get_by_role("button", name="Replay selected…").click()
    expect(page.locator("#facts")).to_contain_text("every group that consumes these")
    expect(page.locator("#facts")).to_contain_text("1 were replayed before and are skipped")
    page.get_by_role("button", name="Replay 1").click()
    expect(page.get_by_role("status")).to_contain_text("1 were replayed before and skipped")
    assert len(site.mq.stored("refunds")) == before + 1
    page.check("#all")
    page.get_by_label("Replay again").check()
    page.select_option("select[name=to]", "topic")
    page.get_by_role("button", name="Replay selected…").click()
    expect(page.locator("#facts")).to_contain_text("2 were replayed before and are sent again")
    page.get_by_role("button", name="Replay 2").click()
    expect(page.get_by_role("status")).to_contain_text("2 sent to")
    assert len(site.mq.stored("refunds")) == before + 3
    # Nothing of it is left for a replay of all.
    page.goto("/dlq")
    assert page.locator("tbody tr", has_text="shipping").inner_text().split()[1:3] == ["2", "0"]


def test_transaction_form_decides_a_transaction(page: Page, site: Site) -> None:
    page.goto("/transactions")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Check again").click()
    expect(page.locator(".confirm")).to_contain_text("group buyers is checked now")
    page.get_by_role("button", name="Check again").click()
    expect(page.get_by_role("status")).to_contain_text("checked again")
    page.get_by_role("link", name="Commit").click()
    expect(page.locator(".confirm")).to_contain_text("Consumers of orders receive the message")
    page.get_by_role("button", name="Commit").click()
    expect(page.get_by_role("status")).to_contain_text("committed")
    expect(page.locator("main")).to_contain_text("No pending transactions")
    assert b"half of an order" in [message.body for message in site.mq.stored("orders")]


def test_transaction_form_resumes_a_parked_transaction(page: Page, site: Site) -> None:
    send_half(site.mq, "orders", b"parked")
    park(site.mq)
    page.goto("/transactions")
    expect(page.locator("main")).to_contain_text("No producer decided these")
    page.get_by_role("link", name="Resume").first.click()
    expect(page.locator(".confirm")).to_contain_text("The transaction is pending again")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status")).to_contain_text("resumed")
    expect(page.locator("main")).not_to_contain_text("No pending transactions")


def test_scheduled_form_cancels_a_timer(page: Page, site: Site) -> None:
    page.goto("/scheduled")
    expect(page.locator("tbody tr")).to_contain_text("orders")
    page.get_by_role("link", name="Cancel").click()
    expect(page.locator(".confirm")).to_contain_text("cannot be undone")
    page.get_by_role("button", name="Cancel delivery").click()
    expect(page.get_by_role("status")).to_contain_text("will not be delivered")
    expect(page.locator("main")).to_contain_text("No scheduled messages")
    site.mq.clock.advance(hours=3)
    assert b"later" not in [message.body for message in site.mq.stored("orders")]


def test_reload_after_an_action_does_not_repeat_it(page: Page, site: Site) -> None:
    page.goto("/groups/order-archive/reset?topic=orders&where=latest")
    page.get_by_role("button", name="Move offsets").click()
    expect(page).to_have_url(re.compile(r"/groups/order-archive\?done="))
    send(site.mq, "orders", b"one more")
    page.reload()
    assert site.mq.lag("order-archive", "orders") == 1
