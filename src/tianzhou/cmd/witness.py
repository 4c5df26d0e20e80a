"""`tianzhou witness`: start the witness of a Raft group."""

import os
from pathlib import Path
from typing import Any

import click

from tianzhou.cmd import logs, raft_options, server_settings
from tianzhou.cmd.ready_file import option as ready_file_option


@click.command()
@server_settings.options("TOML, or a RocketMQ broker.conf")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default="tianzhou-witness",
    show_default=True,
    help="Store votes in this directory.",
)
@ready_file_option
@raft_options.for_witness
@logs.options
def witness(
    *,
    sources: server_settings.Sources,
    data: Path,
    ready_file: Path | None,
    log_json: bool,
    log_file: Path | None,
    **raft: Any,
) -> None:
    """Start the witness of a Raft group, which votes and has no messages."""
    # Imported here because `--help` needs none of it.
    from tianzhou.base.settings import load, spellings
    from tianzhou.broker.config import BrokerConfig
    from tianzhou.cmd import serve, witness_start
    from tianzhou.nameserver.config import NameServerConfig
    from tianzhou.replication.config import ReplicationConfig
    from tianzhou.replication.raft_settings import RaftSettings
    from tianzhou.store.config import StoreConfig

    serve.prepare(as_json=log_json, log_file=log_file)
    given = server_settings.Given([RaftSettings])
    others = spellings(BrokerConfig, StoreConfig, ReplicationConfig, NameServerConfig)
    given.take_all(sources, os.environ, elsewhere=others)
    for name, value in raft.items():
        if value is not None:
            given.put(name, value, raft_options.name_of(name))
    with given.located():
        settings, unknown = load(RaftSettings, given.values)
    given.warn_unknown(set(unknown) - others.keys())

    directory = data.resolve()

    async def start() -> list[serve.Running]:
        running, facts = await witness_start.start(settings, directory)
        said = "witness {raftId} of group {raftGroup} at {witness}"
        serve.announce(said.format(**facts), ready_file, {**facts, "pid": os.getpid()})
        return [running]

    serve.run(start)
