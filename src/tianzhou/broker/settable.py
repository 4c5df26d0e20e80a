"""Settings as administrators see them: all to be read, a few to be changed while the broker runs.

Changes stay in memory: a restart brings back what the configuration file says, so that the file
remains the truth about a broker. A request with one key that may not be changed changes nothing.
"""

import dataclasses
import enum
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tianzhou.base.settings import SettingsError, declarations, load
from tianzhou.broker.config import BrokerConfig
from tianzhou.net.exchange import Refused
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

TEXT_BYTES_MAX: Final = 64 * 1024

_SECRET: Final = re.compile(r"password|secret|token|credential|access_?key", re.IGNORECASE)
MASK: Final = "******"


class Settable:
    """Owner: the broker loop."""

    def __init__(
        self,
        config: BrokerConfig,
        store: StoreConfig,
        root: str,
        role: Callable[[], str] = lambda: "ASYNC_MASTER",
    ) -> None:
        """`role` says what this broker is now, in RocketMQ's words."""
        self.config = config
        self._role = role
        self._store = store
        self._root = root
        self.version = DataVersion()
        self.adopt: list[Callable[[BrokerConfig], None]] = []
        """Called with the settings after every change."""

    def change(self, text: bytes, now_ms: int) -> dict[str, str]:
        """Take `name=value` lines, by RocketMQ's names or ours; what was asked. Raises Refused."""
        asked = parse_properties(text)
        declared = declarations(BrokerConfig)
        names = {d.alias or name: name for name, d in declared.items()} | {n: n for n in declared}
        refused = [key for key in asked if names.get(key) not in CHANGEABLE]
        if refused:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"{', '.join(key[:64] for key in refused)} can't be changed while the broker runs; "
                f"these can: {', '.join(_spelled(name) for name in CHANGEABLE)}",
            )
        values: dict[str, object] = {name: getattr(self.config, name) for name in declared}
        values |= {names[key]: value for key, value in asked.items()}
        try:
            changed, _ = load(BrokerConfig, values)
        except SettingsError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if changed.permission & PERM_INHERIT:
            raise Refused(ResponseCode.INVALID_PARAMETER, "brokerPermission must be 0, 2, 4 or 6")
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
        values = {
            "brokerRole": self._role(),
            "storePathRootDir": self._root,
            **table_of(self.config),
            **table_of(self._store),
        }
        return {key: values[key] for key in sorted(values)}


def table_of(settings: BrokerConfig | StoreConfig) -> dict[str, str]:
    """Settings as text, under RocketMQ's names, spelled so that a broker reads them back."""
    table: dict[str, str] = {}
    for name, declared in declarations(type(settings)).items():
        value = MASK if _SECRET.search(name) else _text(name, getattr(settings, name))
        table[declared.alias or name] = value
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


def _spelled(name: str) -> str:
    return declarations(BrokerConfig)[name].alias or name


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
    "retention_at_hours": lambda hours: ";".join(f"{hour:02d}" for hour in hours),
    "delay_levels_ms": _levels,
}
"""Where RocketMQ writes a value differently: percents, hours, delays with units."""

assert {*CHANGEABLE} <= {field.name for field in dataclasses.fields(BrokerConfig)}
