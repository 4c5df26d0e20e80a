"""A thousand topics and a thousand groups: each page asks the broker once, and stays small."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, expect

from dashboard.site import Site, ask
from e2e.admin_world import send
from tianzhou.net.exchange import Request
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.tables import SubscriptionGroupConfig, TopicConfig

pytestmark = pytest.mark.slow

COUNT = 1_000
QUEUES = 8
LIVE_MS = 2_000
PAINT_MS = 1_000
SLACK = 5
"""The first paint takes less than a second on a calm machine; this one may be busy."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as made:
        parts = made.mq._running().parts

        def fill() -> None:
            parts.topics.put(
                *(
                    TopicConfig(
                        topic_name=f"topic-{n:04}", read_queue_nums=QUEUES, write_queue_nums=QUEUES
                    )
                    for n in range(COUNT)
                )
            )
            for n in range(COUNT):
                for queue_id in range(QUEUES):
                    parts.offsets.put(f"group-{n:04}", f"topic-{n:04}", queue_id, 0)

        made.mq._do(fill)
        for n in range(20):
            send(made.mq, f"topic-{n:04}", b"x" * 100)
        groups = made.mq._running().parts.clients.groups
        made.mq._do(
            lambda: groups.put(
                *(SubscriptionGroupConfig(group_name=f"group-{n:04}") for n in range(COUNT))
            )
        )
        yield made


@pytest.fixture
def asked(site: Site, monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Requests to the broker, by code."""
    found: Counter[int] = Counter()
    desk = site.mq._running().parts.requests._desk
    before = desk.request

    def counted(request: Request) -> None:
        found[request.header.code] += 1
        before(request)

    monkeypatch.setattr(desk, "request", counted)
    return found


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/", RequestCode.LOOK_AT_BROKER),
        ("/topics", RequestCode.LOOK_AT_TOPICS),
        ("/topics?page=7&sort=messages", RequestCode.LOOK_AT_TOPICS),
        ("/topics/topic-0500", RequestCode.LOOK_AT_TOPIC),
        ("/groups", RequestCode.LOOK_AT_GROUPS),
        ("/groups/group-0500", RequestCode.LOOK_AT_GROUP),
        ("/dead-letters", RequestCode.LOOK_AT_GROUPS),
        ("/pipelines", RequestCode.LOOK_AT_GROUPS),
        ("/transactions", RequestCode.LIST_HALF_MESSAGES),
        ("/timers", RequestCode.LIST_TIMERS),
    ],
)
def test_a_page_is_one_request(site: Site, asked: Counter[int], path: str, code: int) -> None:
    answer = ask(site.port, path)
    assert answer.status == 200
    assert asked == {code: 1}
    assert len(answer.body) < 200_000


def test_nobody_looks_nobody_asks(site: Site, browser: Browser, asked: Counter[int]) -> None:
    context = browser.new_context(base_url=site.url)
    page = context.new_page()
    page.goto("/topics")
    expect(page.locator("body")).to_have_attribute("data-refreshed", "1", timeout=10_000)
    assert asked[RequestCode.LOOK_AT_TOPICS] == 2
    # As when its tab is covered by another one.
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true})")
    page.wait_for_timeout(LIVE_MS * 2)  # that nothing happens takes its time to see
    assert asked[RequestCode.LOOK_AT_TOPICS] == 2
    context.close()


@pytest.mark.parametrize("path", ["/", "/topics", "/groups"])
def test_the_first_paint_is_soon(
    site: Site, browser: Browser, path: str, record_property: Callable[[str, object], None]
) -> None:
    context = browser.new_context(base_url=site.url)
    page = context.new_page()
    page.goto(path)
    paint_ms = page.evaluate(
        "new Promise((done) => new PerformanceObserver((list) =>"
        " done(list.getEntries()[0].startTime)).observe({type: 'paint', buffered: true}))"
    )
    sys.stdout.write(f"{path}: first paint after {paint_ms:.0f} ms\n")
    record_property(f"first_paint_ms {path}", paint_ms)
    assert 0 < paint_ms < PAINT_MS * SLACK
    if path != "/":
        expect(page.locator("tbody tr")).to_have_count(100)
        page.get_by_role("link", name="Next →").click()
        expect(page.locator(".pager")).to_contain_text("2 of 10")
    context.close()
