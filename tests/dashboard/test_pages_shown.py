"""Every page in a real browser: what it says of a world that is known."""

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from dashboard.readable import unreadable
from dashboard.site import Site, ask
from dashboard.world import TRACED
from e2e.admin_world import send

pytestmark = pytest.mark.slow

PATHS = (
    "/",
    "/topics",
    "/topics/orders",
    "/light-queues",
    "/topics/%25LMQ%25alice",
    "/groups",
    "/groups/billing",
    "/messages",
    "/messages?topic=orders&by=time",
    f"/trace?id={TRACED}",
    "/dlq",
    "/dlq/shipping",
    "/transactions",
    "/scheduled",
    "/pipelines",
    "/brokers/broker-a",
    "/new-topic",
    "/topics/orders/change",
    "/topics/orders/delete",
    "/groups/shipping/reset",
    "/groups/shipping/switch",
    "/brokers/broker-a/drain",
)


def test_light_queues_are_listed_and_opened(page: Page) -> None:
    page.goto("/topics")
    page.click("text=Light queues")
    assert row_of(page, "%LMQ%alice") == "%LMQ%alice 1 1"
    page.goto("/light-queues?like=BOB")
    assert [row.inner_text() for row in page.locator("tbody th").all()] == ["%LMQ%bob"]
    page.click("text=%LMQ%bob")
    expect(page.locator("h1")).to_contain_text("%LMQ%bob")
    page.goto("/messages?topic=%25LMQ%25bob&by=time")
    expect(page.locator("tbody")).to_contain_text("seen by two")


def row_of(page: Page, text: str) -> str:
    """The row of a table that begins with this, as one line."""
    found = page.locator("tbody tr").filter(has=page.locator("th", has_text=text)).first
    return " ".join(found.inner_text().split())


def test_every_page_renders_on_desktop_and_phone(page: Page) -> None:
    for path in PATHS:
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 200, page.inner_text("main")
        assert page.title().endswith("· Tianzhou")
        expect(page.locator("h1")).not_to_be_empty()
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            # Tables may scroll inside of themselves; a page never does, sideways.
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert unreadable(page) == [], path
        assert page.locator("h1").count() == 1, path


def test_overview_shows_alarms(page: Page) -> None:
    page.goto("/")
    alarm = page.locator(".alarms li", has_text="billing")
    expect(alarm).to_contain_text("has neither committed nor pulled")
    expect(alarm).to_contain_text("and 1 more queue")
    expect(alarm).to_contain_text("tianzhou group show billing")
    # A client that is not a member commits for it: that is a job, so no alarm.
    expect(page.locator(".alarms li", has_text="order-archive")).to_have_count(0)
    alarm.get_by_role("link", name="billing").click()
    expect(page).to_have_url(re.compile("/groups/billing$"))


def test_overview_shows_figures_brokers_and_a_chart(page: Page) -> None:
    page.goto("/")
    assert "2" in page.locator(".figures div", has_text="Dead letters").inner_text()
    assert "1 timed" in page.locator(".figures div", has_text="Waiting").inner_text()
    broker = row_of(page, "broker-a")
    assert "serves" in broker
    assert "master" in broker
    assert re.search(r"\d+% of [\d.]+ [TG]iB", broker)
    # It begins with the second step that the broker has seen.
    expect(page.locator("#live-chart svg polyline.line0")).to_have_count(1, timeout=30_000)


def test_live_parts_update_without_a_reload(page: Page, site: Site) -> None:
    page.goto("/topics")
    page.evaluate("window.kept = true")
    send(site.mq, "live-topic", b"x")
    expect(page.locator("tbody")).to_contain_text("live-topic")
    assert page.evaluate("window.kept") is True
    page.keyboard.press(".")
    expect(page.locator("#live")).to_contain_text("paused")


def test_page_that_cannot_refresh_is_marked_stale(page: Page) -> None:
    """Readers must not take old figures for new ones, and colour alone is not enough."""
    page.goto("/topics")
    expect(page.locator("#live")).to_contain_text("live")
    page.route("**/topics", lambda route: route.fulfill(status=404))
    expect(page.locator("#live")).to_contain_text(re.compile(r"nothing new since \d\d:\d\d:\d\d"))
    expect(page.locator("#live-list")).to_have_css("opacity", "0.5")
    page.unroute("**/topics")
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#live-list")).to_have_css("opacity", "1")


