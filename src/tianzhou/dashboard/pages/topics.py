"""Topics: the list, one topic, and creating, changing, spreading and deleting one."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from tianzhou.base.errors import UsageError
from tianzhou.dashboard.exports import csv_response
from tianzhou.dashboard.listing import ROWS, listing
from tianzhou.dashboard.page_context import PageContext, field_of, form_of
from tianzhou.dashboard.render import rate_text, segment
from tianzhou.wire.names import PERM_READ, PERM_READ_WRITE, PERM_WRITE
from tianzhou.wire.tables import TopicConfig
from tianzhou.wire.view_bodies import ReaderView, TopicRow, TopicView

QUEUES_MAX: Final = 1024
PERMISSIONS: Final = {
    PERM_READ_WRITE: "read and write",
    PERM_READ: "read only",
    PERM_WRITE: "write only",
    0: "none",
}
_SORTS: Final[Mapping[str, Callable[[TopicRow], Any]]] = {
    "in": lambda row: row.put_per_second,
    "out": lambda row: row.get_per_second,
    "messages": lambda row: row.count,
    "queues": lambda row: row.read_queues,
    "groups": lambda row: row.groups,
}


async def listed(context: PageContext, request: Request) -> Response:
    rows, looked = await (await context.admin()).views.topics()
    with_system = request.query_params.get("internal") == "1"
    shown = [row for row in rows if with_system or not row.is_system]
    page = listing(request, shown, name=lambda row: row.name, sorts=_SORTS)
    return context.show(
        request,
        "topics.html",
        nav="topics",
        title="Topics",
        list=page,
        missing=looked.missing,
        internal=with_system,
    )


async def light_queues(context: PageContext, request: Request) -> Response:
    """Light queues, filtered by the brokers: there may be too many for one response."""
    like = request.query_params.get("like", "").strip()
    rows, looked = await (await context.admin()).views.light_queues(like)
    return context.show(
        request,
        "light_queues.html",
        nav="topics",
        title="Light queues",
        list=listing(
            request, rows, name=lambda row: row.name, sorts={"messages": lambda row: row.count}
        ),
        total=sum(look.total for look in looked.found.values()),
        missing=looked.missing,
    )


async def exported(context: PageContext, _request: Request) -> Response:
    rows, _ = await (await context.admin()).views.topics()
    titles = ("topic", "messages", "in_per_second", "out_per_second", "queues", "groups", "perm")
    return csv_response(
        "topics",
        titles,
        (
            (r.name, r.count, r.put_per_second, r.get_per_second, r.read_queues, r.groups, r.perm)
            for r in rows
        ),
    )


async def show(context: PageContext, request: Request) -> Response:
    name = request.path_params["name"]
    looked = await (await context.admin()).views.topic(name)
    looks = looked.found
    queues = [(broker, queue) for broker, look in looks.items() for queue in look.queues]
    hours = [sum(column) for column in zip(*(look.hours for look in looks.values()), strict=False)]
    return context.show(
        request,
        "topic.html",
        nav="topics",
        title=name,
        name=name,
        looks=looks,
        missing=looked.missing,
        is_system=any(look.is_system for look in looks.values()),
        put_per_second=sum(look.put_per_second for look in looks.values()),
        put_size_per_second=sum(look.put_size_per_second for look in looks.values()),
        count=sum(queue.max_offset - queue.min_offset for _, queue in queues),
        list=listing(request, queues, name=lambda row: f"{row[0]} {row[1].queue_id:05}", sorts={}),
        rows_max=ROWS,
        readers=_readers(r for look in looks.values() for r in look.readers),
        producers=sorted(
            {p.address: p for look in looks.values() for p in look.producers}.values(),
            key=lambda seen: -seen.last_ms,
        ),
        hours=json.dumps(hours),
        longest=max((queue.max_offset - queue.min_offset for _, queue in queues), default=0),
    )


def _readers(rows: Any) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        assert isinstance(row, ReaderView)
        known = found.setdefault(
            row.group, {"group": row.group, "lag": 0, "members": 0, "rate": 0.0, "oldest_ms": 0}
        )
        known["lag"] += row.lag
        known["members"] = max(known["members"], row.members)
        known["rate"] += row.get_per_second
        oldest = [at for at in (known["oldest_ms"], row.oldest_ms) if at]
        known["oldest_ms"] = min(oldest, default=0)
    return sorted(found.values(), key=lambda row: -row["lag"])


# Making and changing


async def ask_create(context: PageContext, request: Request) -> Response:
    places = await (await context.admin()).brokers.all()
    return context.show(
        request,
        "topic_form.html",
        nav="topics",
        title="New topic",
        name=None,
        brokers={place.name: True for place in places},
        queues=8,
        read_queues=None,
        permission=PERM_READ_WRITE,
        permissions=PERMISSIONS,
        readers=0,
    )


async def create(context: PageContext, request: Request) -> Response:
    admin = await context.admin()
    name, queues = field_of(request, "name"), _queues(request, "queues")
    known = {row.name for row in (await admin.views.topics())[0]}
    if name in known:
        raise UsageError(f"there is a topic {name} already; open it to change it")
    await admin.topics.create(
        name,
        queues=queues,
        read_queues=_read_queues(request),
        permission=_permission(request),
        brokers=form_of(request).get("broker"),
        order=field_of(request, "order") == "1",
    )
    return context.done(f"/topics/{segment(name)}", f"Topic {name} exists, with {queues} queues.")


async def ask_change(context: PageContext, request: Request) -> Response:
    """The settings of one broker, or of the first one if the change is for all."""
    name, broker = request.path_params["name"], request.query_params.get("broker", "")
    admin = await context.admin()
    looked = await admin.views.topic(name)
    places = await admin.brokers.all()
    config = _config_at(looked.found, broker)
    return context.show(
        request,
        "topic_form.html",
        nav="topics",
        title=f"Change {name}",
        name=name,
        broker=broker,
        brokers={place.name: place.name in looked.found for place in places},
        queues=config.write_queue_nums,
        read_queues=_other_number(config),
        permission=config.perm & PERM_READ_WRITE,
        permissions=PERMISSIONS,
        readers=sum(1 for one in looked.found.values() for _ in one.readers),
    )


def _other_number(config: TopicConfig) -> int | None:
    """The number of queues to read, if it is not that of queues to write."""
    reads = config.read_queue_nums
    return reads if reads != config.write_queue_nums else None


def _config_at(views: Mapping[str, TopicView], broker: str) -> TopicConfig:
    return (views.get(broker) or next(iter(views.values()))).config


async def change(context: PageContext, request: Request) -> Response:
    name, writes = request.path_params["name"], _queues(request, "queues")
    permission, broker = _permission(request), field_of(request, "broker")
    reads = _read_queues(request) or writes
    admin = await context.admin()
    views = (await admin.views.topic(name)).found
    wanted = [broker] if broker else list(views)
    configs = [views[place].config for place in wanted if place in views]
    said = f"Topic {name} is changed{f' on {broker}' if broker else ''}."
    if reads == writes and any(_most(config) > writes for config in configs):
        shrinking = await admin.topics.shrink(name, queues=writes, brokers=wanted)
        if not shrinking.is_done:
            left = ", ".join(f"{group}: {count:,}" for group, count in shrinking.unread.items())
            said = (
                f"Nothing is written to the last queues any more. They stay readable until all "
                f"groups have read them ({left}); then change it once more, without a number to "
                "read."
            )
        await admin.topics.update(name, brokers=wanted, permission=permission)
    else:
        await admin.topics.update(
            name, brokers=wanted, read_queues=reads, write_queues=writes, permission=permission
        )
    return context.done(f"/topics/{segment(name)}", said)


def _most(config: TopicConfig) -> int:
    return max(config.read_queue_nums, config.write_queue_nums)


async def ask_spread(context: PageContext, request: Request) -> Response:
    name = request.path_params["name"]
    plan = await (await context.admin()).topics.spread(name, dry_run=True)
    facts = [
        f"{place.broker} has no master now; spread the topic again when it has one."
        if place.then is None
        else f"{place.broker} gets {_queues_text(place.then)}; now it has none."
        if place.now is None
        else f"{place.broker} keeps {_queues_text(place.now)}."
        for place in plan.placements
    ]
    if plan.groups:
        facts.append(f"New brokers also get these groups: {', '.join(plan.groups)}.")
    if plan.is_complete:
        facts.append("There is nothing to do.")
    elif plan.is_ordered:
        facts.append(
            "The topic is ordered: its keys move to other queues, and messages of one key may be "
            "consumed out of order until the older ones are consumed. Stop its producers first."
        )
    else:
        facts.append("Consumers notice within a second, producers within 30 seconds.")
    return context.show(
        request,
        "confirm.html",
        nav="topics",
        title=f"Spread {name}",
        facts=facts,
        action=f"/topics/{segment(name)}/spread",
        back=f"/topics/{segment(name)}",
        button="" if plan.is_complete else f"Spread {name}",
        danger=plan.is_ordered,
        typed=name if plan.is_ordered and not plan.is_complete else "",
        fields={},
    )


async def spread(context: PageContext, request: Request) -> Response:
    name = request.path_params["name"]
    is_accepted = field_of(request, "typed") == name
    plan = await (await context.admin()).topics.spread(name, allow_reorder=is_accepted)
    where = ", ".join(place.broker for place in plan.placements if place.then is not None)
    return context.done(f"/topics/{segment(name)}", f"Topic {name} has queues on {where}.")


async def ask_delete(context: PageContext, request: Request) -> Response:
    name = request.path_params["name"]
    looks = (await (await context.admin()).views.topic(name)).found.values()
    count = sum(q.max_offset - q.min_offset for look in looks for q in look.queues)
    readers = sorted({reader.group for look in looks for reader in look.readers})
    rate = sum(look.put_per_second for look in looks)
    facts = [f"{count:,} messages can't be read any more; nothing brings them back."]
    if readers:
        facts.append(f"{len(readers)} groups lose their offsets in it: {', '.join(readers[:10])}.")
    if rate:
        facts.append(f"In the last minute {rate_text(rate)} messages a second were sent to it.")
    return context.show(
        request,
        "confirm.html",
        nav="topics",
        title=f"Delete {name}",
        facts=facts,
        action=f"/topics/{segment(name)}/delete",
        back=f"/topics/{segment(name)}",
        button=f"Delete {name}",
        danger=True,
        typed=name,
        fields={},
    )


async def delete(context: PageContext, request: Request) -> Response:
    name = request.path_params["name"]
    if field_of(request, "typed") != name:
        raise UsageError(f"type {name} to delete it")
    admin = await context.admin()
    if any(look.is_system for look in (await admin.views.topic(name)).found.values()):
        raise UsageError(f"topic {name} is the brokers' own; it can't be deleted here")
    await admin.topics.delete(name)
    return context.done("/topics", f"Topic {name} is deleted.")


def _queues_text(config: TopicConfig) -> str:
    reads, writes = config.read_queue_nums, config.write_queue_nums
    return f"{writes} queues" if reads == writes else f"{reads} queues to read, {writes} to write"


def _permission(request: Request) -> int:
    text = field_of(request, "permission", str(PERM_READ_WRITE))
    if text not in {str(bits) for bits in PERMISSIONS}:
        raise UsageError(f"permission {text!r} must be one of {', '.join(PERMISSIONS.values())}")
    return int(text)


def _read_queues(request: Request) -> int | None:
    """None: as many as are written."""
    return _queues(request, "read_queues") if field_of(request, "read_queues") else None


def _queues(request: Request, name: str) -> int:
    text = field_of(request, name)
    if not text.isdecimal() or not 1 <= int(text) <= QUEUES_MAX:
        raise UsageError(f"invalid number of queues {text!r}; use 1 to {QUEUES_MAX}")
    return int(text)
