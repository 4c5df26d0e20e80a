"""`tianzhou scheduled`: messages with a delivery time in the future."""

from typing import TYPE_CHECKING, Any, Final

import click

from tianzhou.admin.commands import output, waiting
from tianzhou.admin.commands.session import Session, asking, watched

if TYPE_CHECKING:
    from tianzhou.client.admin.timers import WaitingTimer

COLUMNS: Final = {
    "deliver_ms": "delivery at",
    "broker": "broker",
    "topic": "topic",
    "message_id": "message id",
    "stored_ms": "stored",
}


@click.group()
def scheduled() -> None:
    """List and cancel scheduled messages."""


@scheduled.command("list")
@waiting.of_topic
@waiting.at_most("next")
@watched
def list_(session: Session, topic: str | None, count: int) -> None:
    """List scheduled messages, the next one first."""
    session.show(
        lambda: [_facts(one) for one in session.admin.timers.all(topic=topic, count=count)],
        lambda rows: output.listing(
            rows, COLUMNS, "no scheduled messages", times=("deliver_ms", "stored_ms")
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


@scheduled.command()
@waiting.named
@asking
def cancel(session: Session, message_id: str, topic: str | None) -> None:
    """Cancel a scheduled message before it is delivered."""
    timers = session.admin.timers
    found = waiting.find(
        timers.all(topic=topic, count=waiting.LOOKED_AT_MAX),
        _facts,
        message_id,
        command="scheduled list",
    )
    timers.cancel(found)
    session.done(_facts(found), f"{message_id} will not be delivered")
