"""Turns the declarations of settings into docs/settings.md.

python tools/gen_docs.py            write the file
python tools/gen_docs.py --check    write nothing; exit 1 if the file is stale
"""

import dataclasses
import enum
import sys
from pathlib import Path
from typing import Final, cast

from tianzhou.base.settings import Declaration, declarations
from tianzhou.broker.config import BrokerConfig
from tianzhou.replication.config import ReplicationConfig
from tianzhou.replication.raft_settings import RaftSettings
from tianzhou.store.config import StoreConfig

ROOT: Final = Path(__file__).resolve().parent.parent
SETTINGS: Final = ROOT / "docs" / "settings.md"
UNITS: Final = {
    "_bytes": "bytes", "_bytes_max": "bytes", "_ms": "ms", "_at_hours": "hour of the day",
    "_hours": "hours", "_ratio": "part of 1", "_pages_min": "pages", "_s": "seconds",
}  # fmt: skip

SECTIONS: Final = {
    "Broker": BrokerConfig, "Store": StoreConfig, "Master and slaves": ReplicationConfig,
    "Raft group": RaftSettings,
}  # fmt: skip

HEAD: Final = """\
# Settings

Written by `tools/gen_docs.py` from the declarations in the code; do not edit.

Settings of `tianzhou broker` and `tianzhou up`; those of the NameServer are on [its own
page](nameserver.md#settings), and `up` accepts them as well. Each source overrides the ones before
it:

| source | example |
| --- | --- |
| defaults | the tables below |
| a file: `-c FILE`, TOML or RocketMQ's `name=value` lines | `flushDiskType=SYNC_FLUSH` |
| the environment: `TIANZHOU_` and the name in capitals | `TIANZHOU_FLUSH_MODE=SYNC_FLUSH` |
| `--set NAME=VALUE`, as often as needed | `--set flush_mode=SYNC_FLUSH` |
| options of the command itself | `--sync-flush`, `--broker-port`, `-p`, `-n` |

In files and after `--set` a setting may have our name or RocketMQ's. Invalid values stop the start,
and all of them are listed at once, each with its source. An unknown name after `--set` stops the
start, too, with the name that was probably meant; in a file, and in the environment if it looks
like a misspelt setting, it is logged. Empty variables are ignored. Other users of the machine can
read a command line: pass secrets in a file or in the environment.

`TIANZHOU_NAMESERVER`, the variable of clients, is also the value of `nameservers` for `tianzhou
broker`; RocketMQ's `NAMESRV_ADDR` is its default, which a file overrides.

In `tianzhou up` a name that both servers know (`listenPort`, `bindAddress`) is the Broker's, and
`host` is for both unless `bind_address` is given. `nameservers` and the members of a Raft group are
decided by `up` itself.

LIVE says which settings can change while a broker runs: `tianzhou broker config BROKER --set
NAME=VALUE`, or RocketMQ's `mqadmin updateBrokerConfig`. Such a change lasts until the next start,
which reads the file again. A setting that is not live is refused with the reason, a value out of
its bounds with the bounds; then nothing changes. Where `cluster_credentials` are set, changes of
the store and of the group must be signed with them.

A shorter `retention_hours` deletes no file with a message that still waits for its delivery time or
for the end of its transaction; such files go when these messages have moved on.
"""

TABLE: Final = """
## {title}

| NAME | DEFAULT | UNIT | BOUNDS | LIVE | ROCKETMQ | MEANING |
| --- | --- | --- | --- | --- | --- | --- |
"""


def unit_of(name: str) -> str:
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")


def shown(value: object) -> str:
    """A value as a user would write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, tuple):
        parts = cast("tuple[object, ...]", value)
        return " ".join(str(part) for part in parts)
    return str(value)


def bounds_of(declared: Declaration, default: object) -> str:
    if isinstance(default, enum.Enum):
        return " or ".join(shown(member) for member in type(default))
    if declared.minimum is None or declared.maximum is None:
        return ""
    return f"{shown(declared.minimum)} to {shown(declared.maximum)}"


def live_of(declared: Declaration) -> str:
    return "yes" if declared.is_live else f"no: {declared.fixed}" if declared.fixed else "no"


def row_of(name: str, declared: Declaration, default: object) -> str:
    alias = f"`{declared.alias}`" if declared.alias else ""
    is_port = name in ("port", "ha_port", "http_port")
    value = str(default) if is_port else shown(default)
    cells = (
        f"`{name}`", value, unit_of(name), bounds_of(declared, default), live_of(declared), alias,
        declared.help,
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def table_of(title: str, kind: type) -> str:
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    rows = [row_of(name, found, defaults[name]) for name, found in declarations(kind).items()]
    return TABLE.format(title=title) + "\n".join(rows) + "\n"


def settings_page() -> str:
    return HEAD + "".join(table_of(title, kind) for title, kind in SECTIONS.items())


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: gen_docs.py [--check]", file=sys.stderr)
        return 2
    page = settings_page()
    if SETTINGS.exists() and SETTINGS.read_text(encoding="utf-8") == page:
        return 0
    if arguments:
        print(f"{SETTINGS.relative_to(ROOT)} is stale: run tools/gen_docs.py", file=sys.stderr)
        return 1
    SETTINGS.write_text(page, encoding="utf-8")
    print(f"wrote {SETTINGS.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
