"""`tianzhou broker drain`: take a broker out of service without losing messages.

The broker loses its write permission first, so that producers use other brokers. Then the command
waits until writes have stopped and every group has read everything.
"""

from contextlib import nullcontext
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

import click

from tianzhou.admin.commands import output
from tianzhou.admin.commands.failures import Failure
from tianzhou.admin.commands.session import Session, asking

if TYPE_CHECKING:
    from rich.table import Table

    from tianzhou.client.core.admin_results import Traffic

LOOK_S: Final = 1.0


@click.command()
@click.argument("name", required=False)
@click.option(
    "--timeout", default=300.0, show_default=True, metavar="SECONDS", help="Wait at most SECONDS."
)
@click.option("--undo", is_flag=True, help="Allow writes again.")
@asking
def drain(session: Session, name: str | None, timeout: float, undo: bool) -> None:
    """Stop writes to broker NAME and wait until it is safe to stop.

    Exits with code 1 if messages are still unread after the timeout.
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
    facts = {"broker": name, "address": address, "takes_messages": False,
             "drained": traffic.is_safe, "unread": dict(traffic.lags),
             "written_per_second": traffic.put_per_second}  # fmt: skip
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
    left = [f"group {group} has {lag:,} messages left to read"
            for group, lag in sorted(traffic.lags.items())]  # fmt: skip
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
            sleep(LOOK_S)


def _table(traffic: "Traffic") -> "Table":
    rows: list[tuple[str, object]] = [("messages written per second", traffic.put_per_second)]
    rows += [(f"unread by group {group}", lag) for group, lag in sorted(traffic.lags.items())]
    return output.table(("item", "remaining"), rows)
