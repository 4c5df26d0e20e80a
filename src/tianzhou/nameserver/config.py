"""Settings of the NameServer. Those in SETTABLE can be changed while it runs."""

import dataclasses
from dataclasses import dataclass
from typing import Final

from tianzhou.base.settings import declarations, load, masked, setting
from tianzhou.wire.signing import checked_credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    bind_address: str = setting(
        "127.0.0.1",
        alias="bindAddress",
        help="Address to listen on. The default is reachable from this machine only.",
    )
    listen_port: int = setting(
        9876,
        min=0,
        max=65_535,
        alias="listenPort",
        help="Port to listen on; 0 for any free one.",
    )
    connections_max: int = setting(
        20_000,
        min=1,
        max=1_000_000,
        help="Concurrent connections; further ones are refused.",
    )

    data_dir: str = setting(
        "",
        alias="dataDir",
        help="Directory for the record of missing brokers and epochs. Empty: in memory only.",
    )
    cluster_credentials: str = setting(
        "",
        alias="innerClientAuthenticationCredentials",
        read=checked_credentials,
        help="Credentials that changes must be signed with. Empty: all changes are allowed.",
    )

    scan_interval_ms: int = setting(
        10_000,
        min=10,
        max=600_000,
        alias="scanNotActiveBrokerInterval",
        help="Interval in milliseconds at which silent brokers are removed.",
    )
    broker_timeout_ms: int = setting(
        120_000,
        min=1_000,
        max=3_600_000,
        help="Remove a broker that was silent for this long, unless it registered another time.",
    )

    order_config_enabled: bool = setting(
        False,
        alias="orderMessageEnable",
        help="Include the order configuration of a topic in its route.",
    )
    topic_list_enabled: bool = setting(
        True,
        alias="enableTopicList",
        help="Allow clients to list all topics.",
    )
    drops_omitted_topics: bool = setting(
        False,
        alias="deleteTopicWithBrokerRegistration",
        help="Remove topics of a broker that its registration no longer contains.",
    )
    acting_master_enabled: bool = setting(
        False,
        alias="supportActingMaster",
        help="Show the lowest slave as master while there is none, if the broker allows it.",
    )
    waits_for_service: bool = setting(
        False,
        alias="needWaitForService",
        help="After a start, return no routes until all brokers had time to register.",
    )
    wait_for_service_s: int = setting(
        45,
        min=0,
        max=3_600,
        alias="waitSecondsForService",
        help="How long to wait for brokers after a start, in seconds.",
    )


SETTABLE: Final = frozenset(
    {
        "scan_interval_ms",
        "broker_timeout_ms",
        "order_config_enabled",
        "topic_list_enabled",
        "drops_omitted_topics",
        "acting_master_enabled",
        "waits_for_service",
        "wait_for_service_s",
    }
)
"""Harmless numbers and switches: no paths, no addresses, no memory limits."""


def shown_name(name: str) -> str:
    """RocketMQ's names of settings, where it has them: its tools show these."""
    return declarations(NameServerConfig)[name].alias or name


def locked(values: dict[str, str]) -> list[str]:
    """Return the keys that cannot be changed while the server runs."""
    allowed = SETTABLE | {shown_name(name) for name in SETTABLE}
    return [key for key in values if key not in allowed]


def changed(config: NameServerConfig, values: dict[str, str]) -> NameServerConfig:
    """Return the settings with these values. Raises SettingsError with all invalid values."""
    by_shown = {shown_name(name): name for name in declarations(NameServerConfig)}
    named: dict[str, object] = {by_shown.get(key, key): text for key, text in values.items()}
    return load(NameServerConfig, {**dataclasses.asdict(config), **named})[0]


def read_properties(text: str) -> dict[str, str]:
    """Parse `key=value` lines as Java writes them; escapes are not decoded."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        entry = line.strip()
        if entry and entry[0] not in "#!":
            at = min((i for i in (entry.find("="), entry.find(":")) if i >= 0), default=len(entry))
            found[entry[:at].strip()] = entry[at + 1 :].strip()
    return found


def write_properties(config: NameServerConfig) -> str:
    values = dataclasses.asdict(config)
    return "".join(
        f"{shown_name(name)}={masked(name, _text(value))}\n" for name, value in values.items()
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
