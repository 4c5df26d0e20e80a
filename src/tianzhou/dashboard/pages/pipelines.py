"""Pipelines: jobs of Spark and other programs that read without being members of a group.

They confirm how far they are under the name of a group, and no heartbeat of theirs is ever heard.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from tianzhou.dashboard.listing import listing
from tianzhou.dashboard.page_context import PageContext
from tianzhou.wire.view_bodies import GroupRow

_SORTS: Final[Mapping[str, Callable[[GroupRow], Any]]] = {
    "progress": lambda row: row.moved_ms,
    "lag": lambda row: row.lag,
}


async def listed(context: PageContext, request: Request) -> Response:
    rows, looked = await (await context.admin()).views.groups()
    jobs = [
        row
        for row in rows
        if not (row.is_system or row.members or row.is_abandoned) and (row.moved_ms or row.lag)
    ]
    page = listing(request, jobs, name=lambda row: row.name, sorts=_SORTS, sort="progress")
    return context.show(
        request,
        "pipelines.html",
        nav="pipelines",
        title="Pipelines",
        list=page,
        missing=looked.missing,
    )
