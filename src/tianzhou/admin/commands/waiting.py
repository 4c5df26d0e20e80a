"""What timed messages and pending transactions have in common: each waits on a broker, is listed by
topic, and is named by either of its ids."""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import click

from tianzhou.admin.commands.failures import Failure, not_found

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

LOOKED_AT_MAX: Final = 10_000
"""Of each broker, when one is looked for by its id."""

of_topic = click.option("--topic", help="Only of this topic.")


def at_most(which: str) -> Callable[[F], F]:
    return click.option("--max", "count", default=100, show_default=True, type=click.IntRange(1),
                        help=f"The {which} of each broker.")  # fmt: skip


def named(command: F) -> F:
    """The one that is meant: by its id, and where very many wait, by its topic."""
    return click.argument("message_id")(of_topic(command))


def find(
    waiting: Iterable[T], facts: Callable[[T], dict[str, Any]], message_id: str, *, command: str
) -> T:
    """The one with this id. Raises Failure, which says where to look."""
    looked_at = 0
    for one in waiting:
        told = facts(one)
        if message_id in (told["message_id"], told["offset_id"]):
            return one
        looked_at += 1
    if looked_at >= LOOKED_AT_MAX:
        raise Failure(
            f"{message_id} is not among the {looked_at:,} that were looked at, and more wait; "
            "--topic looks only at those of its topic"
        )
    raise not_found(
        f"nothing with the id {message_id} waits; it may be delivered, or decided: "
        f"`tianzhou {command}`"
    )
