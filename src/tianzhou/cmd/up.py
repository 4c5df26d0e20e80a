"""`tianzhou up`: NameServer and Broker in one process, nothing to configure."""

import shutil
import tempfile
from pathlib import Path

import click

from tianzhou.cmd import http as http_server
from tianzhou.cmd import logs
from tianzhou.cmd.ready_file import option as ready_file_option


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--nameserver-port", type=http_server.PORT_RANGE, default=9876, show_default=True,
              help="0 takes a free one.")  # fmt: skip
@click.option("--broker-port", type=http_server.PORT_RANGE, default=10911, show_default=True,
              help="0 takes a free one.")  # fmt: skip
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), default="tianzhou-data",
    show_default=True, help="Where messages are kept.",
)  # fmt: skip
@click.option("--ephemeral", is_flag=True, help="Keep messages in a temporary directory.")
@ready_file_option
@click.option("--sync-flush", is_flag=True, help="Acknowledge only what is on the medium.")
@click.option("--replicas", type=click.IntRange(1, 9), default=1, show_default=True,
              help="More than 1: a Raft group of so many brokers, each a process.")  # fmt: skip
@http_server.options
@logs.options
def up(
    host: str,
    nameserver_port: int,
    broker_port: int,
    data: Path,
    ephemeral: bool,
    ready_file: Path | None,
    sync_flush: bool,
    replicas: int,
    http: http_server.HttpOptions,
    log_json: bool,
    log_file: Path | None,
) -> None:
    """Start a NameServer and a Broker in one process, or a group of brokers beside it."""
    # Not above: who asks for help needs none of it.
    from tianzhou.admin.commands.credentials import from_environment
    from tianzhou.cmd import one_up, raft_up, serve
    from tianzhou.cmd.clock import SystemClock

    serve.prepare(as_json=log_json, log_file=log_file)
    pair = from_environment()
    can = (serve.OPEN_BROKER,) if pair else (serve.OPEN_BROKER, serve.OPEN_NAMES)
    serve.warn_if_exposed(host, "NameServer and Broker", *can)
    directory = Path(tempfile.mkdtemp(prefix="tianzhou-")) if ephemeral else data.resolve()
    serve.refuse_shared(directory)
    clock = SystemClock()
    wanted = raft_up.Wanted(
        host, nameserver_port, broker_port, directory, replicas, ready_file, http, pair
    )

    async def start() -> list[serve.Running]:
        if replicas > 1:
            return await raft_up.start(wanted, clock)
        return await one_up.start(wanted, clock, sync_flush=sync_flush)

    try:
        serve.run(start)
    finally:
        if ephemeral:
            shutil.rmtree(directory, ignore_errors=True)
