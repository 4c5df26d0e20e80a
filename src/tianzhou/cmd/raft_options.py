"""Options of the commands that start a member of a Raft group. Each is also a setting."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_MEMBER: Final = (
    click.option(
        "--raft-peers",
        metavar="PEERS",
        help="List all members: n0=HOST:PORT;n1=HOST:PORT;n2=HOST:PORT.",
    ),
    click.option("--raft-id", metavar="ID", help="Set which of the peers this member is."),
    click.option(
        "--raft-new",
        is_flag=True,
        default=None,
        help="Create the group; use it only on the first start of its members.",
    ),
)
_BROKER: Final = (
    click.option("--raft-group", metavar="GROUP", help="Join this Raft group."),
    *_MEMBER,
    click.option(
        "--raft-witness",
        metavar="ID",
        help="Set which of the peers is the witness, started by `tianzhou witness`.",
    ),
    click.option(
        "--raft-relaxed",
        is_flag=True,
        default=None,
        help="Acknowledge messages that a majority has in memory, not on disk.",
    ),
)
_WITNESS: Final = (
    click.option("--raft-group", metavar="GROUP", help="Be the witness of this Raft group."),
    *_MEMBER,
)


def for_broker(command: Command) -> Command:
    return _with(command, _BROKER)


def for_witness(command: Command) -> Command:
    return _with(command, _WITNESS)


def _with(command: Command, options: tuple[Callable[[Command], Command], ...]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def name_of(setting: str) -> str:
    """The option for a setting, as errors name it."""
    return f"--{setting.replace('_', '-')}"
