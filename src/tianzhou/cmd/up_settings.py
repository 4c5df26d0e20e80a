"""Settings and options of `tianzhou up`, which starts one NameServer and brokers.

Settings are those of the Broker, the store, replication and the NameServer. A name that both
servers know (`listenPort`, `bindAddress`) applies to the Broker; `host` and `cluster_credentials`
apply to both.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from tianzhou.admin.commands.session import credentials_from_environment
from tianzhou.base.errors import UsageError
from tianzhou.base.settings import load, spellings
from tianzhou.broker.config import BrokerConfig
from tianzhou.cmd import config_file
from tianzhou.cmd.http import HttpOptions
from tianzhou.cmd.server_settings import PREFIX, Given, Sources
from tianzhou.nameserver.config import NameServerConfig
from tianzhou.replication.config import ReplicationConfig
from tianzhou.replication.raft_settings import RaftSettings
from tianzhou.store.config import ROOT_SETTING, StoreConfig, refused_path

BROKER_KINDS: Final = (BrokerConfig, StoreConfig, ReplicationConfig, RaftSettings)
OWN: Final = {
    "nameservers": "`up` starts a NameServer of its own; `tianzhou broker -n` uses another one",
    **dict.fromkeys(
        ("raft_enabled", "raft_group", "raft_peers", "raft_id", "raft_new", "raft_witness"),
        "`up --replicas 3` forms a Raft group; `tianzhou broker --raft-group` joins one",
    ),
}
"""Settings that `up` chooses itself, and what to use instead."""


class UpSettings(NamedTuple):
    """Everything `up` needs to start its servers."""

    nameserver: NameServerConfig
    broker: BrokerConfig
    store: StoreConfig
    replication: ReplicationConfig | None
    """None if no setting concerns slaves; then no port is opened for them."""
    directory: Path | None
    """The data directory from the settings; None if they do not set one."""
    member_arguments: tuple[str, ...]
    """Passes the same settings to members of a group, which are separate processes."""


class UpOptions(NamedTuple):
    """Options of `up` that are not settings."""

    directory: Path
    replicas: int
    ready_file: Path | None
    http: HttpOptions
    has_witness: bool = False


def with_memory(config: NameServerConfig, directory: Path) -> NameServerConfig:
    """The NameServer of `up` keeps its file next to the messages, unless the settings name a
    directory."""
    return config if config.data_dir else replace(config, data_dir=str(directory / "nameserver"))


def read(sources: Sources, options: Mapping[str, Any], replicas: int) -> UpSettings:
    """`options` are settings that were given as options. Raises UsageError."""
    # The last one has the names of both.
    given = Given((NameServerConfig, *BROKER_KINDS), also=(ROOT_SETTING,))
    # The environment names a NameServer for clients; this broker does not register there.
    environment = {
        name: value for name, value in os.environ.items() if name != f"{PREFIX}NAMESERVERS"
    }
    given.take_all(sources, environment)
    for name, value in options.items():
        given.put(name, value, "the command line")
    _refuse_own(given, replicas)
    known = spellings(*BROKER_KINDS)
    of_broker = {
        name: value
        for name, value in given.values.items()
        if name in known and known[name] not in OWN
    }
    with given.located():
        loaded, _ = config_file.load_all(BROKER_KINDS, of_broker)
        config, store, replication, _ = loaded
        if not config.cluster_credentials:
            config = replace(config, cluster_credentials=credentials_from_environment())
        names = _nameserver(given, known, config)
    stored_at = given.values.pop(ROOT_SETTING, None)
    unknown = given.values.keys() - spellings(*BROKER_KINDS, NameServerConfig).keys()
    given.reject_unknown(unknown, refused_path)
    given.warn_unknown(unknown)
    has_slaves = any(map(given.source_of, spellings(ReplicationConfig).values()))
    return UpSettings(
        names,
        config,
        store,
        replication if has_slaves else None,
        None if stored_at is None else Path(str(stored_at)).expanduser(),
        _for_members(sources, options, known),
    )


def _refuse_own(given: Given, replicas: int) -> None:
    """A file may be written for a broker, with all of its settings; names after --set are
    intended."""
    for setting, advice in OWN.items():
        if given.source_of(setting) == "--set":
            raise UsageError(f"--set {setting} has no meaning here; {advice}")
    if replicas == 1:
        for setting in spellings(RaftSettings).values():
            if given.source_of(setting) == "--set":
                raise UsageError(f"--set {setting} needs a Raft group; add --replicas 3")


def _nameserver(
    given: Given, of_broker: Mapping[str, str], config: BrokerConfig
) -> NameServerConfig:
    values = {name: value for name, value in given.values.items() if name not in of_broker}
    found, _ = load(NameServerConfig, values)
    if "bind_address" not in given.values:
        found = replace(found, bind_address=config.host)
    return replace(found, cluster_credentials=config.cluster_credentials)


def _for_members(
    sources: Sources, options: Mapping[str, Any], known: Mapping[str, str]
) -> tuple[str, ...]:
    """Members read the file and the environment themselves; their ports are their own."""
    file = ("-c", str(sources.path.resolve())) if sources.path is not None else ()
    changes = [*sources.changes, *(f"{name}={value}" for name, value in options.items())]
    names = (change.partition("=")[0].strip() for change in changes)
    ours = (
        change
        for name, change in zip(names, changes, strict=True)
        if name in known and known[name] != "port"
    )
    return (*file, *(word for change in ours for word in ("--set", change)))
