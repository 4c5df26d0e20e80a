"""A thousand topics and a thousand groups: each page asks the broker once, and stays small."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, expect

from dashboard.site import Site, ask
from e2e.admin_world import send
from tianzhou.dashboard.app import PAGES
from tianzhou.net.rpc import Request
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.tables import SubscriptionGroupConfig, TopicConfig

pytestmark = pytest.mark.slow

COUNT = 1_000
QUEUES = 8
LIVE_MS = 2_000
PAGE_BYTES_MAX = 200_000
ELEMENTS_MAX = 3_000
"""Of a page with a hundred rows; browsers get slow at tens of thousands."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as made:
        slices = made.mq._running().slices
        topics, tables = slices.topics.topics, slices.groups.tables

        def fill() -> None:
            topics.put(
                *(
                    TopicConfig(
                        topic_name=f"topic-{n:04}", read_queue_nums=QUEUES, write_queue_nums=QUEUES
                    )
                    for n in range(COUNT)
                )
            )
            for n in range(COUNT):
                for queue_id in range(QUEUES):
                    tables.offsets.put(f"group-{n:04}", f"topic-{n:04}", queue_id, 0)

        made.mq._do(fill)
        for n in range(20):
            send(made.mq, f"topic-{n:04}", b"x" * 100)
        groups = made.mq._running().slices.groups.clients.groups
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
    router = site.mq._running().requests.router
    before = router.request

    def counted(request: Request) -> None:
        found[request.header.code] += 1
        before(request)

    monkeypatch.setattr(router, "request", counted)
    return found


def test_group_page_with_thousands_of_queues_shows_those_with_the_largest_lag(
    site: Site, request: pytest.FixtureRequest
) -> None:
    tables = site.mq._running().slices.groups.tables

    def read_all() -> None:
        for n in range(COUNT):
            for queue_id in range(QUEUES):
                tables.offsets.put("reads-all", f"topic-{n:04}", queue_id, 0)
        tables.groups.put(SubscriptionGroupConfig(group_name="reads-all"))

    def forget() -> None:
        tables.groups.remove("reads-all")
        tables.offsets.remove_group("reads-all")

    site.mq._do(read_all)
    request.addfinalizer(lambda: site.mq._do(forget))
    page = ask(site.port, "/groups/reads-all").body.decode()
    assert len(page) < PAGE_BYTES_MAX
    rows = re.findall(r'<th scope="row"><a href="/topics/(topic-\d+)">', page)
    assert len(rows) == 100
    assert rows[:20] == [f"topic-{n:04}" for n in range(20)]  # they have a message
    assert f"{COUNT * QUEUES - 100:,} more queues" in page
    page = ask(site.port, "/groups/reads-all?like=topic-099").body.decode()
    assert len(re.findall(r'<th scope="row"><a href="/topics/topic-099\d">', page)) == 80
    assert "more queues" not in page
    assert "reads no topic with" in ask(site.port, "/groups/reads-all?like=none").body.decode()


def test_topic_page_with_many_queues_shows_a_page_of_them(
    site: Site, request: pytest.FixtureRequest
) -> None:
    topics = site.mq._running().slices.topics.topics
    wide = TopicConfig(topic_name="wide", read_queue_nums=1024, write_queue_nums=1024)
    site.mq._do(lambda: topics.put(wide))
    request.addfinalizer(lambda: site.mq._do(lambda: topics.remove("wide")))
    page = ask(site.port, "/topics/wide?page=11").body.decode()
    assert len(page) < PAGE_BYTES_MAX
    assert re.findall(r'broker-a</th><td class="num">(\d+)</td>', page) == [
        str(queue_id) for queue_id in range(1000, 1024)
    ]
    assert "11 of 11" in page


