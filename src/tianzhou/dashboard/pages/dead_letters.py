"""Dead letters: which groups have some, what they are, and sending them again."""

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
    rows, looked = await (await context.admin()).views.groups()
    dead = sorted((row for row in rows if row.dead), key=lambda row: -row.dead_not_replayed)
    return context.show(
        request, "dead_letters.html", nav="dead", title="Dead letters", rows=dead,
        missing=looked.missing,
    )  # fmt: skip


async def show(context: PageContext, request: Request) -> Response:
    group = request.path_params["group"]
    letters = await _newest(context, group)
    newest = [(letter, preview(letter.body)) for letter in reversed(letters)]
    return context.show(
        request, "dead_letter_box.html", nav="dead", title=f"Dead letters of {group}",
        group=group, letters=newest, count=COUNT,
    )  # fmt: skip


async def _newest(context: PageContext, group: str) -> list[MessageView]:
    """The oldest of them first."""
    wanted = ViewMessagesRequest(topic=DEAD_LETTER_PREFIX + group, by="newest", count=COUNT)
    try:
        return (await (await context.admin()).views.messages(wanted))[0]
    except TopicNotFound:
        return []  # the topic is made with the first of them


async def ask_replay(context: PageContext, request: Request) -> Response:
    """Says what will happen to those that were chosen. Changes nothing."""
    group = request.path_params["group"]
    chosen = form_of(request).get("letter", [])
    to_topic = field_of(request, "to") == "topic"
    if not chosen:
        raise UsageError("choose at least one dead letter")
    where = (
        "the topics they came from, so every group that reads those gets them once more"
        if to_topic
        else f"group {group} alone"
    )
    facts = [
        f"{len(chosen)} dead letters are sent again, to {where}.",
        "They stay among the dead letters; one that fails again comes back as a new one.",
    ]
    return context.show(
        request, "confirm.html", nav="dead", title=f"Replay {len(chosen)} of {group}",
        facts=facts, danger=False, typed="", button=f"Replay {len(chosen)}",
        action=f"/dead-letters/{segment(group)}/replay", back=f"/dead-letters/{segment(group)}",
        fields={"letter": chosen, "to": "topic" if to_topic else "group"},
    )  # fmt: skip


async def replay(context: PageContext, request: Request) -> Response:
    group = request.path_params["group"]
    chosen = set(form_of(request).get("letter", []))
    box = (await context.admin()).dead_letters
    letters = [letter for letter in await _newest(context, group) if letter.offset_id in chosen]
    if len(letters) < len(chosen):
        raise UsageError(
            f"{len(chosen) - len(letters)} of {len(chosen)} dead letters are not among the newest "
            f"{COUNT} any more; nothing was sent"
        )
    to_topic = field_of(request, "to") == "topic"
    sent = await box.send_again(group, letters, to_topic=to_topic)
    return context.done(
        f"/dead-letters/{segment(group)}", f"{sent.count} were sent again, to {sent.topic}."
    )
