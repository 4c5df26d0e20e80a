"""`tianzhou up`: a NameServer and a Broker in one process, without configuration."""

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from tianzhou.cmd import http as http_server
from tianzhou.cmd import logs, server_settings
from tianzhou.cmd.ready_file import option as ready_file_option

SETTINGS: Final = {"host": "host", "nameserver_port": "listen_port", "broker_port": "port"}
"""Options that are also settings. The options take precedence."""


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Listen on this address.",
)
@click.option(
    "--nameserver-port",
    type=http_server.PORT_RANGE,
    default=9876,
    show_default=True,
    help="Set the port of the NameServer; 0 for any free one.",
)
@click.option(
    "--broker-port",
    type=http_server.PORT_RANGE,
    default=10911,
    show_default=True,
    help="Set the port of the Broker; 0 for any free one.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default="tianzhou-data",
    show_default=True,
    help="Store messages in this directory.",
)
@click.option("--ephemeral", is_flag=True, help="Store messages in a temporary directory.")
@server_settings.options("TOML, or a RocketMQ broker.conf")
@ready_file_option
@click.option("--sync-flush", is_flag=True, help="Acknowledge messages only when they are on disk.")
@click.option(
    "--replicas",
    type=click.IntRange(1, 9),
    default=1,
    show_default=True,
    metavar="COUNT",
    help="Start a Raft group of COUNT brokers, one process each.",
)
@click.option(
    "--witness",
    is_flag=True,
    help="Add a witness to the group, so that one of two brokers takes over by itself.",
)
@http_server.options
@logs.options
@click.pass_context
def up(
    ctx: click.Context,
    *,
    data: Path,
    ephemeral: bool,
    sources: server_settings.Sources,
    ready_file: Path | None,
    sync_flush: bool,
    replicas: int,
    witness: bool,
    http: http_server.HttpOptions,
    log_json: bool,
    log_file: Path | None,
    **ports: Any,
) -> None:
    """Start a NameServer with a Broker in one process, or with a Raft group of brokers."""
    # Imported here because `--help` needs none of it.
    from tianzhou.cmd import one_up, raft_up, serve, up_settings
    from tianzhou.cmd.clock import SystemClock

    if ephemeral and _is_said(ctx, "data"):
        raise click.UsageError("--ephemeral stores nothing in --data; pass only one of them")
    if witness and replicas < 2:
        raise click.UsageError("--witness votes between brokers; add --replicas 2")
    serve.prepare(as_json=log_json, log_file=log_file)
    said = {SETTINGS[name]: value for name, value in ports.items() if _is_said(ctx, name)}
    if sync_flush:
        said["flush_mode"] = "SYNC_FLUSH"
    settings = up_settings.read(sources, said, replicas)
    can = (
        (serve.OPEN_BROKER,)
        if settings.broker.cluster_credentials
        else (
            serve.OPEN_BROKER,
            serve.OPEN_NAMES,
        )
    )
    serve.warn_if_exposed(settings.broker.host, "NameServer and Broker", *can)
    if settings.directory is not None and not _is_said(ctx, "data"):
        data = settings.directory
    directory = Path(tempfile.mkdtemp(prefix="tianzhou-")) if ephemeral else data.resolve()
    serve.refuse_shared(directory)
    options = up_settings.UpOptions(directory, replicas, ready_file, http, witness)
    clock = SystemClock()

    async def start() -> list[serve.Running]:
        if replicas > 1:
            return await raft_up.start(settings, options, clock)
        return await one_up.start(settings, options, clock)

    try:
        serve.run(start)
    finally:
        if ephemeral:
            shutil.rmtree(directory, ignore_errors=True)


def _is_said(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
