"""`tianzhou up`: NameServer and Broker in one process, nothing to configure."""

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import click

from tianzhou.cmd import http as http_server
from tianzhou.cmd import logs


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--nameserver-port", default=9876, show_default=True, help="0 takes a free one.")
@click.option("--broker-port", default=10911, show_default=True, help="0 takes a free one.")
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), default="tianzhou-data",
    show_default=True, help="Where messages are kept.",
)  # fmt: skip
@click.option("--ephemeral", is_flag=True, help="Keep messages in a temporary directory.")
@click.option(
    "--ready-file", type=click.Path(dir_okay=False, path_type=Path),
    help="Written once everything serves: JSON with the addresses.",
)  # fmt: skip
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
    from tianzhou.broker.config import BrokerConfig
    from tianzhou.broker.server import Broker
    from tianzhou.cmd import serve
    from tianzhou.cmd.clock import SystemClock
    from tianzhou.nameserver.config import NameServerConfig
    from tianzhou.nameserver.server import NameServer
    from tianzhou.store.config import FlushMode, StoreConfig
    from tianzhou.store.files import RealFiles
    from tianzhou.store.store import MessageStore

    serve.prepare(as_json=log_json, log_file=log_file)
    pair = from_environment()
    can = (serve.OPEN_BROKER,) if pair else (serve.OPEN_BROKER, serve.OPEN_NAMES)
    serve.warn_if_exposed(host, "NameServer and Broker", *can)
    directory = Path(tempfile.mkdtemp(prefix="tianzhou-")) if ephemeral else data.resolve()
    serve.refuse_shared(directory)
    clock = SystemClock()
    flush_mode = FlushMode.SYNC if sync_flush else FlushMode.ASYNC
    broker_config = BrokerConfig(host=host, port=broker_port, cluster_credentials=pair)

    async def start() -> list[serve.Running]:
        if replicas > 1:
            from tianzhou.cmd import raft_up

            wanted = (host, nameserver_port, broker_port, directory, replicas, ready_file, http)
            return await raft_up.start(raft_up.Wanted(*wanted, pair), clock)
        names_config = NameServerConfig(
            bind_address=host, listen_port=nameserver_port, cluster_credentials=pair
        )
        names = NameServer(names_config, clock)
        port = await names.start()
        store = MessageStore(RealFiles(), str(directory), StoreConfig(flush_mode=flush_mode), clock)
        broker = Broker(replace(broker_config, nameservers=f"{host}:{port}"), store, clock)
        await broker.start()
        facts = {
            "nameserver": f"{host}:{port}",
            "broker": broker.address,
            "brokerName": broker_config.name,
            "cluster": broker_config.cluster,
            "pid": os.getpid(),
            "data": str(directory),
        }
        text = f"NameServer {host}:{port}, broker {broker.address}, data in {directory}"
        near = f"127.0.0.1:{port}" if host in ("", "0.0.0.0") else f"{host}:{port}"
        pages = http_server.serve(
            http, broker, clock, nameserver=near, data=directory, credentials=pair
        )
        running: list[serve.Running] = [names, broker]
        if pages is not None:
            facts["http"] = pages.url
            text += f", dashboard {pages.url}"
            running.append(pages)
        serve.announce(text, ready_file, facts)
        return running

    try:
        serve.run(start)
    finally:
        if ephemeral:
            shutil.rmtree(directory, ignore_errors=True)
