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


def settings_of(
    values: Mapping[str, object], given: Mapping[str, Any]
) -> tuple["RaftSettings | None", list[str]]:
    """The settings of a member, or None for a broker by itself; and the names that are none of
    theirs. Raises UsageError if they can't work."""
    from tianzhou.base.settings import load
    from tianzhou.replication.raft_settings import RaftSettings, check

    said = {name: value for name, value in given.items() if value is not None}
    settings, unknown = load(RaftSettings, {**values, **said})
    if not settings.raft_enabled and not said:
        return None, unknown
    check(settings)
    return settings, unknown
