"""The default name of a broker without a configured one.

With one fixed default, the second broker of a cluster would claim the name of the first, so the
name is generated from the machine and the port. The first start writes it into the data directory:
clients know the messages by this name, even if the next start uses another port.
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
"""In the directory of tables, next to RocketMQ's files."""
BEFORE: Final = "broker-a"
"""The name of brokers that were created before this file existed."""
CHARS_MAX: Final = 100
_FOREIGN: Final = re.compile(r"[^a-zA-Z0-9_-]+")


def named(config: BrokerConfig, replication: ReplicationConfig, directory: Path) -> BrokerConfig:
    """Add a name to the settings: the one saved in the directory, or a new one, which is saved
    there. Raises UsageError for a slave, which cannot know the name of its master."""
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
    written.replace(kept)  # atomic
    return name


def _read(path: Path) -> str:
    try:
        name = path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError:
        name = ""
    if not name or _FOREIGN.search(name):
        raise UsageError(f"{path} contains no broker name; write one into it, or set brokerName")
    return name


def _has_store(directory: Path) -> bool:
    return any((directory / name).exists() for name in (layout.COMMIT_LOG, layout.CONFIG))


def _made(host: str, port: int) -> str:
    """A port that the system chose does not identify the broker, so a random suffix replaces it."""
    machine = _FOREIGN.sub("-", host.partition(".")[0]).strip("-")[:CHARS_MAX] or "broker"
    return f"{machine}-{port or secrets.token_hex(4)}"
