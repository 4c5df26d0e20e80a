"""`tianzhou broker`: start a Broker, or manage a running one."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tianzhou.admin.commands.broker import acknowledge, clean, drain, forget
from tianzhou.admin.commands.broker import config as config_command
from tianzhou.admin.commands.broker_status import status
from tianzhou.admin.commands.replication import promote
from tianzhou.cmd import http as http_server
from tianzhou.cmd import logs, raft_options, server_settings
from tianzhou.cmd.http import PORT_RANGE
from tianzhou.cmd.ready_file import option as ready_file_option

if TYPE_CHECKING:
    from tianzhou.replication.raft_settings import RaftSettings


@click.group(invoke_without_command=True)
@click.option(
    "-n",
    "--nameserver",
    "nameservers",
    metavar="HOST:PORT",
    help="Register with these NameServers, separated by semicolons.",
)
@server_settings.options("TOML, or a RocketMQ broker.conf")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Store messages in this directory; default: the settings, else tianzhou-data.",
)
@click.option("-p", "--port", type=PORT_RANGE, help="Listen on this port; 0 for any free one.")
@ready_file_option
@raft_options.for_broker
@http_server.options
@logs.options
@click.pass_context
def broker(
    ctx: click.Context,
    *,
    nameservers: str | None,
    sources: server_settings.Sources,
    data: Path | None,
    port: int | None,
    ready_file: Path | None,
    http: http_server.HttpOptions,
    log_json: bool,
    log_file: Path | None,
    **raft: Any,
) -> None:
    """Start a Broker, or manage a running one."""
    if ctx.invoked_subcommand is not None:
        return
    # Imported here because the subcommands do not need it.
    from tianzhou.admin.commands.session import credentials_from_environment
    from tianzhou.base.settings import declarations
    from tianzhou.broker.config import BrokerConfig
    from tianzhou.cmd import broker_name, broker_start, config_file, serve
    from tianzhou.nameserver.config import NameServerConfig
    from tianzhou.replication.config import ReplicationConfig
    from tianzhou.replication.raft_settings import RaftSettings
    from tianzhou.store.config import ROOT_SETTING, StoreConfig, refused_path

    serve.prepare(as_json=log_json, log_file=log_file)
    kinds = (BrokerConfig, StoreConfig, ReplicationConfig, RaftSettings)
    given = server_settings.Given(kinds, also=(ROOT_SETTING,))
    environment = dict(os.environ)
    # The variables that clients read. As in RocketMQ, its variable is only a default, weaker than a
    # file.
    if ours := environment.get("TIANZHOU_NAMESERVER"):
        environment.setdefault("TIANZHOU_NAMESERVERS", ours)
    if default := environment.get("NAMESRV_ADDR"):
        given.put("nameservers", default, "NAMESRV_ADDR")
    given.take_all(sources, environment, elsewhere=declarations(NameServerConfig))
    stored_at = given.values.pop(ROOT_SETTING, None)
    # Options override all other sources and are validated like them.
    said = {"nameservers": nameservers, "port": port, **raft}
    for name, value in said.items():
        if value is not None:
            given.put(name, value, _option(name))
    with given.located():
        (config, store_config, replication, raft_settings), unknown = config_file.load_all(
            kinds, given.values
        )
    group = _member_of(raft_settings, raft)
    given.reject_unknown(unknown, refused_path)
    given.warn_unknown(unknown)
    if not config.cluster_credentials:
        config = replace(config, cluster_credentials=credentials_from_environment())
    serve.warn_if_exposed(config.host, "the Broker", serve.OPEN_BROKER)
    directory = (data or Path(str(stored_at or "tianzhou-data")).expanduser()).resolve()
    store_config = serve.with_absolute_paths(store_config)
    for one in serve.store_directories(directory, store_config):
        serve.refuse_shared(one)
    if group is None and given.source_of("name") is None:
        config = broker_name.named(config, replication, directory)

    options = broker_start.StartOptions(
        config, store_config, replication, group, directory, http, ready_file
    )
    serve.run(lambda: broker_start.start(options))


for command in (acknowledge, clean, drain, forget, promote, status, config_command):
    broker.add_command(command)


def _option(setting: str) -> str:
    """The option for a setting, as errors name it."""
    short = {"nameservers": "-n/--nameserver", "port": "-p/--port"}
    return short.get(setting) or raft_options.name_of(setting)


def _member_of(settings: "RaftSettings", given: Mapping[str, Any]) -> "RaftSettings | None":
    """The settings of a member, or None for a broker without a group. Raises UsageError if they
    are inconsistent."""
    from tianzhou.replication.raft_settings import check

    if not settings.raft_enabled and all(value is None for value in given.values()):
        return None
    check(settings)
    return settings
