"""`tianzhou timer`: messages that wait for their moment."""

from typing import TYPE_CHECKING, Any

import click

from tianzhou.admin.commands import output
from tianzhou.admin.commands.failures import not_found
from tianzhou.admin.commands.session import Session, asking, watched

if TYPE_CHECKING:
    from tianzhou.client.aio.admin_timers import WaitingTimer

LOOKED_AT_MAX = 10_000


@click.group()
def timer() -> None:
    """Timed messages: list, cancel."""


@timer.command("list")
@click.option("--topic", help="Only for this topic.")
@click.option("--max", "count", default=100, show_default=True, type=click.IntRange(1),
              help="The soonest of each broker.")  # fmt: skip
@watched
def list_(session: Session, topic: str | None, count: int) -> None:
    """Show messages that wait for their moment, the soonest first."""

    def look() -> list[dict[str, Any]]:
        return [_facts(timer) for timer in session.admin.timers.all(topic=topic, count=count)]

    columns = {
        "at": "delivered at", "broker": "broker", "topic": "topic", "message_id": "message id",
        "stored": "stored",
    }  # fmt: skip
    session.show(
        look,
        lambda rows: output.listing(
            [
                row
                | {
                    "at": output.moment_text(row["deliver_ms"]),
                    "stored": output.moment_text(row["stored_ms"]),
                }
                for row in rows
            ],
            columns,
            "no message waits for its moment",
        ),
    )


def _facts(timer: "WaitingTimer") -> dict[str, Any]:
    message = timer.message
    return {
        "broker": timer.broker_name,
        "topic": message.topic,
        "message_id": message.msg_id,
        "offset_id": message.offset_msg_id,
        "deliver_ms": message.deliver_timestamp,
        "stored_ms": message.store_timestamp,
    }


@timer.command()
@click.argument("message_id")
@asking
def cancel(session: Session, message_id: str) -> None:
    """Take a message back before it is delivered."""
    for waiting in session.admin.timers.all(count=LOOKED_AT_MAX):
        if message_id in (waiting.message.msg_id, waiting.message.offset_msg_id):
            session.admin.timers.cancel(waiting)
            session.done(_facts(waiting), f"{message_id} will not be delivered")
            return
    raise not_found(f"{message_id} does not wait; it may be delivered: `tianzhou timer list`")
