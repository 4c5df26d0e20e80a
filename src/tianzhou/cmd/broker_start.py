"""Start a broker: standalone, with slaves, or as a member of a Raft group."""

import logging
import os
from pathlib import Path
from typing import NamedTuple

from tianzhou.base.errors import UsageError
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.replica.master_slave import MasterSlave
from tianzhou.broker.role import Role
from tianzhou.broker.server import Broker
from tianzhou.cmd import http as http_server
from tianzhou.cmd import logs, serve
from tianzhou.cmd.clock import SystemClock
from tianzhou.replication.config import BrokerRole, ReplicationConfig
from tianzhou.replication.ha_state import state_table
from tianzhou.replication.raft_settings import RaftSettings
from tianzhou.replication.raft_state import refuse_member
from tianzhou.store.config import StoreConfig
from tianzhou.store.files import RealFiles
from tianzhou.store.layout import paths_of
from tianzhou.store.store import MessageStore


class StartOptions(NamedTuple):
    """Everything that the start of a broker needs."""

    config: BrokerConfig
    store_config: StoreConfig
    replication: ReplicationConfig
    raft: RaftSettings | None
    """None: not a member of a Raft group."""
    directory: Path
    http: http_server.HttpOptions
    ready_file: Path | None


async def start(options: StartOptions) -> list[serve.Running]:
    """Start all servers, then announce that they are ready."""
    clock, config, directory = SystemClock(), options.config, options.directory
    facts: dict[str, object] = {
        "nameserver": config.nameservers,
        "brokerName": config.name,
        "cluster": config.cluster,
        "pid": os.getpid(),
        "data": str(directory),
    }
    started: list[serve.Running]
    if options.raft is not None:
        from tianzhou.cmd import raft_broker

        running, _ = await raft_broker.start(
            options.raft, config, options.store_config, str(directory), clock=clock
        )
        facts |= raft_broker.facts(options.raft, config)
        started = [running]
    else:
        refuse_member(str(directory), RealFiles())
        store = MessageStore(
            RealFiles(), str(directory), options.store_config, clock, is_repaired=_is_slave(options)
        )
        on_fenced = serve.end_fenced if config.exit_when_fenced else None
        mode = MasterSlave(config, options.replication, store, clock)
        running = Broker(config, store, clock, mode, on_fenced=on_fenced)
        await running.start()
        facts["ha"] = mode.ha_address
        started = [running]
    facts["broker"] = running.address
    text = f"Broker {running.address}, data in {directory}"
    try:
        pages = http_server.serve(
            options.http,
            running,
            clock,
            nameservers=lambda: running.nameservers,
            data=directory,
            credentials=config.cluster_credentials,
        )
    except (UsageError, OSError):
        # Otherwise NameServers report a missing broker, and the next start has to recover.
        await serve.close(started)
        raise
    if pages is not None:
        facts["http"] = pages.url
        text += f", dashboard {pages.url}"
        started.append(pages)
    serve.announce(text, options.ready_file, facts)
    if config.nameservers:
        _warn_if_unregistered(running)
    else:
        logs.say(
            "tianzhou: no NameServer is configured, so clients cannot find this broker; pass "
            "--nameserver HOST:PORT, or set TIANZHOU_NAMESERVER or NAMESRV_ADDR",
            "broker.unregistered",
            level=logging.WARNING,
        )
    return started


def _warn_if_unregistered(running: Broker) -> None:
    """Warn the user at the terminal, who may have mistyped an address: the alarm is in the log,
    which may be a file."""
    if reasons := running.unregistered():
        told = "; ".join(f"{server}: {reason}" for server, reason in reasons.items())
        logs.say(
            "tianzhou: this broker is registered with no NameServer, so clients cannot find it: "
            f"{told}; check the addresses given by --nameserver and that NameServers run there. "
            "The broker keeps trying",
            "broker.unregistered",
            level=logging.ERROR,
        )


def _is_slave(options: StartOptions) -> bool:
    """Whether a master has what this log may lack. The saved state takes precedence over the
    settings."""
    tables = paths_of(str(options.directory), options.store_config).tables
    saved = state_table(RealFiles(), tables).load().role
    if saved:
        return saved == Role.SLAVE.value
    return options.replication.role is BrokerRole.SLAVE
