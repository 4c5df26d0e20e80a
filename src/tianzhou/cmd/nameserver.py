"""`tianzhou nameserver`: start a NameServer."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tianzhou.base.errors import UsageError
from tianzhou.cmd import logs, raft_options, server_settings
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
@raft_options.for_witness
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
    **raft: Any,
) -> None:
    """Start a NameServer."""
    # Imported here because `--help` needs none of it.
    from tianzhou.admin.commands.session import credentials_from_environment
    from tianzhou.base.host_names import with_port
    from tianzhou.base.settings import spellings
    from tianzhou.broker.config import BrokerConfig
    from tianzhou.cmd import config_file, serve
    from tianzhou.cmd.clock import SystemClock
    from tianzhou.nameserver.config import NameServerConfig
    from tianzhou.nameserver.server import NameServer
    from tianzhou.replication.raft_settings import RaftSettings
    from tianzhou.store.config import StoreConfig

    serve.prepare(as_json=log_json, log_file=log_file)
    kinds = (NameServerConfig, RaftSettings)
    given = server_settings.Given(kinds)
    given.take_all(sources, os.environ, elsewhere=spellings(BrokerConfig, StoreConfig))
    said = {
        "listen_port": (port, "-p/--port"),
        "bind_address": (host, "--host"),
        "data_dir": (data_dir and str(data_dir), "--data"),
    }
    said |= {name: (value, raft_options.name_of(name)) for name, value in raft.items()}
    for name, (value, option) in said.items():
        if value is not None:
            given.put(name, value, option)
    with given.located():
        (config, group), unknown = config_file.load_all(kinds, given.values)
    given.warn_unknown(unknown)
    pair = config.cluster_credentials or credentials_from_environment()
    config = replace(config, cluster_credentials=pair)
    can = serve.SIGNED_NAMES if pair else serve.OPEN_NAMES
    serve.warn_if_exposed(config.bind_address, "the NameServer", can)

    if group.raft_group and not config.data_dir:
        raise UsageError(
            f"the witness of {group.raft_group} stores its votes; add --data DIRECTORY"
        )

    directory = Path(config.data_dir).resolve()

    async def start() -> list[serve.Running]:
        server = NameServer(config, SystemClock())
        running: list[serve.Running] = [server]
        address = with_port(config.bind_address, await server.start())
        facts: dict[str, object] = {"nameserver": address}
        said = f"NameServer {address}"
        if group.raft_group:
            from tianzhou.cmd import witness_start

            witness, more = await witness_start.start(group, directory)
            running.append(witness)
            facts |= more
            said += f", witness {group.raft_id} of group {group.raft_group}"
        serve.announce(said, ready_file, facts)
        return running

    serve.run(start)
