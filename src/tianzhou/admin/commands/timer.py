"""`tianzhou timer`: messages that wait for their moment."""

from typing import TYPE_CHECKING, Any, Final

import click

from tianzhou.admin.commands import output, waiting
from tianzhou.admin.commands.session import Session, asking, watched

if TYPE_CHECKING:
    from tianzhou.client.aio.admin_timers import WaitingTimer

COLUMNS: Final = {
    "deliver_ms": "delivered at", "broker": "broker", "topic": "topic", "message_id": "message id",
    "stored_ms": "stored",
}  # fmt: skip


@click.group()
def timer() -> None:
    """Timed messages: list, cancel."""


@timer.command("list")
@waiting.of_topic
@waiting.at_most("soonest")
@watched
def list_(session: Session, topic: str | None, count: int) -> None:
    """Show messages that wait for their moment, the soonest first."""
    session.show(
        lambda: [_facts(one) for one in session.admin.timers.all(topic=topic, count=count)],
        lambda rows: output.listing(
            rows, COLUMNS, "no message waits for its moment", moments=("deliver_ms", "stored_ms")
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
@waiting.named
@asking
def cancel(session: Session, message_id: str, topic: str | None) -> None:
    """Take a message back before it is delivered."""
    timers = session.admin.timers
    found = waiting.find(
        timers.all(topic=topic, count=waiting.LOOKED_AT_MAX),
        _facts,
        message_id,
        command="timer list",
    )
    timers.cancel(found)
    session.done(_facts(found), f"{message_id} will not be delivered")
