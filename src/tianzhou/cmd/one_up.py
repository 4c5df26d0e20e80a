"""Start `tianzhou up`: a NameServer and a Broker in this process."""

import os
from dataclasses import replace

from tianzhou.base.clock import Clock
from tianzhou.base.errors import UsageError
from tianzhou.base.host_names import with_port
from tianzhou.broker.replica.master_slave import MasterSlave
from tianzhou.broker.replica.own_address import own_host
from tianzhou.broker.server import Broker
from tianzhou.cmd import http as http_server
from tianzhou.cmd import serve
from tianzhou.cmd.up_settings import UpOptions, UpSettings, with_memory
from tianzhou.nameserver.server import NameServer
from tianzhou.replication.raft_state import refuse_member
from tianzhou.store.files import RealFiles
from tianzhou.store.store import MessageStore


async def start(settings: UpSettings, options: UpOptions, clock: Clock) -> list[serve.Running]:
    """Start all servers, then announce that they are ready."""
    directory, config = options.directory, settings.broker
    refuse_member(str(directory), RealFiles())
    names = NameServer(with_memory(settings.nameserver, directory), clock)
    port = await names.start()
    nameserver = with_port(settings.nameserver.bind_address, port)
    config = replace(config, nameservers=nameserver)
    store_config = serve.with_absolute_paths(settings.store)
    store = MessageStore(RealFiles(), str(directory), store_config, clock)
    on_fenced = serve.end_fenced if config.exit_when_fenced else None
    replication = settings.replication
    mode = MasterSlave(config, replication, store, clock) if replication is not None else None
    broker = Broker(config, store, clock, mode, on_fenced=on_fenced)
    await broker.start()
    facts = {
        "nameserver": nameserver,
        "broker": broker.address,
        "brokerName": config.name,
        "cluster": config.cluster,
        "pid": os.getpid(),
        "data": str(directory),
    }
    text = f"NameServer {nameserver}, broker {broker.address}, data in {directory}"
    near = with_port(own_host(config), port)
    running: list[serve.Running] = [names, broker]
    try:
        pages = http_server.serve(
            options.http,
            broker,
            clock,
            nameservers=lambda: near,
            data=directory,
            credentials=config.cluster_credentials,
        )
    except (UsageError, OSError):
        await serve.close(running)  # otherwise the next start has to recover the store
        raise
    if pages is not None:
        facts["http"] = pages.url
        text += f", dashboard {pages.url}"
        running.append(pages)
    serve.announce(text, options.ready_file, facts)
    return running
