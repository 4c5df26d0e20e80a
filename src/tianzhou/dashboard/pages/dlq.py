"""Dead letters: the groups that have some, the newest of a group, and replaying them."""

from starlette.requests import Request
from starlette.responses import Response

from tianzhou.base.errors import UsageError
from tianzhou.client.errors import TopicNotFound
from tianzhou.dashboard.page_context import PageContext, field_of, form_of
from tianzhou.dashboard.payload import preview
from tianzhou.dashboard.render import segment
from tianzhou.record.message import MessageView
from tianzhou.wire._generated_headers_admin import ViewMessagesRequest
from tianzhou.wire.names import DEAD_LETTER_PREFIX

COUNT = 100


async def listed(context: PageContext, request: Request) -> Response:
    admin = await context.admin()
    groups, looked = await admin.views.groups()
    left = {row.name: row.dead_not_replayed for row in groups if row.dead}
    # Brokers count from the first dead letter that was not replayed; later ones may have been.
    for name in await admin.dlq.recorded_groups() if any(left.values()) else ():
        if left.get(name):
            left[name] = (await admin.dlq.show(name)).not_replayed
    rows = [(row, left[row.name]) for row in groups if row.dead]
    return context.show(
        request,
        "dlq.html",
        nav="dead",
        title="Dead letters",
        rows=sorted(rows, key=lambda pair: -pair[1]),
        missing=looked.missing,
    )


async def show(context: PageContext, request: Request) -> Response:
    group = request.path_params["group"]
    letters = await _newest(context, group)
    replayed = await _replayed(context, group, letters)
    newest = [
        (letter, letter.offset_id in replayed, preview(letter.body)) for letter in reversed(letters)
    ]
    return context.show(
        request,
        "dlq_group.html",
        nav="dead",
        title=f"Dead letters of {group}",
        group=group,
        letters=newest,
        count=COUNT,
    )


async def _newest(context: PageContext, group: str) -> list[MessageView]:
    """Return the newest dead letters, the oldest of them first."""
    wanted = ViewMessagesRequest(topic=DEAD_LETTER_PREFIX + group, by="newest", count=COUNT)
    try:
        return (await (await context.admin()).views.messages(wanted))[0]
    except TopicNotFound:
        return []  # the broker creates the topic with the first dead letter


async def _replayed(context: PageContext, group: str, letters: list[MessageView]) -> set[str]:
    return await (await context.admin()).dlq.replayed(group, letters) if letters else set()


async def _chosen(context: PageContext, request: Request, group: str) -> list[MessageView]:
    """Return the selected dead letters. Raises UsageError if there are newer ones instead."""
    chosen = set(form_of(request).get("letter", []))
    if not chosen:
        raise UsageError("select at least one dead letter")
    letters = [letter for letter in await _newest(context, group) if letter.offset_id in chosen]
    if len(letters) < len(chosen):
        raise UsageError(
            f"{len(chosen) - len(letters)} of {len(chosen)} dead letters are no longer among the "
            f"newest {COUNT}; nothing was sent"
        )
    return letters


async def ask_replay(context: PageContext, request: Request) -> Response:
    """Show what a replay of the selected dead letters would do. Changes nothing."""
    group = request.path_params["group"]
    letters = await _chosen(context, request, group)
    replayed = await _replayed(context, group, letters)
    again = field_of(request, "again") == "yes"
    to_topic = field_of(request, "to") == "topic"
    count = len(letters) if again else len(letters) - len(replayed)
    where = (
        "their original topics: every group that consumes these receives them again"
        if to_topic
        else f"group {group} alone"
    )
    facts = [f"{count} dead letters are sent to {where}."]
    if replayed:
        what = "sent again" if again else "skipped"
        facts.append(f"{len(replayed)} were replayed before and are {what}.")
    facts.append("They remain in the list; one that fails again is added as a new dead letter.")
    return context.show(
        request,
        "confirm.html",
        nav="dead",
        title=f"Replay {count} of {group}",
        facts=facts,
        danger=False,
        typed="",
        button=f"Replay {count}",
        action=f"/dlq/{segment(group)}/replay",
        back=f"/dlq/{segment(group)}",
        fields={
            "letter": [letter.offset_id for letter in letters],
            "to": "topic" if to_topic else "group",
            "again": "yes" if again else "no",
        },
    )


async def replay(context: PageContext, request: Request) -> Response:
    group = request.path_params["group"]
    letters = await _chosen(context, request, group)
    sent = await (await context.admin()).dlq.replay_messages(
        group,
        letters,
        to_topic=field_of(request, "to") == "topic",
        again=field_of(request, "again") == "yes",
    )
    skipped = f"; {sent.skipped} were replayed before and skipped" if sent.skipped else ""
    return context.done(f"/dlq/{segment(group)}", f"{sent.count} sent to {sent.topic}{skipped}.")
