"""`tianzhou message`: find, show and trace messages."""

from typing import TYPE_CHECKING, Any

import click

from tianzhou.admin.commands import message_facts, output, queues
from tianzhou.admin.commands.failures import not_found
from tianzhou.admin.commands.session import Session, asking, topic_name
from tianzhou.admin.commands.times import parse_time
from tianzhou.wire.names import TRACE_TOPIC

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tianzhou.client.core.trace import TraceRecord
    from tianzhou.record.message import MessageView


@click.group()
def message() -> None:
    """Find, show and trace messages."""


@message.command()
@topic_name
@click.option(
    "--id", "message_id", help="Find by message id, either the unique id or the offset id."
)
@click.option("--unique-id", help="Find all messages with this unique id.")
@click.option("--key", help="Find by key.")
@click.option(
    "--from",
    "begin_ms",
    type=parse_time,
    metavar="TIME",
    help="Find messages stored at or after TIME.",
)
@click.option(
    "--to",
    "end_ms",
    type=parse_time,
    metavar="TIME",
    help="Find messages stored before TIME; default: now.",
)
@click.option(
    "--max",
    "count",
    default=32,
    show_default=True,
    type=click.IntRange(1),
    metavar="COUNT",
    help="Show at most COUNT per broker or queue.",
)
@asking
def find(
    session: Session,
    *,
    topic: str,
    message_id: str | None,
    unique_id: str | None,
    key: str | None,
    begin_ms: int | None,
    end_ms: int | None,
    count: int,
) -> None:
    """Find messages of a topic by id, key or time. Exits with code 4 if there are none."""
    named = [option is not None for option in (message_id, unique_id, key)]
    if sum(named) > 1 or not (any(named) or begin_ms is not None):
        raise click.UsageError(
            "pass exactly one of --id, --unique-id and --key, or a time with --from"
        )
    messages = session.admin.messages
    found: list[MessageView]
    if message_id is not None:
        one = messages.by_id(topic, message_id)
        found = [] if one is None else [one]
    elif unique_id is not None:
        found = messages.by_unique_id(topic, unique_id)
    else:
        until = _now() if end_ms is None else end_ms
        if begin_ms is not None and begin_ms >= until:
            raise click.UsageError(
                f"--from ({output.time_text(begin_ms)}) must be before --to "
                f"({output.time_text(until)})"
            )
        if key is not None:
            found = messages.by_key(topic, key, begin_ms=begin_ms or 0, end_ms=until, count=count)
        else:
            assert begin_ms is not None
            found = messages.between(topic, begin_ms=begin_ms, end_ms=until, count=count)
    session.show(lambda: message_facts.rows(found), message_facts.view_rows)
    if not found:
        raise SystemExit(4)


def _now() -> int:
    """A minute ahead, because clocks differ and the newest messages must be included."""
    return click.get_current_context().find_root().obj.now_ms() + 60_000


@message.command()
@topic_name
@click.argument("message_id", required=False)
@queues.queue_id
@queues.broker
@click.option(
    "--offset",
    type=click.IntRange(0),
    metavar="OFFSET",
    help="Show the message at OFFSET of --queue, instead of MESSAGE_ID.",
)
@asking
def show(
    session: Session,
    *,
    topic: str,
    message_id: str | None,
    queue_id: int | None,
    broker: str | None,
    offset: int | None,
) -> None:
    """Show one message, by either of its ids, or by --queue and --offset."""
    if (message_id is None) == (offset is None) or (offset is None) != (queue_id is None):
        raise click.UsageError("pass MESSAGE_ID, or --queue and --offset")
    found: MessageView | None
    if offset is not None and queue_id is not None:
        found = queues.message_at(session, queues.one(session, topic, queue_id, broker), offset)
    else:
        found = session.admin.messages.by_id(topic, str(message_id))
        if found is None:
            raise not_found(
                f"topic {topic} has no message {message_id}; it may have expired, "
                "or belong to another topic"
            )
    session.show(lambda: message_facts.facts_of(found), message_facts.view_one)


@message.command()
@click.argument("message_id")
@click.option(
    "--trace-topic", default=TRACE_TOPIC, show_default=True, help="Read traces from this topic."
)
@asking
def trace(session: Session, message_id: str, trace_topic: str) -> None:
    """Show which clients sent and consumed a message, if they have tracing enabled."""
    found = session.admin.messages.trace(message_id, topic=trace_topic)
    if not found:
        raise not_found(f"no trace of {message_id}; enable tracing in clients with trace=True")
    session.show(lambda: [_step(record) for record in found], _view)


def _step(record: "TraceRecord") -> dict[str, Any]:
    from dataclasses import asdict

    return {"what": type(record).__name__, **asdict(record)}


def _view(steps: list[dict[str, Any]]) -> "RenderableType":
    return output.table(
        ("time", "event", "group", "topic", "ms", "ok"),
        [
            (
                output.time_text(step["timestamp_ms"]),
                step["what"],
                step["group"],
                step.get("topic"),
                step.get("cost_ms"),
                step.get("is_success", True),
            )
            for step in steps
        ],
    )
