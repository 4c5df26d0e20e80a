"""The name of a broker that was given none.

One default for all would make the second broker of a cluster ask for the name of the first, so a
name is made of the machine and the port. It is written into the data directory at the first start:
messages belong to the name under which clients know them, whatever port the next start has.
"""

import re
import secrets
import socket
from dataclasses import replace
from pathlib import Path
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.broker.config import BrokerConfig
from tianzhou.replication.config import BrokerRole, ReplicationConfig
from tianzhou.store import layout

FILE: Final = "brokerName"
"""In the directory of tables, beside what RocketMQ keeps there."""
BEFORE: Final = "broker-a"
"""What brokers without a name were called when this file did not exist."""
CHARS_MAX: Final = 100
_FOREIGN: Final = re.compile(r"[^a-zA-Z0-9_-]+")


def named(config: BrokerConfig, replication: ReplicationConfig, directory: Path) -> BrokerConfig:
    """The settings with a name: that of the directory, or a new one, which the directory keeps.
    Raises UsageError for a slave, which can't know the name of its master."""
    if config.broker_id or replication.role is BrokerRole.SLAVE:
        raise UsageError(
            f"a slave (brokerId {config.broker_id}) has no name of its own; set brokerName to that "
            "of its master"
        )
    return replace(config, name=_name_of(directory, config.port))


def _name_of(directory: Path, port: int) -> str:
    kept = directory / layout.CONFIG / FILE
    if kept.exists():
        return _read(kept)
    if _has_store(directory):
        return BEFORE
    name = _made(socket.gethostname(), port)
    kept.parent.mkdir(mode=0o700, parents=True)
    written = kept.with_name(f".{FILE}")
    written.write_text(f"{name}\n", encoding="ascii")
    written.replace(kept)  # whole, or not at all
    return name


def _read(path: Path) -> str:
    try:
        name = path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError:
        name = ""
    if not name or _FOREIGN.search(name):
        raise UsageError(
            f"{path} holds no broker name; write the name of this broker into it, or set brokerName"
        )
    return name


def _has_store(directory: Path) -> bool:
    return any((directory / name).exists() for name in (layout.COMMIT_LOG, layout.CONFIG))


def _made(host: str, port: int) -> str:
    """A port that the system chooses says nothing about the broker; dice tell it from others."""
    machine = _FOREIGN.sub("-", host.partition(".")[0]).strip("-")[:CHARS_MAX] or "broker"
    return f"{machine}-{port or secrets.token_hex(4)}"
