"""`tianzhou broker drain`: take a broker out of service without losing anything.

Write permission goes first, so that producers send elsewhere; then one watches until nobody writes
and every group has read everything.
"""

from collections.abc import Iterator
from time import monotonic, sleep
from typing import Final, NamedTuple

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tianzhou.base.errors import TianzhouError
from tianzhou.net.blocking import BlockingPeer
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.queues import decode_consume_stats
from tianzhou.wire.routes import decode_cluster_table
from tianzhou.wire.tables import decode_group_table, decode_kv_table

LOOK_S: Final = 1.0
READ_ONLY: Final = 4
READ_WRITE: Final = 6


class AdminFailed(TianzhouError):
    """A broker or NameServer refused what was asked."""


class Traffic(NamedTuple):
    """What still happens on a broker."""

    written_per_second: float
    lags: dict[str, int]
    """Messages that each group has not read yet, where there are any."""

    @property
    def is_safe(self) -> bool:
        return self.written_per_second == 0 and not self.lags


@click.command()
@click.argument("name", default="broker-a")
@click.option(
    "-n", "--nameserver", default="127.0.0.1:9876", show_default=True, help="A NameServer."
)
@click.option("--timeout", default=300.0, show_default=True, help="Seconds to wait at most.")
@click.option("--undo", is_flag=True, help="Allow writing again.")
def drain(name: str, nameserver: str, timeout: float, undo: bool) -> None:
    """Stop writes to the broker NAME and show what remains until it is safe to stop it."""
    address = _address_of(name, nameserver)
    with BlockingPeer(address) as peer:
        _set_permission(peer, READ_WRITE if undo else READ_ONLY)
        if undo:
            click.echo(f"{name} at {address} takes messages again")
            return
        click.echo(f"{name} at {address} takes no more messages; waiting until all are read")
        if not _watch(peer, timeout):
            click.echo("not drained in time; writes stay off: --undo allows them again", err=True)
            raise SystemExit(1)
    click.echo(f"safe to stop {name}")


def _watch(peer: BlockingPeer, timeout_s: float) -> bool:
    deadline = monotonic() + timeout_s
    with Live(console=Console(stderr=True), transient=True) as live:
        for traffic in _looks(peer):
            live.update(_table(traffic))
            if traffic.is_safe:
                return True
            if monotonic() > deadline:
                return False
    return False


def _looks(peer: BlockingPeer) -> Iterator[Traffic]:
    while True:
        yield _traffic(peer)
        sleep(LOOK_S)


def _traffic(peer: BlockingPeer) -> Traffic:
    info = decode_kv_table(_asked(peer, RequestCode.GET_BROKER_RUNTIME_INFO)).table
    rate = float(info.get("putTps", "0").split(" ")[0] or 0)
    groups = decode_group_table(_asked(peer, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    lags: dict[str, int] = {}
    for group in groups.subscription_group_table:
        ext = {"consumerGroup": group}
        stats = decode_consume_stats(_asked(peer, RequestCode.GET_CONSUME_STATS, ext))
        rows = stats.offset_table.values()
        lag = sum(max(row.broker_offset - row.consumer_offset, 0) for row in rows)
        if lag:
            lags[group] = lag
    return Traffic(rate, lags)


def _table(traffic: Traffic) -> Table:
    table = Table("what", "remaining")
    table.add_row("messages written per second", f"{traffic.written_per_second:.1f}")
    for group, lag in sorted(traffic.lags.items()):
        table.add_row(f"unread by group {group}", str(lag))
    return table


def _set_permission(peer: BlockingPeer, bits: int) -> None:
    _asked(peer, RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=%d\n" % bits)


def _address_of(name: str, nameserver: str) -> str:
    with BlockingPeer(nameserver) as peer:
        table = decode_cluster_table(_asked(peer, RequestCode.GET_BROKER_CLUSTER_INFO))
    found = table.broker_addr_table.get(name)
    if found is None or 0 not in found.broker_addrs:
        known = ", ".join(sorted(table.broker_addr_table)) or "none"
        raise AdminFailed(f"no broker {name} at NameServer {nameserver}; it knows: {known}")
    return found.broker_addrs[0]


def _asked(
    peer: BlockingPeer, code: int, ext: dict[str, str] | None = None, body: bytes = b""
) -> bytes:
    header, data = peer.call(code, ext, body)
    if header.code != 0:
        raise AdminFailed(f"request {code} was refused: {header.remark} (code {header.code})")
    return data
