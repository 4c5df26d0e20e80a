"""One broker: what it says of itself, its settings, and taking it out of service."""

from starlette.requests import Request
from starlette.responses import Response

from tianzhou.client.core.looks import forecast
from tianzhou.dashboard.here import Here, field_of
from tianzhou.dashboard.render import segment


async def show(here: Here, request: Request) -> Response:
    name = request.path_params["name"]
    admin = await here.admin()
    told, config = await admin.brokers.status(name), await admin.brokers.config(name)
    look = (await admin.looks.brokers()).found.get(name)
    return here.show(
        request, "broker.html", nav="overview", title=name, name=name, told=told,
        config=sorted(config.items()), look=look, forecast=forecast(look.disk) if look else None,
    )  # fmt: skip


async def ask_drain(here: Here, request: Request) -> Response:
    name = request.path_params["name"]
    admin = await here.admin()
    looked = await admin.looks.brokers()
    look = looked.found.get(name)
    address = (await admin.brokers.status(name)).address
    is_drained = look is not None and not look.permission & 2
    others = sorted(other for other in looked.found if other != name)
    if is_drained:
        facts = [f"{name} at {address} takes messages again; producers see it within 30 seconds."]
    else:
        elsewhere = f"They go to {', '.join(others)}." if others else (
            "There is no other broker: sending fails until this is undone."
        )  # fmt: skip
        lag = look.totals.lag if look else 0
        facts = [
            f"{name} at {address} refuses new messages. {elsewhere}",
            f"Consumers go on reading; {lag:,} messages there are not read yet.",
            "It is safe to stop it when nobody writes and nothing is left to read.",
        ]
    return here.show(
        request, "confirm.html", nav="overview", facts=facts, typed="", danger=not is_drained,
        title=f"{'Undo the drain of' if is_drained else 'Drain'} {name}",
        action=f"/brokers/{segment(name)}/drain", back=f"/brokers/{segment(name)}",
        button="Allow writes" if is_drained else "Stop writes",
        fields={"undo": "1" if is_drained else "0"},
    )  # fmt: skip


async def drain(here: Here, request: Request) -> Response:
    name = request.path_params["name"]
    admin = await here.admin()
    if field_of(request, "undo") == "1":
        await admin.brokers.allow_writes(name)
        said = f"{name} takes messages again."
    else:
        await admin.brokers.stop_writes(name)
        said = f"{name} takes no more messages. Stop it when all are read."
    return here.done(f"/brokers/{segment(name)}", said)
