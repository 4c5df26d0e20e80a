"""Consumer groups: lag, the reasons for it, and moving offsets."""

from collections import Counter
from collections.abc import Callable, Mapping
from heapq import nlargest
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from tianzhou.base.errors import UsageError
from tianzhou.client.core.admin_results import LATEST, OffsetMove, effect_of
from tianzhou.client.core.views import groups_together
from tianzhou.dashboard.exports import csv_response
from tianzhou.dashboard.listing import listing
from tianzhou.dashboard.moments import moment_ms
from tianzhou.dashboard.page_context import PageContext, field_of
from tianzhou.dashboard.render import segment
from tianzhou.wire.queues import MessageQueue
from tianzhou.wire.view_bodies import GroupRow, GroupView, HeldQueue

_SORTS: Final[Mapping[str, Callable[[GroupRow], Any]]] = {
    "lag": lambda row: (row.stuck, row.lag),
    "behind": lambda row: -(row.oldest_ms or 1 << 62),
    "out": lambda row: row.get_per_second,
    "members": lambda row: row.members,
    "dead": lambda row: row.dead,
}


class Held(NamedTuple):
    """A queue of a group, on one broker."""

    broker: str
    queue: HeldQueue
    lag: int


ROWS_MAX: Final = 100
"""Queues, members and events of a group that its page shows: rendering a row takes about 50 us of
the event loop, and a group may have 50,000 queues."""


WHERES: Final = {
    "earliest": "the oldest message still stored",
    "latest": "the end of each queue: skip all stored messages",
    "time": "the first message stored at or after a time",
}


async def listed(context: PageContext, request: Request) -> Response:
    rows, looked = await (await context.admin()).views.groups()
    with_system = request.query_params.get("internal") == "1"
    shown = [row for row in rows if with_system or not row.is_system]
    page = listing(request, shown, name=lambda row: row.name, sorts=_SORTS, sort="lag")
    return context.show(
        request,
        "groups.html",
        nav="groups",
        title="Groups",
        list=page,
        missing=looked.missing,
        internal=with_system,
    )


async def exported(context: PageContext, _request: Request) -> Response:
    rows, _ = await (await context.admin()).views.groups()
    titles = ("group", "members", "lag", "out_per_second", "dead_letters", "stuck", "topics")
    return csv_response(
        "groups",
        titles,
        (
            (r.name, r.members, r.lag, r.get_per_second, r.dead, r.stuck, " ".join(r.topics))
            for r in rows
        ),
    )


async def show(context: PageContext, request: Request) -> Response:
    name, like = request.path_params["name"], request.query_params.get("like", "").strip()
    looked = await (await context.admin()).views.group(name, queues_max=ROWS_MAX, queues_like=like)
    looks = looked.found
    (row,) = groups_together(look.row for look in looks.values()) or (None,)
    members = {member.client_id: member for look in looks.values() for member in look.members}
    queues, queue_count = _queues(looks)
    owned = Counter[str]()
    for look in looks.values():
        owned.update(look.owned or (queue.owner for queue in look.queues))
    events = [event for look in looks.values() for event in look.events]
    return context.show(
        request,
        "group.html",
        nav="groups",
        title=name,
        name=name,
        row=row,
        looks=looks,
        missing=looked.missing,
        members=[members[key] for key in sorted(members)],
        owned=owned,
        queues=queues,
        queue_count=queue_count,
        like=like,
        rows_max=ROWS_MAX,
        events=events,
        stuck={(event.topic, event.queue_id): event for event in events},
        now_look_ms=max((look.now_ms for look in looks.values()), default=0),
        topics=row.topics if row else (),
        longest=max((held.lag for held in queues), default=0),
    )


def _queues(looks: Mapping[str, GroupView]) -> tuple[list[Held], int]:
    """The queues to show, and how many there are. If there are too many, largest lag first
    are shown, and the largest lag first."""
    found = [
        Held(broker, queue, queue.lag) for broker, look in looks.items() for queue in look.queues
    ]
    count = sum(max(look.queue_count, len(look.queues)) for look in looks.values())
    if count > ROWS_MAX:
        found = nlargest(ROWS_MAX, found, key=lambda held: held.lag)
    return found, count


