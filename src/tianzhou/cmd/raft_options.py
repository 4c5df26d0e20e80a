"""Options of `tianzhou broker` for members of a Raft group."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from tianzhou.replication.raft_settings import RaftSettings

_OPTIONS: Final = (
    click.option("--raft-group", metavar="GROUP", help="Join this Raft group."),
    click.option("--raft-peers", metavar="PEERS",
                 help="List all members: n0=HOST:PORT;n1=HOST:PORT;n2=HOST:PORT."),
    click.option("--raft-id", metavar="ID", help="Set which of the peers this member is."),
    click.option(
        "--raft-new", is_flag=True, default=None,
        help="Create the group; use it only on the first start of its members.",
    ),
    click.option(
        "--raft-relaxed", is_flag=True, default=None,
        help="Acknowledge messages that a majority has in memory, not on disk.",
    ),
)  # fmt: skip


def options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def member_of(settings: "RaftSettings", given: Mapping[str, Any]) -> "RaftSettings | None":
    """The settings of a member, or None for a broker without a group. Raises UsageError if they
    are inconsistent."""
    from tianzhou.replication.raft_settings import check

    if not settings.raft_enabled and all(value is None for value in given.values()):
        return None
    check(settings)
    return settings
