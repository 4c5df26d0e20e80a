"""Long lists: filtered by a word, sorted by a column, a page at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request

T = TypeVar("T")

ROWS: Final = 100
"""Of one page: a broker with a thousand topics must not render them all every few seconds."""


@dataclass(frozen=True)
class Listing(Generic[T]):
    rows: Sequence[T]
    count: int
    """Of all pages."""
    total: int
    """Without the filter."""
    page: int
    pages: int
    like: str
    sort: str
    path: str
    query: Mapping[str, str]

    def link(self, **changed: Any) -> str:
        """The same list, otherwise."""
        return f"{self.path}?{urlencode({**self.query, **changed})}"


def listing(
    request: Request,
    rows: Sequence[T],
    *,
    name: Callable[[T], str],
    sorts: Mapping[str, Callable[[T], Any]],
    sort: str = "name",
) -> Listing[T]:
    """`sorts` are the largest first, except by name."""
    query = dict(request.query_params)
    query.pop("done", None)
    like = query.get("like", "").strip().lower()
    chosen = query.get("sort", sort)
    chosen = chosen if chosen in sorts or chosen == "name" else sort
    found = [row for row in rows if like in name(row).lower()] if like else list(rows)
    found.sort(key=name)
    if chosen != "name":
        found.sort(key=sorts[chosen], reverse=True)
    pages = max(1, -(-len(found) // ROWS))
    page = query.get("page", "1")
    at = min(max(int(page), 1), pages) if page.isdecimal() and len(page) < 7 else 1
    return Listing(
        rows=found[(at - 1) * ROWS : at * ROWS],
        count=len(found),
        total=len(rows),
        page=at,
        pages=pages,
        like=query.get("like", ""),
        sort=chosen,
        path=request.url.path,
        query=query,
    )
