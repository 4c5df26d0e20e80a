"""Settings as administrators see them: all to be read, a few to be changed while the broker runs.

Changes stay in memory: a restart brings back what the configuration file says, so that the file
remains the truth about a broker. A request with one key that may not be changed changes nothing.
"""

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar

from tianzhou.base.settings import SettingsError, declarations, load, masked
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.names import TRACE_TOPIC
from tianzhou.net.exchange import Refused
from tianzhou.replication.config import ReplicationConfig
from tianzhou.store.config import StoreConfig
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.tables import PERM_INHERIT, DataVersion

CHANGEABLE: Final = (
    "permission",
    "auto_create_topics",
    "auto_create_groups",
    "topics_max",
    "groups_max",
    "client_expiry_ms",
)
"""Settings whose owners take a new value while they run."""
GROUP_CHANGEABLE: Final = ("in_sync_replicas", "slave_timeout_ms")
"""The same, of a broker in a group of master and slaves."""

_FIXED: Final = {
    "filterServerNums": "0",
    "msgTraceTopicName": TRACE_TOPIC,
    "slaveReadEnable": "false",
    "traceTopicEnable": "true",
    "useTLS": "false",
}
"""Facts about every broker, unless its settings say otherwise, under the names by which RocketMQ's
tools look for them."""

TEXT_BYTES_MAX: Final = 64 * 1024

Settings = TypeVar("Settings", BrokerConfig, ReplicationConfig)


class Group(Protocol):
    """Who manages master and slaves."""

    @property
    def shown(self) -> ReplicationConfig:
        """The settings as they count now."""
        ...

    def change(self, settings: ReplicationConfig) -> None:
        """Take these instead. Raises Refused, and then nothing changed."""
        ...


class Settable:
    """Owner: the broker loop."""

    def __init__(
        self,
        config: BrokerConfig,
        store: StoreConfig,
        root: str,
        role: Callable[[], str] = lambda: "ASYNC_MASTER",
        group: Callable[[], Group | None] = lambda: None,
    ) -> None:
        """`role` says what this broker is now, in RocketMQ's words; `group` who manages that."""
        self.config = config
        self._group = group
        self._role = role
        self._store = store
        self._root = root
        self.version = DataVersion()
        self.adopt: list[Callable[[BrokerConfig], None]] = []
        """Called with the settings after every change."""

    def change(
        self, text: bytes, now_ms: int, *, before_shared: Callable[[], None] = lambda: None
    ) -> dict[str, str]:
        """Take `name=value` lines, by RocketMQ's names or ours; what was asked. Raises Refused, as
        `before_shared` may, which is called if settings of the whole group are to change."""
        asked, group = parse_properties(text), self._group()
        own = _named(BrokerConfig, CHANGEABLE)
        shared = _named(ReplicationConfig, GROUP_CHANGEABLE) if group is not None else {}
        refused = [key for key in asked if key not in own | shared]
        if refused:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"{', '.join(key[:64] for key in refused)} can't be changed while the broker runs; "
                f"these can: {', '.join(_spellings(own) | _spellings(shared))}",
            )
        changed = _changed(self.config, own, asked)
        if changed.permission & PERM_INHERIT:
            raise Refused(ResponseCode.INVALID_PARAMETER, "brokerPermission must be 0, 2, 4 or 6")
        if group is not None and asked.keys() & shared.keys():
            before_shared()
            group.change(_changed(group.shown, shared, asked))
        self.config = changed
        self.version = DataVersion(counter=self.version.counter + 1, timestamp=now_ms)
        for take in self.adopt:
            take(changed)
        return asked

    def text(self) -> bytes:
        """Every setting as `name=value`, under RocketMQ's name where it has one."""
        return "".join(f"{key}={value}\n" for key, value in self.table().items()).encode()

    def table(self) -> dict[str, str]:
        """Every setting, by name."""
        group = self._group()
        values = {
            **_FIXED,
            **({} if group is None else table_of(group.shown)),
            "brokerRole": self._role(),
            "storePathRootDir": self._root,
            **table_of(self.config),
            **table_of(self._store),
        }
        return {key: values[key] for key in sorted(values)}


def table_of(settings: BrokerConfig | StoreConfig | ReplicationConfig) -> dict[str, str]:
    """Settings as text, under RocketMQ's names, spelled so that a broker reads them back."""
    table: dict[str, str] = {}
    for name, declared in declarations(type(settings)).items():
        value = _text(name, getattr(settings, name))
        table[declared.alias or name] = masked(name, value)
    return table


def parse_properties(text: bytes) -> dict[str, str]:
    """`name=value` lines; blank ones and comments are skipped. Raises Refused."""
    if len(text) > TEXT_BYTES_MAX:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"more than {TEXT_BYTES_MAX} bytes")
    try:
        lines = text.decode().splitlines()
    except UnicodeDecodeError as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"not UTF-8: {error.reason}") from error
    found: dict[str, str] = {}
    for line in lines:
        key, sign, value = line.partition("=")
        if not line.strip() or line.lstrip()[0] in "#!":
            continue
        if not sign:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"{line[:64]!r} is not name=value")
        found[key.strip()] = value.strip()
    return found


def _named(kind: type, names: Iterable[str]) -> dict[str, str]:
    """How settings may be called, by RocketMQ's name and ours, and what they are."""
    declared = declarations(kind)
    return {name: name for name in names} | {declared[name].alias or name: name for name in names}


def _spellings(names: Mapping[str, str]) -> dict[str, None]:
    """One of each: RocketMQ's where it has one, which comes last."""
    return dict.fromkeys({name: spelled for spelled, name in names.items()}.values())


def _changed(config: Settings, names: Mapping[str, str], asked: Mapping[str, str]) -> Settings:
    values: dict[str, object] = {name: getattr(config, name) for name in declarations(type(config))}
    values |= {names[key]: value for key, value in asked.items() if key in names}
    try:
        return load(type(config), values)[0]
    except SettingsError as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from error


def _text(name: str, value: Any) -> str:
    if name in _SPELLINGS:
        return _SPELLINGS[name](value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value.value) if isinstance(value, enum.Enum) else str(value)


def _levels(levels_ms: tuple[int, ...]) -> str:
    units = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))
    words: list[str] = []
    for level_ms in levels_ms:
        size, unit = next(found for found in units if level_ms % found[0] == 0)
        words.append(f"{level_ms // size}{unit}")
    return " ".join(words)


_SPELLINGS: Final[Mapping[str, Callable[[Any], str]]] = {
    "disk_clean_ratio": lambda ratio: str(round(ratio * 100)),
    "memory_ratio": lambda ratio: str(round(ratio * 100)),
    "retention_at_hours": lambda hours: ";".join(f"{hour:02d}" for hour in hours),
    "delay_levels_ms": _levels,
}
"""Where RocketMQ writes a value differently: percents, hours, delays with units."""

for _kind, _names in ((BrokerConfig, CHANGEABLE), (ReplicationConfig, GROUP_CHANGEABLE)):
    assert {*_names} <= {field.name for field in dataclasses.fields(_kind)}
