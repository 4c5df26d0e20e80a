"""Manage a running broker: `tianzhou broker acknowledge`, `clean`, `config`, `drain`, `forget`."""

from contextlib import nullcontext
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

import click

from tianzhou.admin.commands import output
from tianzhou.admin.commands.failures import Failure, not_found
from tianzhou.admin.commands.session import Session, asking, force
from tianzhou.base.settings import masked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType
    from rich.table import Table

    from tianzhou.client.core.admin_results import Traffic
    from tianzhou.wire.admin_bodies import CleaningView

POLL_S: Final = 1.0
"""Seconds between two checks of a broker that is drained."""


@click.command()
@click.argument("name", required=False)
@asking
def acknowledge(session: Session, name: str | None) -> None:
    """Close the incidents that broker NAME and its slaves reported when they started.

    For a broker that is stopped: tianzhou store acknowledge DIRECTORY.
    """
    name = session.broker(name)
    closed = session.admin.brokers.acknowledge(name)
    texts = [f"{address}: {text}" for address, found in closed.items() for text in found]
    said = "\n".join(f"acknowledged: {text}" for text in texts) or (
        f"{name} has no incidents to acknowledge"
    )
    session.done({"broker": name, "acknowledged": closed}, said)


@click.command()
@click.argument("name", required=False)
@click.option(
    "--keep",
    "keep_hours",
    type=click.IntRange(0),
    metavar="HOURS",
    help="Keep the messages of the last HOURS; default: those within the retention.",
)
@force
@asking
def clean(session: Session, *, name: str | None, keep_hours: int | None, yes: bool) -> None:
    """Remove expired log files and unused topics of broker NAME now.

    Shows what would be removed at the broker and its replicas, then prompts. Settings do not
    change. Files that a delayed message or a replica still needs stay.
    """
    name = session.broker(name)
    found = session.admin.brokers.cleaning(name, keep_hours=keep_hours)
    if not session.as_json:
        output.show(_cleaning_table(name, found))
    if all(view.is_empty for view in found.values()):
        facts = _cleaning_facts(name, found, is_removed=False)
        session.done(facts, f"nothing to remove on {name}")
        return
    files = sum(view.files for view in found.values())
    hours = next(iter(found.values())).keep_hours
    session.confirm(
        f"remove {files} log files of {name} and keep the messages of the last {hours} hours?",
        yes=yes,
    )
    from tianzhou.client.core.views import size_text

    with session.busy("until the files are removed"):
        removed = session.admin.brokers.clean(name, keep_hours=keep_hours)
    size = size_text(sum(view.size for view in removed.values()))
    files = sum(view.files for view in removed.values())
    session.done(
        _cleaning_facts(name, removed, is_removed=True), f"removed {files} log files, {size}"
    )


def _cleaning_table(name: str, found: "Mapping[str, CleaningView]") -> "RenderableType":
    from tianzhou.client.core.views import size_text

    rows = [
        (
            address,
            view.files,
            size_text(view.size),
            output.time_text(view.oldest_ms) or "none",
            f"{view.held}: {view.held_because}" if view.held else "",
        )
        for address, view in found.items()
    ]
    columns = ("broker", "log files", "size", "oldest message afterwards", "older files that stay")
    table = output.table(columns, rows, title=f"to be removed on {name}")
    topics = next(iter(found.values())).unused_topics
    if not topics:
        return table
    return output.stack(table, output.sentence(f"unused topics: {', '.join(topics)}"))


def _cleaning_facts(
    name: str, found: "Mapping[str, CleaningView]", *, is_removed: bool
) -> dict[str, Any]:
    views = {
        address: {
            "files": view.files,
            "size": view.size,
            "oldest_ms": view.oldest_ms if view.oldest_ms > 0 else None,
            "held": view.held,
            "held_because": view.held_because,
            "unused_topics": list(view.unused_topics),
        }
        for address, view in found.items()
    }
    keep_hours = next(iter(found.values())).keep_hours
    return {"broker": name, "keep_hours": keep_hours, "removed": is_removed, "brokers": views}


