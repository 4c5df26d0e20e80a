"""Scheduled messages: which ones wait for delivery, and cancelling one."""

from starlette.requests import Request
from starlette.responses import Response

from tianzhou.base.errors import UsageError
from tianzhou.dashboard.page_context import PageContext, field_of

COUNT = 200


async def listed(context: PageContext, request: Request) -> Response:
    waiting, looked = await (await context.admin()).views.timers(count=COUNT)
    chosen = request.query_params.get("id", "")
    one = next((row for row in waiting if row.message.offset_msg_id == chosen), None)
    return context.show(
        request,
        "scheduled.html",
        nav="scheduled",
        title="Scheduled messages",
        waiting=waiting,
        count=COUNT,
        one=one,
        total=sum(told.total for told in looked.found.values()),
        missing=looked.missing,
    )


async def cancel(context: PageContext, request: Request) -> Response:
    admin, chosen = await context.admin(), field_of(request, "id")
    waiting, _ = await admin.views.timers(count=COUNT)
    one = next((row for row in waiting if row.message.offset_msg_id == chosen), None)
    if one is None:
        raise UsageError("this message is no longer scheduled: it was delivered or cancelled")
    await admin.timers.cancel(one)
    return context.done("/scheduled", f"{one.message.msg_id} will not be delivered.")
