"""Turns the declarations of settings into docs/configuration.md and its Chinese twin.

python tools/gen_docs.py            write the files
python tools/gen_docs.py --check    write nothing; exit 1 if a file is stale

The Chinese texts are in tools/zh/settings.toml, by the name of the setting.
"""

import dataclasses
import enum
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from tianzhou.base.settings import Declaration, declarations
from tianzhou.broker.config import BrokerConfig
from tianzhou.replication.config import ReplicationConfig
from tianzhou.replication.raft_settings import RaftSettings
from tianzhou.store.config import StoreConfig

ROOT: Final = Path(__file__).resolve().parent.parent
CHINESE: Final = ROOT / "tools" / "zh" / "settings.toml"
UNITS: Final = {
    "_bytes": "bytes",
    "_bytes_max": "bytes",
    "_ms": "ms",
    "_at_hours": "hour of the day",
    "_hours": "hours",
    "_ratio": "part of 1",
    "_pages_min": "pages",
    "_s": "seconds",
}

SECTIONS: Final = {
    "Broker": BrokerConfig,
    "Store": StoreConfig,
    "Master and slaves": ReplicationConfig,
    "Raft group": RaftSettings,
}

HEAD: Final = """\
# Configuration

[中文](configuration.zh-CN.md)

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

In files and after `--set` you can use Tianzhou's name of a setting or RocketMQ's. If any value is
invalid, the server does not start and lists all invalid values, each with its source. The same
holds for an unknown name after `--set`, with the closest known name as a suggestion. Unknown names
in a file, and environment variables that look like a misspelt setting, are logged and ignored;
an unknown path of RocketMQ (`storePath…`) is an error, because files would not be where you
expect them.
Empty variables are ignored. Other users of the machine can read a command line: pass secrets in a
file or in the environment.

`TIANZHOU_NAMESERVER`, the variable of clients, is also the value of `nameservers` for `tianzhou
broker`; RocketMQ's `NAMESRV_ADDR` is its default, which a file overrides.

With `tianzhou up`, a name that both servers have (`listenPort`, `bindAddress`) sets the Broker's
value, and `host` sets both unless `bind_address` is given. `up` sets `nameservers` and the members
of a Raft group itself.

The column LIVE shows which settings can change while a broker runs, with `tianzhou broker config
BROKER --set NAME=VALUE` or RocketMQ's `mqadmin updateBrokerConfig`. Such a change lasts until the
next start, which reads the file again. Changing a setting that is not live is rejected with the
reason, and a value out of bounds with the bounds; nothing changes then. If `cluster_credentials`
are set, changes to the store and to the group must be signed with them.

Reducing `retention_hours` does not delete a file that has a message waiting for its delivery time
or for the outcome of its transaction. The file is deleted once such messages are delivered or
decided.
"""


class Language(NamedTuple):
    """The words of the page in one language; everything else comes from the declarations."""

    page: Path
    head: str
    sections: Mapping[str, str]
    """Titles by the name of the class that declares the settings."""
    columns: tuple[str, ...]
    units: Mapping[str, str]
    """Units by the ending of the setting's name."""
    yes: str
    no: str
    because: str
    bounds: str
    either: str
    help: Mapping[str, str]
    fixed: Mapping[str, str]
    """Why a setting cannot change while the server runs, by its name."""


def declared() -> Iterator[tuple[str, Declaration]]:
    for kind in SECTIONS.values():
        yield from declarations(kind).items()


def english() -> Language:
    return Language(
        page=ROOT / "docs" / "configuration.md",
        head=HEAD,
        sections={kind.__name__: title for title, kind in SECTIONS.items()},
        columns=("NAME", "DEFAULT", "UNIT", "BOUNDS", "LIVE", "ROCKETMQ", "MEANING"),
        units=UNITS,
        yes="yes",
        no="no",
        because="no: {}",
        bounds="{} to {}",
        either=" or ",
        help={name: found.help for name, found in declared()},
        fixed={name: found.fixed for name, found in declared() if found.fixed},
    )


def chinese() -> Language:
    words: dict[str, Any] = tomllib.loads(CHINESE.read_text(encoding="utf-8"))
    fixed = {name: each["reason"] for each in words.pop("fixed") for name in each["settings"]}
    columns = tuple(words.pop("columns"))
    page = ROOT / "docs" / "configuration.zh-CN.md"
    return Language(page=page, columns=columns, fixed=fixed, **words)


def untranslated(language: Language) -> list[str]:
    """Texts that a language lacks, and texts about settings that do not exist."""
    needed = english()
    return sorted(
        {f"help: {name}" for name in needed.help.keys() ^ language.help.keys()}
        | {f"fixed: {name}" for name in needed.fixed.keys() ^ language.fixed.keys()}
        | {f"section: {name}" for name in needed.sections.keys() ^ language.sections.keys()}
        | {f"unit: {ending}" for ending in needed.units.keys() ^ language.units.keys()}
    )


def unit_of(name: str, units: Mapping[str, str]) -> str:
    return next((unit for ending, unit in units.items() if name.endswith(ending)), "")


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


def bounds_of(declared: Declaration, default: object, language: Language) -> str:
    if isinstance(default, enum.Enum):
        return language.either.join(shown(member) for member in type(default))
    if declared.minimum is None or declared.maximum is None:
        return ""
    return language.bounds.format(shown(declared.minimum), shown(declared.maximum))


def live_of(name: str, declared: Declaration, language: Language) -> str:
    if declared.is_live:
        return language.yes
    return language.because.format(language.fixed[name]) if declared.fixed else language.no


def row_of(name: str, declared: Declaration, default: object, language: Language) -> str:
    alias = f"`{declared.alias}`" if declared.alias else ""
    is_port = name in ("port", "ha_port", "http_port")
    value = str(default) if is_port else shown(default)
    unit, bounds = unit_of(name, language.units), bounds_of(declared, default, language)
    live = live_of(name, declared, language)
    return _row((f"`{name}`", value, unit, bounds, live, alias, language.help[name]))


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |\n"


def table_of(kind: type, language: Language) -> str:
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    columns = language.columns
    head = f"\n## {language.sections[kind.__name__]}\n\n{_row(columns)}"
    rows = (
        row_of(name, found, defaults[name], language) for name, found in declarations(kind).items()
    )
    return head + _row(("---",) * len(columns)) + "".join(rows)


def settings_page(language: Language) -> str:
    return language.head + "".join(table_of(kind, language) for kind in SECTIONS.values())


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: gen_docs.py [--check]", file=sys.stderr)
        return 2
    missing = untranslated(chinese())
    if missing:
        where = f"{CHINESE.relative_to(ROOT)} does not match the settings:"
        print(where, *missing, sep="\n  ", file=sys.stderr)
        return 1
    return max(write(language, check=bool(arguments)) for language in (english(), chinese()))


def write(language: Language, *, check: bool) -> int:
    text, page = settings_page(language), language.page
    if page.exists() and page.read_text(encoding="utf-8") == text:
        return 0
    if check:
        print(f"{page.relative_to(ROOT)} is stale: run tools/gen_docs.py", file=sys.stderr)
        return 1
    page.write_text(text, encoding="utf-8")
    print(f"wrote {page.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