def test_refresh_keeps_unchanged_elements(page: Page) -> None:
    """A screen reader reads a replaced element aloud again."""
    page.goto("/brokers/broker-a")
    page.evaluate("document.querySelector('#live-head').firstElementChild.kept = true")
    seen = int(page.evaluate("document.body.dataset.refreshed || 0"))
    page.wait_for_function("n => Number(document.body.dataset.refreshed) > n + 1", arg=seen)
    assert page.evaluate("document.querySelector('#live-head').firstElementChild.kept") is True


def test_state_in_the_page_head_updates_live(page: Page) -> None:
    page.goto("/brokers/broker-a")
    head = page.locator("#live-head")
    expect(head).to_contain_text("serves")
    other = page.context.new_page()
    for button, state in (("Stop writes", "draining"), ("Allow writes", "serves")):
        other.goto("/brokers/broker-a/drain")
        other.get_by_role("button", name=button).click()
        other.get_by_role("status").wait_for()
        expect(head).to_contain_text(state)
    other.close()


def test_topics_page_lists_filters_and_sorts(page: Page) -> None:
    page.goto("/topics")
    assert "orders" in row_of(page, "orders")
    assert "40" in row_of(page, "orders")
    assert page.locator("tbody").inner_text().count("TBW102") == 0
    page.keyboard.press("/")
    page.keyboard.type("pay")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert row_of(page, "payments").split()[0] == "payments"
    page.goto("/topics?sort=messages")
    assert page.locator("tbody th").first.inner_text() == "orders"
    page.get_by_role("link", name="Show internal").click()
    expect(page.locator("tbody")).to_contain_text("RMQ_SYS_TRACE_TOPIC")


def test_topic_page_shows_queues_readers_and_writers(page: Page) -> None:
    page.goto("/topics/orders")
    assert page.locator("#live-queues tbody tr").count() == 4
    readers = page.locator("#live-readers tbody")
    expect(readers).to_contain_text("shipping")
    expect(readers).to_contain_text("order-archive")
    expect(page.locator("#live-producers tbody")).to_contain_text("127.0.0.1:")
    expect(page.locator("#live-hours svg rect.hour")).not_to_have_count(0)


def test_groups_page_lists_stuck_groups_first(page: Page) -> None:
    page.goto("/groups")
    assert page.locator("tbody th").first.inner_text() == "billing"
    assert "2 stuck" in row_of(page, "billing")
    assert "up to date" in row_of(page, "shipping")
    assert "read by a job" in row_of(page, "order-archive")


def test_group_page_shows_members_queues_and_blocking_messages(page: Page) -> None:
    page.goto("/groups/billing")
    expect(page.locator("#live-members tbody")).to_contain_text("10.0.0.9@billing-1")
    rows = page.locator("#live-queues tbody tr").filter(has_text="payments")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("10.0.0.9@billing-1")
    expect(page.locator("#live-events")).to_contain_text("not pulled")
    rows.first.get_by_role("link", name="show its message").click()
    expect(page.locator("tbody")).to_contain_text("payment 4")


def test_messages_page_finds_by_key_id_time_and_offset(page: Page, site: Site) -> None:
    wanted = next(m for m in site.mq.stored("orders") if "order-1007" in m.keys)
    queries = (
        "by=key&word=order-1007",
        "by=time",
        f"by=id&word={wanted.message_id}",
        f"by=id&word={wanted.offset_id}",
        f"by=place&queue={wanted.queue_id}&at={wanted.queue_offset}",
    )
    for query in queries:
        page.goto(f"/messages?topic=orders&{query}")
        expect(page.locator("tbody")).to_contain_text("order-1007")
    page.goto("/messages?topic=orders&by=key&word=nothing-has-this")
    expect(page.locator("main")).to_contain_text("No messages found")


def test_messages_form_shows_the_fields_of_the_chosen_search(page: Page) -> None:
    page.goto("/messages")
    page.fill("input[name=topic]", "orders")
    page.get_by_text("time", exact=True).click()
    expect(page.locator("input[name=word]")).to_be_hidden()
    page.fill("input[name=from]", "2024-01-01T00:00:00")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody tr").first).to_be_visible()
    # The reader's own zone, not the server's: midnight in Shanghai.
    assert "from=1704038400000" in page.url
    assert page.input_value("input[name=from]").startswith("2024-01-01T00:00")


