"""Messages: found by id, key or time; one of them with its payload; and its trace."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from tianzhou.base.errors import UsageError
from tianzhou.client.admin.messages import ALWAYS_MS
from tianzhou.client.core.trace import ConsumeBegun, ConsumeEnded, Published, TraceRecord
from tianzhou.client.errors import TopicNotFound
from tianzhou.dashboard.exports import csv_response
from tianzhou.dashboard.moments import moment_ms
from tianzhou.dashboard.page_context import PageContext
from tianzhou.dashboard.payload import payload_of, preview
from tianzhou.record.message import MessageView
from tianzhou.wire._generated_headers_admin import ViewMessagesRequest

KINDS: Final = {"id": "message id", "key": "key", "time": "time", "place": "queue and offset"}
COUNT: Final = 64
TOPICS_MAX: Final = 1_000
"""Names that a field offers."""


async def search(context: PageContext, request: Request) -> Response:
    asked = request.query_params
    kind, topic = asked.get("by", "key"), asked.get("topic", "").strip()
    admin = await context.admin()
    wanted = _wanted(request) if topic else None
    broker = asked.get("broker", "").strip() if kind == "place" else ""
    found, looked = (
        await admin.views.messages(wanted, broker=broker or None) if wanted else (None, None)
    )
    is_newest = wanted is not None and wanted.by == "newest"
    if found and is_newest:
        found.reverse()
    # The NameServer knows them, so that the broker is asked for messages alone.
    names = [name for name in await admin.topics.all(internal=True) if not name.startswith("%")]
    return context.show(
        request,
        "messages.html",
        nav="messages",
        title="Messages",
        by=kind,
        kinds=KINDS,
        topic=topic,
        topics=names[:TOPICS_MAX],
        asked=dict(asked),
        count=COUNT,
        is_newest=is_newest,
        missing=looked.missing if looked else {},
        messages=None if found is None else [(message, preview(message.body)) for message in found],
    )


async def exported(context: PageContext, request: Request) -> Response:
    wanted = _wanted(request)
    found = (await (await context.admin()).views.messages(wanted))[0] if wanted else []
    titles = ("topic", "queue", "offset", "message_id", "stored_ms", "tag", "keys", "body")
    return csv_response(
        "messages",
        titles,
        (
            (
                m.topic,
                m.queue_id,
                m.queue_offset,
                m.message_id,
                m.store_timestamp,
                m.tags or "",
                " ".join(m.keys),
                preview(m.body),
            )
            for m in found
        ),
    )


def _wanted(request: Request) -> ViewMessagesRequest | None:
    """What the form asks for; None: it is not filled in."""
    asked = request.query_params
    kind, topic = asked.get("by", "key"), asked.get("topic", "").strip()
    word = asked.get("word", "").strip()
    if kind == "time":
        return _wanted_of_time(topic, asked.get("from", ""), asked.get("to", ""))
    if kind == "place":
        queue, offset = asked.get("queue", "").strip(), asked.get("at", "").strip()
        if not queue.isdecimal() or not offset.isdecimal():
            raise UsageError(f"queue {queue!r} and offset {offset!r} must be numbers")
        return ViewMessagesRequest(
            topic=topic, by="place", count=1, queue_id=int(queue), offset=int(offset)
        )
    if kind not in KINDS:
        raise UsageError(f"{kind!r} must be one of {', '.join(KINDS)}")
    return ViewMessagesRequest(topic=topic, by=kind, count=COUNT, word=word) if word else None


def _wanted_of_time(topic: str, first: str, last: str) -> ViewMessagesRequest:
    """From a time on; without one, the newest."""
    end_ms = moment_ms(last) + 1 if last else ALWAYS_MS
    if not first:
        return ViewMessagesRequest(topic=topic, by="newest", count=COUNT, end_timestamp_ms=end_ms)
    begin_ms = moment_ms(first)
    if begin_ms >= end_ms:
        raise UsageError("the start time must be before the end time")
    return ViewMessagesRequest(
        topic=topic, by="time", count=COUNT, begin_timestamp_ms=begin_ms, end_timestamp_ms=end_ms
    )


async def _one(context: PageContext, request: Request) -> MessageView:
    topic, message_id = request.path_params["topic"], request.path_params["id"]
    wanted = ViewMessagesRequest(topic=topic, by="id", count=1, word=message_id)
    found, _ = await (await context.admin()).views.messages(wanted)
    if not found:
        raise UsageError(f"topic {topic} has no message {message_id}; it may have expired")
    return found[0]


async def show(context: PageContext, request: Request) -> Response:
    message = await _one(context, request)
    return context.show(
        request,
        "message.html",
        nav="messages",
        title="Message",
        message=message,
        payload=payload_of(message.body),
        own=message.user_properties,
        system=message.system_properties,
        view=request.query_params.get("view", ""),
    )


async def body(context: PageContext, request: Request) -> Response:
    """Serve the body as a download, never as a page, because it is untrusted."""
    message = await _one(context, request)
    name = "".join(char for char in message.message_id if char.isalnum())
    headers = {"Content-Disposition": f'attachment; filename="{name}.bin"'}
    return Response(message.body, media_type="application/octet-stream", headers=headers)


# Trace


async def trace(context: PageContext, request: Request) -> Response:
    message_id = request.query_params.get("id", "").strip()
    records: list[TraceRecord] = []
    if message_id:
        try:
            records = await (await context.admin()).messages.trace(message_id)
        except TopicNotFound:
            records = []  # no client has written a trace yet
    return context.show(
        request,
        "trace.html",
        nav="messages",
        title="Trace",
        id=message_id,
        lanes=lanes(records),
        records=len(records),
    )


def lanes(records: list[TraceRecord]) -> list[dict[str, Any]]:
    """A bar for each step, on a line from the first to the last time; in parts of
    a thousand, because a page has no styles of its own."""
    bars = [bar for record in records if (bar := _bar(record, records)) is not None]
    if not bars:
        return []
    start = min(bar["at_ms"] for bar in bars)
    span = max(max(bar["at_ms"] + bar["cost_ms"] for bar in bars) - start, 1)
    for bar in bars:
        bar["x"] = round((bar["at_ms"] - start) * 1000 / span)
        bar["width"] = max(round(bar["cost_ms"] * 1000 / span), 4)
        bar["after_ms"] = bar["at_ms"] - start
    return sorted(bars, key=lambda bar: (bar["at_ms"], bar["what"] != "sent"))


def _bar(record: TraceRecord, records: list[TraceRecord]) -> dict[str, Any] | None:
    made: dict[str, Any] = {"group": record.group, "cost_ms": 0, "is_success": True, "note": ""}
    match record:
        case Published():
            made |= {"what": "sent", "at_ms": record.timestamp_ms, "cost_ms": record.cost_ms}
            made |= {"is_success": record.is_success, "note": f"to {record.topic}"}
        case ConsumeBegun():
            ends = (
                r
                for r in records
                if isinstance(r, ConsumeEnded) and r.request_id == record.request_id
            )
            end = next(ends, None)
            again = f"try {record.retry_times + 1}" if record.retry_times else ""
            made |= {"what": "consumed", "at_ms": record.timestamp_ms, "note": again}
            if end is None:
                made |= {"note": "the end was not reported", "is_success": False}
            else:
                made |= {"cost_ms": end.cost_ms, "is_success": end.is_success}
        case ConsumeEnded():
            return None  # it is the end of a bar
        case _:
            what = "transaction" if hasattr(record, "state") else "recalled"
            made |= {"what": what, "at_ms": record.timestamp_ms}
            made |= {"note": str(getattr(record, "state", "")).lower().replace("_message", "")}
    return made