@click.command()
@click.argument("name", required=False)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a setting of the running broker until it restarts; repeatable.",
)
@click.option(
    "--members",
    is_flag=True,
    help="Change the setting in the slaves or Raft followers of NAME, too.",
)
@click.option(
    "--like", default="", metavar="TEXT", help="Show only settings whose name contains TEXT."
)
@asking
def config(
    session: Session, *, name: str | None, changes: tuple[str, ...], members: bool, like: str
) -> None:
    """Show or change the settings of broker NAME, under RocketMQ's names."""
    pairs = [change.partition("=") for change in changes]
    wrong = [change for change, pair in zip(changes, pairs, strict=True) if not pair[1]]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} must be NAME=VALUE", param_hint="--set")
    if members and not changes:
        raise click.UsageError("--members needs --set")
    name = session.broker(name)
    wanted = {key.strip(): value.strip() for key, _, value in pairs}
    if wanted:
        session.admin.brokers.configure(name, wanted, members=members)
    found = session.admin.brokers.config(name)
    if wanted:
        now = {key: found.get(key, value) for key, value in wanted.items()}
        told = ", ".join(f"{key}={value}" for key, value in now.items())
        session.done(now, f"{name} runs with {told} until it restarts")
        return
    shown = {
        key: masked(key, value)
        for key, value in sorted(found.items())
        if like.lower() in key.lower()
    }
    if not shown:
        raise not_found(f"no setting of {name} contains {like!r}; omit --like to list all settings")
    session.show(lambda: shown, output.pairs)


@click.command()
@click.argument("name")
@asking
def forget(session: Session, name: str) -> None:
    """Stop reporting the missing broker NAME after it was retired."""
    from tianzhou.client.errors import BrokerNotFound

    try:
        session.admin.brokers.forget(name)
    except BrokerNotFound:
        raise not_found(
            f"no NameServer reports broker {name!r} as missing; `tianzhou cluster` lists all "
            "brokers, including missing ones"
        ) from None
    session.done({"broker": name, "forgotten": True}, f"{name} is no longer reported as missing")


@click.command()
@click.argument("name", required=False)
@click.option(
    "--timeout", default=300.0, show_default=True, metavar="SECONDS", help="Wait at most SECONDS."
)
@click.option("--undo", is_flag=True, help="Allow writes again.")
@asking
def drain(session: Session, name: str | None, timeout: float, undo: bool) -> None:
    """Stop writes to broker NAME and wait until it is safe to stop.

    Producers switch to other brokers when this one loses its write permission. Exits with code 1
    if messages are still unread after the timeout.
    """
    name = session.broker(name)
    if undo:
        address = session.admin.brokers.allow_writes(name)
        facts: dict[str, Any] = {"broker": name, "address": address, "takes_messages": True}
        session.done(facts, f"{name} at {address} accepts messages again")
        return
    address = session.admin.brokers.stop_writes(name)
    if not session.as_json:
        click.echo(f"{name} at {address} rejects new messages; waiting until all are read")
    traffic = _watch(session, name, timeout)
    facts = {
        "broker": name,
        "address": address,
        "takes_messages": False,
        "drained": traffic.is_safe,
        "unread": dict(traffic.lags),
        "written_per_second": traffic.put_per_second,
    }
    if traffic.is_safe:
        session.done(facts, f"safe to stop {name}")
        return
    if session.as_json:
        output.echo_json(facts)
    raise Failure(
        f"{name} is not drained after {timeout:g} s: {_remaining(traffic)}; it still accepts no "
        f"messages: wait with another `tianzhou broker drain {name}`, or allow writes again with "
        "--undo"
    )


def _remaining(traffic: "Traffic") -> str:
    """The reasons why the broker cannot be stopped yet."""
    left = [
        f"group {group} has {lag:,} messages left to read"
        for group, lag in sorted(traffic.lags.items())
    ]
    if traffic.put_per_second:
        left.append(f"{traffic.put_per_second:,.1f} messages a second are still written")
    return ", ".join(left)


def _watch(session: Session, name: str, timeout_s: float) -> "Traffic":
    """Wait until nothing is left, or the timeout; return what remains."""
    from rich.live import Live

    deadline = monotonic() + timeout_s
    live = Live(console=output.console(err=True), transient=True)
    with nullcontext() if session.as_json else live:
        while True:
            traffic = session.admin.brokers.traffic(name)
            if not session.as_json:
                live.update(_table(traffic))
            if traffic.is_safe or monotonic() > deadline:
                return traffic
            sleep(POLL_S)


def _table(traffic: "Traffic") -> "Table":
    rows: list[tuple[str, object]] = [("messages written per second", traffic.put_per_second)]
    rows += [(f"unread by group {group}", lag) for group, lag in sorted(traffic.lags.items())]
    return output.table(("item", "remaining"), rows)