def test_message_page_shows_the_payload_as_json_text_and_hex(page: Page, site: Site) -> None:
    message = next(m for m in site.mq.stored("orders") if "order-1001" in m.keys)
    page.goto(f"/messages/orders/{message.message_id}")
    to_the_ms = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} [+-]\d\d:\d\d$")
    expect(page.locator("main time")).to_have_text([to_the_ms, to_the_ms])  # born, stored
    assert '\n  "order": 1001,\n' in page.inner_text("#payload")
    assert "channel" in page.locator(".facts").nth(1).inner_text()
    page.get_by_role("link", name="hex").click()
    expect(page.locator("#payload")).to_contain_text("00000000  7b 22 6f 72 64")
    page.get_by_role("link", name="text").click()
    expect(page.locator("#payload")).to_have_text(message.body.decode())
    binary = next(m for m in site.mq.stored("refunds") if m.body.startswith(b"\x00"))
    page.goto(f"/messages/refunds/{binary.offset_id}")
    expect(page.locator("#payload")).to_contain_text("00 01 02 62")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download body").click()
    path = download.value.path()
    assert path.read_bytes() == binary.body


def test_trace_page_shows_a_timeline(page: Page) -> None:
    page.goto(f"/trace?id={TRACED}")
    lanes = page.locator(".lanes li")
    expect(lanes).to_have_count(3)
    sent, failed, again = lanes.all_inner_texts()
    assert "shop" in sent
    assert "failed" in failed
    assert "try 2" in again
    left = [
        box["x"] for box in (lanes.nth(n).locator(".front").bounding_box() for n in range(3)) if box
    ]
    assert left == sorted(left)
    assert left[0] < left[1] < left[2]


def test_pipelines_page_lists_groups_that_commit_without_members(page: Page) -> None:
    page.goto("/pipelines")
    row = row_of(page, "order-archive")
    assert "running" in row
    assert "70% of 40" in row
    assert "12" in row
    assert "orders" in row
    assert "shipping" not in page.locator("tbody").inner_text()


def test_keyboard_shortcuts_open_every_page(page: Page) -> None:
    page.goto("/")
    for letter, path in (("t", "/topics"), ("g", "/groups"), ("p", "/pipelines"), ("o", "/")):
        page.keyboard.press("g")
        page.keyboard.press(letter)
        expect(page).to_have_url(re.compile(f"{path}$"))
        page.wait_for_load_state()
    page.goto("/topics")
    page.keyboard.press("j")
    page.keyboard.press("j")
    chosen = page.locator("tr.chosen th").inner_text()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/topics/{quote(chosen)}$"))
    page.wait_for_load_state()
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()


def test_theme_choice_is_remembered(page: Page) -> None:
    page.emulate_media(color_scheme="light")
    page.goto("/")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light != dark
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


LOST = (
    ("/nowhere", 404, "no page /nowhere"),
    ("/topics/not-there", 404, "not-there"),
    ("/groups/not-there", 404, "not-there"),
    ("/messages?topic=not-there&by=key&word=x", 404, "not-there"),
    ("/messages?topic=orders&by=place&queue=x&at=1", 400, "must be numbers"),
    ("/messages?topic=orders&by=time&from=yesterday", 400, "invalid time"),
    ("/messages/orders/0123", 400, "has no message 0123"),
    ("/brokers/not-there", 404, "not-there"),
)


def test_page_of_a_missing_item_reports_it(site: Site) -> None:
    for path, status, words in LOST:
        answer = ask(site.port, path)
        assert (answer.status, words in answer.text) == (status, True), path


def test_group_page_chart_follows_a_growing_lag(page: Page, site: Site) -> None:
    """This test must be the last of its file: others count the stored messages."""
    page.goto("/groups/order-archive")
    send(site.mq, "orders", *(b"x" for _ in range(30)))
    line = page.locator("[data-spark=lag] polyline")
    expect(line).to_have_attribute("points", re.compile(r"^\S+,\S+ .*90,1\.0$"))
    heights = [float(at.split(",")[1]) for at in (line.get_attribute("points") or "").split()]
    assert heights[0] > heights[-1]  # from the top of the picture