ASKS = {
    "/": RequestCode.VIEW_BROKER,
    "/topics": RequestCode.VIEW_TOPICS,
    "/topics.csv": RequestCode.VIEW_TOPICS,
    "/topics/{name}": RequestCode.VIEW_TOPIC,
    "/groups": RequestCode.VIEW_GROUPS,
    "/groups.csv": RequestCode.VIEW_GROUPS,
    "/groups/{name}": RequestCode.VIEW_GROUP,
    "/messages": RequestCode.VIEW_MESSAGES,
    "/messages.csv": RequestCode.VIEW_MESSAGES,
    "/messages/{topic}/{id}": RequestCode.VIEW_MESSAGES,
    "/messages/{topic}/{id}/body": RequestCode.VIEW_MESSAGES,
    "/trace": RequestCode.QUERY_MESSAGE,
    "/dlq": RequestCode.VIEW_GROUPS,
    "/dlq/{group}": RequestCode.VIEW_MESSAGES,
    "/transactions": RequestCode.LIST_HALF_MESSAGES,
    "/scheduled": RequestCode.LIST_TIMERS,
    "/pipelines": RequestCode.VIEW_GROUPS,
    "/brokers/{name}": RequestCode.VIEW_BROKER,
    "/new-topic": None,
    "/topics/{name}/change": RequestCode.VIEW_TOPIC,
    "/topics/{name}/delete": RequestCode.VIEW_TOPIC,
    "/topics/{name}/spread": RequestCode.GET_TOPIC_CONFIG,
    "/light-queues": RequestCode.VIEW_LIGHT_QUEUES,
    "/groups/{name}/reset": RequestCode.VIEW_GROUP,
    "/groups/{name}/switch": RequestCode.VIEW_GROUP,
    "/brokers/{name}/clean": RequestCode.VIEW_CLEANING,
    "/brokers/{name}/drain": RequestCode.VIEW_BROKER,
}
"""Every page there is, and the one request that it costs a broker."""
ALSO = {"/transactions": RequestCode.LIST_PARKED_MESSAGES}
"""A second list on the same page."""
QUERIES = {
    "/topics": ("", "?page=7&sort=messages"),
    "/messages": (
        "?topic=topic-0005&by=time",
        "?topic=topic-0005&by=time&from=1700000000000",
        "?topic=topic-0005&by=key&word=k",
        "?topic=topic-0005&by=id&word={id}",
        "?topic=topic-0005&by=place&queue=0&at=0",
        "?topic=topic-0005&by=place&broker=broker-a&queue=0&at=0",
    ),
    "/messages.csv": ("?topic=topic-0005&by=time",),
    "/trace": ("?id={id}",),
    "/groups/{name}/reset": (
        "",
        "?topic=topic-0005&where=earliest",
        "?topic=topic-0005&where=latest",
        "?topic=topic-0005&where=time&time=1700000000000",
    ),
}


@pytest.mark.parametrize("page", [path for path, _ in PAGES])
def test_page_needs_one_broker_request(site: Site, asked: Counter[int], page: str) -> None:
    code, message = ASKS[page], site.mq.stored("topic-0005")[0]
    name = {"/topics": "topic-0005", "/groups": "group-0005", "/brokers": "broker-a"}
    facts = {
        "name": name.get("/" + page.split("/")[1], ""),
        "topic": "topic-0005",
        "id": message.offset_id,
        "group": "group-0005",
    }
    for query in QUERIES.get(page, ("",)):
        path = page.format(**facts) + query.format(**facts)
        asked.clear()
        answer = ask(site.port, path)
        assert answer.status == 200, path
        wanted = {one for one in (code, ALSO.get(page)) if one is not None}
        assert asked == dict.fromkeys(wanted, 1), path
        assert len(answer.body) < PAGE_BYTES_MAX, path


def test_hidden_page_sends_no_requests(site: Site, browser: Browser, asked: Counter[int]) -> None:
    context = browser.new_context(base_url=site.url)
    page = context.new_page()
    page.goto("/topics")
    expect(page.locator("body")).to_have_attribute("data-refreshed", "1", timeout=10_000)
    assert asked[RequestCode.VIEW_TOPICS] == 2
    # As when its tab is covered by another one.
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true})")
    page.wait_for_timeout(LIVE_MS * 2)  # that nothing happens takes its time to see
    assert asked[RequestCode.VIEW_TOPICS] == 2
    context.close()


LOADED = """() => new Promise((done) => {
  const tell = (paint) => {
    const [page] = performance.getEntriesByType("navigation");
    const others = performance.getEntriesByType("resource");
    done({
      paint_ms: paint.startTime,
      others: others.map((one) => new URL(one.name).pathname).sort(),
      bytes: [page, ...others].reduce((sum, one) => sum + one.decodedBodySize, 0),
      elements: document.getElementsByTagName("*").length,
    });
  };
  const watch = new PerformanceObserver((list) => tell(list.getEntries()[0]));
  watch.observe({type: "paint", buffered: true});
})"""
"""What a page took to be shown. Its time is printed; what makes it fast is asserted."""


@pytest.mark.parametrize("path", ["/", "/topics", "/groups"])
def test_first_paint_waits_for_few_resources(
    site: Site, browser: Browser, path: str, record_property: Callable[[str, object], None]
) -> None:
    context = browser.new_context(base_url=site.url)
    page = context.new_page()
    page.goto(path)
    loaded = page.evaluate(LOADED)
    sys.stdout.write(f"{path}: {loaded}\n")
    record_property(f"first_paint {path}", loaded)
    others = [name for name in loaded["others"] if name != "/static/icon.svg"]
    assert others == ["/static/dashboard.css", "/static/dashboard.js"]
    assert loaded["bytes"] < PAGE_BYTES_MAX
    assert loaded["elements"] < ELEMENTS_MAX
    if path != "/":
        expect(page.locator("tbody tr")).to_have_count(100)
        page.get_by_role("link", name="Next →").click()
        expect(page.locator(".pager")).to_contain_text("2 of 10")
    context.close()
