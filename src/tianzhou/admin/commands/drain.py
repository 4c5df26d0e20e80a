"""`tianzhou broker drain`: take a broker out of service without losing anything.

Write permission goes first, so that producers send elsewhere; then one watches until nobody writes
and every group has read everything.
"""

from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tianzhou.admin.commands.session import nameserver

if TYPE_CHECKING:
    from tianzhou.client.core.admin_results import Traffic
    from tianzhou.client.sync.admin import Admin

LOOK_S: Final = 1.0


@click.command()
@click.argument("name", default="broker-a")
@nameserver
@click.option("--timeout", default=300.0, show_default=True, help="Seconds to wait at most.")
@click.option("--undo", is_flag=True, help="Allow writing again.")
def drain(name: str, nameserver: str, timeout: float, undo: bool) -> None:
    """Stop writes to the broker NAME and show what remains until it is safe to stop it."""
    # Not above: this module is loaded whenever a broker starts, which needs no client.
    from tianzhou.client.sync.admin import Admin

    with Admin(nameserver=nameserver) as admin:
        if undo:
            address = admin.brokers.allow_writes(name)
            click.echo(f"{name} at {address} takes messages again")
            return
        address = admin.brokers.stop_writes(name)
        click.echo(f"{name} at {address} takes no more messages; waiting until all are read")
        if not _watch(admin, name, timeout):
            click.echo("not drained in time; writes stay off: --undo allows them again", err=True)
            raise SystemExit(1)
    click.echo(f"safe to stop {name}")


def _watch(admin: "Admin", name: str, timeout_s: float) -> bool:
    deadline = monotonic() + timeout_s
    with Live(console=Console(stderr=True), transient=True) as live:
        while True:
            traffic = admin.brokers.traffic(name)
            live.update(_table(traffic))
            if traffic.is_safe or monotonic() > deadline:
                return traffic.is_safe
            sleep(LOOK_S)


def _table(traffic: "Traffic") -> Table:
    table = Table("what", "remaining")
    table.add_row("messages written per second", f"{traffic.put_per_second:.1f}")
    for group, lag in sorted(traffic.lags.items()):
        table.add_row(f"unread by group {group}", str(lag))
    return table
