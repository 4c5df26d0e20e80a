"""`tianzhou nameserver`: a NameServer by itself."""

from dataclasses import replace
from pathlib import Path

import click

from tianzhou.cmd import logs
from tianzhou.cmd.http import PORT_RANGE
from tianzhou.cmd.ready_file import option as ready_file_option


@click.command()
@click.option("-p", "--port", type=PORT_RANGE, help="Port to listen on; 0 takes a free one.")
@click.option("--host", help="Address to listen on.")
@click.option(
    "-c", "--config", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings: TOML, or a RocketMQ namesrv.properties.",
)  # fmt: skip
@ready_file_option
@logs.options
def nameserver(
    port: int | None,
    host: str | None,
    path: Path | None,
    ready_file: Path | None,
    log_json: bool,
    log_file: Path | None,
) -> None:
    """Start a NameServer."""
    # Not above: who asks for help needs none of it.
    from tianzhou.admin.commands.credentials import from_environment
    from tianzhou.base.settings import load
    from tianzhou.broker.own_address import with_port
    from tianzhou.cmd import config_file, serve
    from tianzhou.cmd.clock import SystemClock
    from tianzhou.nameserver.config import NameServerConfig
    from tianzhou.nameserver.server import NameServer

    serve.prepare(as_json=log_json, log_file=log_file)
    config, unknown = load(NameServerConfig, config_file.read(path) if path else {})
    logs.warn_unknown(unknown, path)
    if port is not None:
        config = replace(config, listen_port=port)
    if host is not None:
        config = replace(config, bind_address=host)
    pair = config.cluster_credentials or from_environment()
    config = replace(config, cluster_credentials=pair)
    can = serve.SIGNED_NAMES if pair else serve.OPEN_NAMES
    serve.warn_if_exposed(config.bind_address, "the NameServer", can)

    async def start() -> list[serve.Running]:
        server = NameServer(config, SystemClock())
        address = with_port(config.bind_address, await server.start())
        serve.announce(f"NameServer {address}", ready_file, {"nameserver": address})
        return [server]

    serve.run(start)
