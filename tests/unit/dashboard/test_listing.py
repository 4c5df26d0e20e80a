"""Long lists: a word, an order, a page."""

from starlette.requests import Request

from tianzhou.dashboard.listing import ROWS, Listing, listing

NAMES = [f"topic-{number:03}" for number in range(250)]


def listed(query: str) -> Listing[str]:
    request = Request(
        {
            "type": "http",
            "method": "GET",
            "path": "/topics",
            "headers": [],
            "scheme": "http",
            "server": ("127.0.0.1", 80),
            "query_string": query.encode(),
        }
    )
    return listing(request, NAMES, name=str, sorts={"last": lambda name: int(name[-1])})


def test_listing_returns_one_page() -> None:
    first, last = listed(""), listed("page=3")
    assert (list(first.rows), first.page, first.pages) == (NAMES[:ROWS], 1, 3)
    assert (list(last.rows), last.count, last.total) == (NAMES[2 * ROWS :], 250, 250)


def test_listing_page_out_of_range_is_the_nearest() -> None:
    assert [listed(f"page={text}").page for text in ("0", "99", "-1", "x", "9" * 50)] == [
        1,
        3,
        1,
        1,
        1,
    ]


def test_listing_filter_ignores_case() -> None:
    found = listed("like=TOPIC-24")
    assert (found.count, found.total, found.rows[0]) == (10, 250, "topic-240")
    assert listed("like=%3Cscript%3E").count == 0


def test_listing_sorts_by_value_then_name() -> None:
    assert list(listed("sort=last").rows[:2]) == ["topic-009", "topic-019"]
    assert listed("sort=nonsense").sort == "name"


def test_listing_links_keep_filter_and_sort() -> None:
    assert listed("like=a%26b&sort=last&done=x").link(page=2) == (
        "/topics?like=a%26b&sort=last&page=2"
    )
