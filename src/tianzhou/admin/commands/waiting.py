"""Options shared by scheduled messages and transactions: both are listed by topic and selected by
either of their ids."""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import click

from tianzhou.admin.commands.failures import Failure, not_found

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

LOOKED_AT_MAX: Final = 10_000
"""The number of rows searched on each broker for an id."""

of_topic = click.option("--topic", help="Select only messages of this topic.")


def at_most(which: str) -> Callable[[F], F]:
    return click.option(
        "--max",
        "count",
        default=100,
        show_default=True,
        type=click.IntRange(1),
        metavar="COUNT",
        help=f"Show at most COUNT per broker, the {which} ones.",
    )


def named(command: F) -> F:
    """Add the argument MESSAGE_ID and the option --topic, which narrows a long search."""
    return click.argument("message_id")(of_topic(command))


def find(
    waiting: Iterable[T], facts: Callable[[T], dict[str, Any]], message_id: str, *, command: str
) -> T:
    """The row with this id. Raises Failure with the command that lists all rows."""
    looked_at = 0
    for one in waiting:
        told = facts(one)
        if message_id in (told["message_id"], told["offset_id"]):
            return one
        looked_at += 1
    if looked_at >= LOOKED_AT_MAX:
        raise Failure(
            f"{message_id} is not among the first {looked_at:,}, and there are more; narrow the "
            "search with --topic"
        )
    raise not_found(
        f"no waiting message has the id {message_id}; it may be delivered or decided already; "
        f"list with `tianzhou {command}`"
    )
