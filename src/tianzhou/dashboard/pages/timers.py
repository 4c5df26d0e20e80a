"""Messages that wait for their moment."""

from starlette.requests import Request
from starlette.responses import Response

from tianzhou.base.errors import UsageError
from tianzhou.dashboard.here import Here, field_of

COUNT = 200


async def listed(here: Here, request: Request) -> Response:
    waiting, looked = await (await here.admin()).views.timers(count=COUNT)
    chosen = request.query_params.get("id", "")
    one = next((row for row in waiting if row.message.offset_msg_id == chosen), None)
    return here.show(
        request, "timers.html", nav="timers", title="Timers", waiting=waiting, count=COUNT, one=one,
        total=sum(told.total for told in looked.found.values()), missing=looked.missing,
    )  # fmt: skip


async def cancel(here: Here, request: Request) -> Response:
    admin, chosen = await here.admin(), field_of(request, "id")
    waiting, _ = await admin.views.timers(count=COUNT)
    one = next((row for row in waiting if row.message.offset_msg_id == chosen), None)
    if one is None:
        raise UsageError("this message does not wait any more: it was delivered or taken back")
    await admin.timers.cancel(one)
    return here.done("/timers", f"{one.message.msg_id} will not be delivered.")