# Moving


async def ask_reset(context: PageContext, request: Request) -> Response:
    """First where to; with that, what would happen."""
    name, asked = request.path_params["name"], request.query_params
    admin = await context.admin()
    topic, where = asked.get("topic", ""), asked.get("where", "")
    values: dict[str, Any] = {"moves": None, "topic": topic, "where": where or "time"}
    is_asked = bool(topic and where)
    time_ms = _time_ms(where, asked.get("time", "")) if is_asked else LATEST
    looks = (
        await admin.views.group(
            name, move_in=topic if is_asked else None, time_ms=time_ms, queues_max=0
        )
    ).found
    if is_asked:
        moves = _moves(topic, looks)
        values |= {"moves": moves, "facts": facts_of(name, topic, moves)}
    members = {m.client_id for look in looks.values() for m in look.members}
    return context.show(
        request,
        "reset.html",
        nav="groups",
        title=f"Move {name}",
        name=name,
        wheres=WHERES,
        topics=sorted({t for look in looks.values() for t in look.row.topics}),
        members=len(members),
        rows_max=ROWS_MAX,
        time=asked.get("time", ""),
        **values,
    )


def _moves(topic: str, looks: Mapping[str, GroupView]) -> list[OffsetMove]:
    found = [
        OffsetMove(
            MessageQueue(topic=topic, broker_name=broker, queue_id=move.queue_id),
            None if move.committed < 0 else move.committed,
            move.target,
        )
        for broker, look in looks.items()
        for move in look.moves
    ]
    if not found:
        raise UsageError(f"no broker has a topic {topic}")
    return found


def facts_of(group: str, topic: str, moves: list[OffsetMove]) -> list[str]:
    """What a move means, in sentences."""
    skipped, again = effect_of(moves)
    facts = [f"Group {group} moves in {len(moves)} queues of {topic}."]
    if skipped:
        facts.append(f"It will never see {skipped:,} messages.")
    if again:
        facts.append(f"It will see {again:,} messages again.")
    if not skipped and not again:
        facts.append("It is there already; nothing changes.")
    return facts


async def reset(context: PageContext, request: Request) -> Response:
    name, topic = request.path_params["name"], field_of(request, "topic")
    time_ms = _time_ms(field_of(request, "where"), field_of(request, "time"))
    moves = await (await context.admin()).offsets.reset_to_time(name, topic, time_ms=time_ms)
    _, *facts = facts_of(name, topic, moves)
    return context.done(f"/groups/{segment(name)}", f"Moved in {topic}. {' '.join(facts)}")


def _time_ms(where: str, time: str) -> int:
    if where not in WHERES:
        raise UsageError(f"{where!r} must be one of {', '.join(WHERES)}")
    if where != "time":
        return 0 if where == "earliest" else LATEST
    return moment_ms(time)


# Switching off and on


async def ask_switch(context: PageContext, request: Request) -> Response:
    name = request.path_params["name"]
    looks = (await (await context.admin()).views.group(name, queues_max=0)).found
    (row,) = groups_together(look.row for look in looks.values())
    if row.enabled:
        facts = [
            f"Brokers give group {name} no more messages; {row.members} members stay connected.",
            f"Its lag, {row.lag:,} messages now, grows until you switch it on again.",
        ]
    else:
        facts = [f"Brokers give group {name} messages again; {row.lag:,} wait."]
    return context.show(
        request,
        "confirm.html",
        nav="groups",
        facts=facts,
        danger=row.enabled,
        typed="",
        title=f"Switch {name} {'off' if row.enabled else 'on'}",
        action=f"/groups/{segment(name)}/switch",
        back=f"/groups/{segment(name)}",
        button="Switch off" if row.enabled else "Switch on",
        fields={"on": "0" if row.enabled else "1"},
    )


async def switch(context: PageContext, request: Request) -> Response:
    name, is_on = request.path_params["name"], field_of(request, "on") == "1"
    await (await context.admin()).groups.update(name, consume_enabled=is_on)
    return context.done(f"/groups/{segment(name)}", f"It is switched {'on' if is_on else 'off'}.")
