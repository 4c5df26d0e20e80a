"""`tianzhou up`, put together: NameServer and Broker in this process."""

import os

from tianzhou.base.clock import Clock
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.own_address import own_host, with_port
from tianzhou.broker.server import Broker
from tianzhou.cmd import http as http_server
from tianzhou.cmd import serve
from tianzhou.cmd.raft_up import Wanted
from tianzhou.nameserver.config import NameServerConfig
from tianzhou.nameserver.server import NameServer
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.store.files import RealFiles
from tianzhou.store.store import MessageStore


async def start(wanted: Wanted, clock: Clock, *, sync_flush: bool) -> list[serve.Running]:
    """Start everything, and tell that it serves."""
    host, directory = wanted.host, wanted.directory
    names_config = NameServerConfig(
        bind_address=host, listen_port=wanted.nameserver_port,
        cluster_credentials=wanted.credentials,
    )  # fmt: skip
    names = NameServer(names_config, clock)
    nameserver = with_port(host, port := await names.start())
    flush_mode = FlushMode.SYNC if sync_flush else FlushMode.ASYNC
    store = MessageStore(RealFiles(), str(directory), StoreConfig(flush_mode=flush_mode), clock)
    config = BrokerConfig(
        host=host, port=wanted.broker_port, nameservers=nameserver,
        cluster_credentials=wanted.credentials,
    )  # fmt: skip
    broker = Broker(config, store, clock)
    await broker.start()
    facts = {
        "nameserver": nameserver, "broker": broker.address, "brokerName": config.name,
        "cluster": config.cluster, "pid": os.getpid(), "data": str(directory),
    }  # fmt: skip
    text = f"NameServer {nameserver}, broker {broker.address}, data in {directory}"
    near = with_port(own_host(config), port)
    pages = http_server.serve(
        wanted.http, broker, clock, nameserver=near, data=directory,
        credentials=wanted.credentials,
    )  # fmt: skip
    running: list[serve.Running] = [names, broker]
    if pages is not None:
        facts["http"] = pages.url
        text += f", dashboard {pages.url}"
        running.append(pages)
    serve.announce(text, wanted.ready_file, facts)
    return running
