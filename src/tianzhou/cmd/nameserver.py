"""`tianzhou nameserver`: start a NameServer."""

import os
from dataclasses import replace
from pathlib import Path

import click

from tianzhou.cmd import logs, server_settings
from tianzhou.cmd.http import PORT_RANGE
from tianzhou.cmd.ready_file import option as ready_file_option


@click.command()
@click.option("-p", "--port", type=PORT_RANGE, help="Listen on this port; 0 for any free one.")
@click.option("--host", metavar="ADDRESS", help="Listen on this address.")
@click.option(
    "--data",
    "data_dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Store missing brokers and epochs in this directory; default: in memory.",
)
@server_settings.options("TOML, or a RocketMQ namesrv.properties")
@ready_file_option
@logs.options
def nameserver(
    *,
    port: int | None,
    host: str | None,
    data_dir: Path | None,
    sources: server_settings.Sources,
    ready_file: Path | None,
    log_json: bool,
    log_file: Path | None,
) -> None:
    """Start a NameServer."""
    # Imported here because `--help` needs none of it.
    from tianzhou.admin.commands.session import credentials_from_environment
    from tianzhou.base.host_names import with_port
    from tianzhou.base.settings import load, spellings
    from tianzhou.broker.config import BrokerConfig
    from tianzhou.cmd import serve
    from tianzhou.cmd.clock import SystemClock
    from tianzhou.nameserver.config import NameServerConfig
    from tianzhou.nameserver.server import NameServer
    from tianzhou.store.config import StoreConfig

    serve.prepare(as_json=log_json, log_file=log_file)
    given = server_settings.Given([NameServerConfig])
    given.take_all(sources, os.environ, elsewhere=spellings(BrokerConfig, StoreConfig))
    said = {
        "listen_port": (port, "-p/--port"),
        "bind_address": (host, "--host"),
        "data_dir": (data_dir and str(data_dir), "--data"),
    }
    for name, (value, option) in said.items():
        if value is not None:
            given.put(name, value, option)
    with given.located():
        config, unknown = load(NameServerConfig, given.values)
    given.warn_unknown(unknown)
    pair = config.cluster_credentials or credentials_from_environment()
    config = replace(config, cluster_credentials=pair)
    can = serve.SIGNED_NAMES if pair else serve.OPEN_NAMES
    serve.warn_if_exposed(config.bind_address, "the NameServer", can)

    async def start() -> list[serve.Running]:
        server = NameServer(config, SystemClock())
        address = with_port(config.bind_address, await server.start())
        serve.announce(f"NameServer {address}", ready_file, {"nameserver": address})
        return [server]

    serve.run(start)
