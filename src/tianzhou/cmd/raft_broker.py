"""Start a broker as a member of a Raft group."""

import os
from dataclasses import replace

from tianzhou.base.clock import Clock
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.replica.own_address import open_endpoint
from tianzhou.broker.replica.raft import RaftMode
from tianzhou.broker.server import Broker
from tianzhou.cmd import logs, serve
from tianzhou.replication.raft_member import open_member
from tianzhou.replication.raft_settings import RaftSettings
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.store.files import RealFiles


async def start(
    settings: RaftSettings,
    config: BrokerConfig,
    store_config: StoreConfig,
    directory: str,
    *,
    clock: Clock,
) -> tuple[Broker, RaftMode]:
    """Start the member; it serves reads at once, and accepts messages when it is elected."""
    config = replace(config, name=name_of(settings, config))
    # The guarantees of a group exceed those of one disk, and they depend on checksums.
    mode = FlushMode.ASYNC if settings.raft_relaxed else FlushMode.SYNC
    store_config = replace(store_config, flush_mode=mode, record_crc=True)
    opened = open_member(settings, RealFiles(), directory, store_config, clock=clock)
    endpoint = open_endpoint(config)
    mode = RaftMode(
        settings, opened, clock, name=config.name, address=endpoint.address, on_fenced=_end
    )
    broker = Broker(config, opened.store, clock, mode, endpoint=endpoint)
    await broker.start()
    return broker, mode


def name_of(settings: RaftSettings, config: BrokerConfig) -> str:
    """The broker name that clients see; by default the name of the group."""
    return settings.raft_group if config.name == BrokerConfig().name else config.name


def facts(settings: RaftSettings, config: BrokerConfig) -> dict[str, object]:
    """Additional keys of the ready file."""
    return {
        "brokerName": name_of(settings, config),
        "raftGroup": settings.raft_group,
        "raftId": settings.raft_id,
    }


def _end(reason: str) -> None:
    """Exit: a failed member must not look alive, because the content of the disk is unknown until
    the next start recovers it."""
    try:
        logs.say(f"tianzhou: fenced: {reason}; check the disk and restart", "raft.fenced")
    finally:
        os._exit(serve.FENCED)  # does not flush the log, which may be on the failed disk
