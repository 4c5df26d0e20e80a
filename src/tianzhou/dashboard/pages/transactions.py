"""Undecided transactions, and parked ones, which brokers no longer check."""

from collections.abc import Sequence
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from tianzhou.base.errors import UsageError
from tianzhou.client.admin.transactions import ParkedTransaction, PendingTransaction
from tianzhou.dashboard.page_context import PageContext, field_of

T = TypeVar("T", PendingTransaction, ParkedTransaction)

COUNT = 200
SAID = {
    "commit": "committed",
    "rollback": "rolled back",
    "recheck": "checked again",
    "resume": "resumed",
}


async def listed(context: PageContext, request: Request) -> Response:
    looks = (await context.admin()).views
    pending, looked = await looks.transactions(count=COUNT)
    parked, seen = await looks.parked(count=COUNT)
    chosen, what = request.query_params.get("id", ""), request.query_params.get("do", "")
    one = _chosen(parked, chosen) if what == "resume" else _chosen(pending, chosen)
    return context.show(
        request,
        "transactions.html",
        nav="transactions",
        title="Pending transactions",
        pending=pending,
        count=COUNT,
        one=one,
        what=what if what in SAID else "",
        total=sum(told.total for told in looked.found.values()),
        missing=looked.missing,
        parked=parked,
        parked_total=sum(told.total for told in seen.found.values()),
    )


async def decide(context: PageContext, request: Request) -> Response:
    admin = await context.admin()
    chosen, what = field_of(request, "id"), field_of(request, "do")
    if what == "resume":
        parked = _chosen((await admin.views.parked(count=COUNT))[0], chosen)
        if parked is None:
            raise UsageError("this transaction is no longer parked: it was resumed or has expired")
        await admin.transactions.resume(parked)
        return context.done("/transactions", f"{parked.half.msg_id} was {SAID[what]}.")
    one = _chosen((await admin.views.transactions(count=COUNT))[0], chosen)
    if one is None or what not in SAID:
        raise UsageError("this transaction is no longer pending: it was decided already")
    if what == "commit":
        await admin.transactions.commit(one)
    elif what == "rollback":
        await admin.transactions.rollback(one)
    else:
        await admin.transactions.recheck(one)
    return context.done("/transactions", f"{one.half.msg_id} was {SAID[what]}.")


def _chosen(rows: Sequence[T], chosen: str) -> T | None:
    return next((row for row in rows if row.half.offset_msg_id == chosen), None)
