"""Settings as administrators see them: all can be read, those declared `live` can be changed.

Changes stay in memory: a restart restores the values of the configuration file, which remains
authoritative. A request with one key that cannot be changed changes nothing.
"""

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar

from tianzhou.base.settings import (
    SettingsError,
    declarations,
    load,
    masked,
    spellings,
    suggestion,
)
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.names import TRACE_TOPIC
from tianzhou.net.rpc import RequestRejected
from tianzhou.replication.config import ReplicationConfig
from tianzhou.replication.raft_settings import RaftSettings
from tianzhou.store.config import ROOT_SETTING, StoreConfig
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.names import PERM_INHERIT
from tianzhou.wire.tables import DataVersion

_FIXED: Final = {
    "filterServerNums": "0",
    "msgTraceTopicName": TRACE_TOPIC,
    "slaveReadEnable": "false",
    "traceTopicEnable": "true",
    "useTLS": "false",
}
"""Facts about every broker under the names that RocketMQ's tools look up; its settings take
precedence."""

_NEVER: Final = {
    "filterServerNums": "this broker starts no filter servers",
    "msgTraceTopicName": "traces always go to this topic",
    "traceTopicEnable": "traces are always stored",
    "useTLS": "this broker has no TLS",
}
"""Why facts that are shown are not settings."""

_KINDS: Final = (BrokerConfig, StoreConfig, ReplicationConfig, RaftSettings)

TEXT_BYTES_MAX: Final = 64 * 1024

Settings = TypeVar("Settings", BrokerConfig, StoreConfig, ReplicationConfig)


class Group(Protocol):
    """The manager of master and slaves."""

    @property
    def shown(self) -> ReplicationConfig:
        """The current settings."""
        ...

    def change(self, settings: ReplicationConfig) -> None:
        """Apply new settings. Raises RequestRejected, and then nothing has changed."""
        ...


class RuntimeConfig:
    """Owner: the broker loop."""

    def __init__(
        self,
        config: BrokerConfig,
        store: StoreConfig,
        root: str,
        *,
        role: Callable[[], str] = lambda: "ASYNC_MASTER",
        group: Callable[[], Group | None] = lambda: None,
    ) -> None:
        """`role` returns the current role in RocketMQ's words, `group` the manager of replicas."""
        self.config = config
        self._group = group
        self._role = role
        self._store = store
        self._root = root
        self.version = DataVersion()
        self.adopt: list[Callable[[BrokerConfig], None]] = []
        """Called with the broker's settings after every change of one of them."""
        self.adopt_store: list[Callable[[StoreConfig], None]] = []
        """The same for the settings of the store."""

    def change(
        self, text: bytes, now_ms: int, *, before_shared: Callable[[], None] = lambda: None
    ) -> dict[str, str]:
        """Apply `name=value` lines with RocketMQ's or Tianzhou's names; returns the requested
        changes. `before_shared` is called first if settings of the whole group change, or those of
        the store, which decide what is deleted. Raises RequestRejected, as does `before_shared`."""
        asked, group = parse_properties(text), self._group()
        _check_names(asked, has_group=group is not None)
        own, stored = _changed(self.config, asked), _changed(self._store, asked)
        if self.config.nameservers and not own.nameservers:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                "namesrvAddr must name a NameServer while the broker runs: without one neither "
                "clients nor commands find this broker; to retire the broker, stop it",
            )
        shared = _changed(group.shown, asked) if group is not None else None
        if own.permission & PERM_INHERIT:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER, "brokerPermission must be 0, 2, 4 or 6"
            )
        is_shared = group is not None and shared != group.shown
        if is_shared or stored != self._store:
            before_shared()
        if group is not None and shared is not None and is_shared:
            group.change(shared)
        self._apply(own, stored)
        self.version = DataVersion(counter=self.version.counter + 1, timestamp=now_ms)
        return asked

    def _apply(self, own: BrokerConfig, stored: StoreConfig) -> None:
        if stored != self._store:
            self._store = stored
            for adopt_store in self.adopt_store:
                adopt_store(stored)
        if own != self.config:
            self.config = own
            for adopt in self.adopt:
                adopt(own)

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
            ROOT_SETTING: self._root,
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
    """`name=value` lines; blank ones and comments are skipped. Raises RequestRejected."""
    if len(text) > TEXT_BYTES_MAX:
        raise RequestRejected(ResponseCode.INVALID_PARAMETER, f"more than {TEXT_BYTES_MAX} bytes")
    try:
        lines = text.decode().splitlines()
    except UnicodeDecodeError as error:
        raise RequestRejected(
            ResponseCode.INVALID_PARAMETER, f"not UTF-8: {error.reason}"
        ) from error
    found: dict[str, str] = {}
    for line in lines:
        key, sign, value = line.partition("=")
        if not line.strip() or line.lstrip()[0] in "#!":
            continue
        if not sign:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER, f"{line[:64]!r} is not name=value"
            )
        found[key.strip()] = value.strip()
    return found


def _check_names(asked: Iterable[str], *, has_group: bool) -> None:
    """Raises RequestRejected for names that are unknown here, or that cannot change while it
    runs."""
    known = spellings(*_KINDS)
    reasons = {name: one.reason for kind in _KINDS for name, one in declarations(kind).items()}
    if not has_group:
        reasons |= dict.fromkeys(
            declarations(ReplicationConfig), "this broker does not belong to a master-slave group"
        )
    never = [f"{key} cannot change: {_NEVER[key]}" for key in asked if key in _NEVER]
    if never:
        raise RequestRejected(ResponseCode.NO_PERMISSION, "; ".join(never))
    known[ROOT_SETTING], reasons[ROOT_SETTING] = ROOT_SETTING, "the store is open in this directory"
    unknown = [key for key in asked if key not in known]
    if unknown:
        raise RequestRejected(
            ResponseCode.INVALID_PARAMETER,
            "; ".join(_unknown(key, known) for key in unknown)
            + "; `tianzhou broker config` lists all settings",
        )
    fixed = [
        f"{key} cannot change while the broker runs: {reasons[known[key]]}"
        for key in asked
        if reasons[known[key]]
    ]
    if fixed:
        raise RequestRejected(
            ResponseCode.NO_PERMISSION,
            "; ".join(fixed) + "; change it in the settings file and restart the broker",
        )


def _unknown(key: str, known: Iterable[str]) -> str:
    meant = suggestion(key, known)
    hint = f"; did you mean {meant}?" if meant else ""
    return f"unknown setting {key[:64]!r}{hint}"


def _changed(config: Settings, asked: Mapping[str, str]) -> Settings:
    known = spellings(type(config))
    # Under the names of the request, so that an error repeats the one that was used.
    named = {key: value for key, value in asked.items() if key in known}
    replaced = {known[key] for key in named}
    values: dict[str, object] = {
        name: getattr(config, name) for name in declarations(type(config)) if name not in replaced
    }
    values |= named
    try:
        return load(type(config), values)[0]
    except SettingsError as error:
        raise RequestRejected(ResponseCode.INVALID_PARAMETER, str(error)) from error


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
