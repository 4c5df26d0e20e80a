"""One broker: state, replicas, settings, cleaning and draining it."""

from dataclasses import replace
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from tianzhou.base.errors import UsageError
from tianzhou.client.core.findings import findings
from tianzhou.client.core.replicas import replica_set
from tianzhou.client.core.views import forecast, size_text
from tianzhou.dashboard.page_context import PageContext, field_of
from tianzhou.dashboard.render import segment
from tianzhou.wire.names import PERM_WRITE


async def show(context: PageContext, request: Request) -> Response:
    name = request.path_params["name"]
    admin = await context.admin()
    look, place = await admin.views.broker(name)
    view = await admin.views.cluster(skip=(place.nearest,))
    view = replace(view, members={**view.members, place.nearest: look})
    found = [
        finding
        for finding in findings(view, context.clock.now_ms())
        if (finding.about, finding.name) == ("broker", name)
    ]
    facts = {
        key: value
        for key, value in sorted(look.facts.items())
        # This broker has no thread pools; delays have their own page.
        if not key.startswith("scheduleMessageOffset") and "ThreadPool" not in key
    }
    return context.show(
        request,
        "broker.html",
        nav="overview",
        title=name,
        name=name,
        look=look,
        place=place,
        forecast=forecast(look.disk),
        copies=replica_set(look, place),
        facts=facts,
        findings=found,
        has_master=0 in place.addresses,
    )


_STAYS: Final = (
    "A log file stays while it has a younger message, one that waits, or one that a replica does "
    "not have."
)


async def ask_clean(context: PageContext, request: Request) -> Response:
    """What would be removed, with the retention or with the hours that the reader chose."""
    name, asked = request.path_params["name"], request.query_params.get("keep", "")
    hours = _hours(asked) if asked else None
    found = await (await context.admin()).brokers.cleaning(name, keep_hours=hours)
    first = next(iter(found.values()))
    facts = [
        f"Messages of the last {first.keep_hours:,} hours stay; the setting does not change.",
        _STAYS,
    ]
    if first.unused_topics:
        facts.append(f"Topics that no longer exist: {', '.join(first.unused_topics)}.")
    return context.show(
        request,
        "clean.html",
        nav="overview",
        title=f"Clean {name}",
        name=name,
        keep=first.keep_hours,
        facts=facts,
        cleaning=found,
        can_clean=not all(view.is_empty for view in found.values()),
    )


async def clean(context: PageContext, request: Request) -> Response:
    name, hours = request.path_params["name"], _hours(field_of(request, "keep"))
    removed = await (await context.admin()).brokers.clean(name, keep_hours=hours)
    files = sum(view.files for view in removed.values())
    size = size_text(sum(view.size for view in removed.values()))
    return context.done(f"/brokers/{segment(name)}", f"Removed {files:,} log files, {size}.")


def _hours(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 6):
        raise UsageError(f"hours to keep must be a whole number, got {text[:32]!r}")
    return int(text)


async def ask_drain(context: PageContext, request: Request) -> Response:
    name = request.path_params["name"]
    look, place = await (await context.admin()).views.broker(name)
    address = place.addresses[min(place.addresses)]
    is_drained = not look.permission & PERM_WRITE
    others = sorted({other.name for other in await (await context.admin()).brokers.all()} - {name})
    if is_drained:
        facts = [f"{name} at {address} accepts messages again; producers notice within 30 seconds."]
    else:
        elsewhere = (
            f"They go to {', '.join(others)}."
            if others
            else ("There is no other broker: sends fail until this is undone.")
        )
        facts = [
            f"{name} at {address} refuses new messages. {elsewhere}",
            f"Consumers continue; {look.totals.lag:,} messages are unread.",
            "It is safe to stop when no producer writes and all messages are consumed.",
        ]
    return context.show(
        request,
        "confirm.html",
        nav="overview",
        facts=facts,
        typed="",
        danger=not is_drained,
        title=f"{'Undo the drain of' if is_drained else 'Drain'} {name}",
        action=f"/brokers/{segment(name)}/drain",
        back=f"/brokers/{segment(name)}",
        button="Allow writes" if is_drained else "Stop writes",
        fields={"undo": "1" if is_drained else "0"},
    )


async def drain(context: PageContext, request: Request) -> Response:
    name = request.path_params["name"]
    admin = await context.admin()
    if field_of(request, "undo") == "1":
        await admin.brokers.allow_writes(name)
        said = f"{name} accepts messages again."
    else:
        await admin.brokers.stop_writes(name)
        said = f"{name} rejects new messages. Stop it when all are consumed."
    return context.done(f"/brokers/{segment(name)}", said)
