"""Options of `tianzhou broker` for members of a Raft group."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from tianzhou.replication.raft_settings import RaftSettings

_OPTIONS: Final = (
    click.option("--raft-group", help="Be a member of this group, which elects its own master."),
    click.option("--raft-peers", help="All members: n0=host:port;n1=host:port;n2=host:port"),
    click.option("--raft-id", help="Which of the peers this one is."),
    click.option(
        "--raft-new", is_flag=True, default=None,
        help="The group is being created now: say it on the first start of its members, once.",
    ),
    click.option(
        "--raft-relaxed", is_flag=True, default=None,
        help="Acknowledge what a majority has in memory, not on disk.",
    ),
)  # fmt: skip


def options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def member_of(settings: "RaftSettings", given: Mapping[str, Any]) -> "RaftSettings | None":
    """The settings of a member, or None for a broker by itself. Raises UsageError if they can't
    work."""
    from tianzhou.replication.raft_settings import check

    if not settings.raft_enabled and all(value is None for value in given.values()):
        return None
    check(settings)
    return settings
