"""Transactions that nobody decided yet."""

from starlette.requests import Request
from starlette.responses import Response

from tianzhou.base.errors import UsageError
from tianzhou.dashboard.here import Here, field_of

COUNT = 200
SAID = {"commit": "committed", "rollback": "rolled back", "recheck": "asked about again"}


async def listed(here: Here, request: Request) -> Response:
    pending, looked = await (await here.admin()).looks.transactions(count=COUNT)
    chosen, what = request.query_params.get("id", ""), request.query_params.get("do", "")
    one = next((row for row in pending if row.half.offset_msg_id == chosen), None)
    return here.show(
        request, "transactions.html", nav="transactions", title="Pending transactions",
        pending=pending, count=COUNT, one=one, what=what if what in SAID else "",
        total=sum(told.total for told in looked.found.values()), missing=looked.missing,
    )  # fmt: skip


async def decide(here: Here, request: Request) -> Response:
    admin = await here.admin()
    chosen, what = field_of(request, "id"), field_of(request, "do")
    pending, _ = await admin.looks.transactions(count=COUNT)
    one = next((row for row in pending if row.half.offset_msg_id == chosen), None)
    if one is None or what not in SAID:
        raise UsageError("this transaction is not pending any more: somebody has decided it")
    if what == "commit":
        await admin.transactions.commit(one)
    elif what == "rollback":
        await admin.transactions.rollback(one)
    else:
        await admin.transactions.recheck(one)
    return here.done("/transactions", f"{one.half.msg_id} was {SAID[what]}.")
