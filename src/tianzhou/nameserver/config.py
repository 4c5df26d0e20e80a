"""Settings of the name server. Those in SETTABLE can be changed while it runs."""

import dataclasses
from dataclasses import dataclass
from typing import Final

from tianzhou.base.settings import declarations, load, masked, setting
from tianzhou.wire.signing import checked_credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    bind_address: str = setting(
        "127.0.0.1", alias="bindAddress",
        help="Address to listen on. The default is reached from this machine only.",
    )  # fmt: skip
    listen_port: int = setting(
        9876, min=0, max=65_535, alias="listenPort",
        help="Port to listen on; 0 for any free one.",
    )  # fmt: skip
    connections_max: int = setting(
        20_000, min=1, max=1_000_000,
        help="Connections at a time; more are refused.",
    )  # fmt: skip

    data_dir: str = setting(
        "", alias="dataDir",
        help="Directory for the record of missing brokers and epochs. Empty: in memory only.",
    )  # fmt: skip
    cluster_credentials: str = setting(
        "", alias="innerClientAuthenticationCredentials", read=checked_credentials,
        help="Who does not sign with this pair changes nothing here. Empty: everybody may.",
    )  # fmt: skip

    scan_interval_ms: int = setting(
        10_000, min=10, max=600_000, alias="scanNotActiveBrokerInterval",
        help="How often brokers that were silent too long are looked for, in milliseconds.",
    )  # fmt: skip
    broker_timeout_ms: int = setting(
        120_000, min=1_000, max=3_600_000,
        help="A broker that was silent for so long is forgotten, unless it named a time itself.",
    )  # fmt: skip

    order_config_enabled: bool = setting(
        False, alias="orderMessageEnable",
        help="Tell clients the order config of a topic with its route.",
    )  # fmt: skip
    topic_list_enabled: bool = setting(
        True, alias="enableTopicList",
        help="Tell whoever asks the names of all topics.",
    )  # fmt: skip
    drops_omitted_topics: bool = setting(
        False, alias="deleteTopicWithBrokerRegistration",
        help="Forget topics of a broker that its registration no longer names.",
    )  # fmt: skip
    acting_master_enabled: bool = setting(
        False, alias="supportActingMaster",
        help="Show clients the lowest slave as master while there is none, if the broker wants it.",
    )  # fmt: skip
    waits_for_service: bool = setting(
        False, alias="needWaitForService",
        help="Answer no routes after the start until all brokers had time to register.",
    )  # fmt: skip
    wait_for_service_s: int = setting(
        45, min=0, max=3_600, alias="waitSecondsForService",
        help="How long that is, in seconds.",
    )  # fmt: skip


SETTABLE: Final = frozenset(
    {
        "scan_interval_ms", "broker_timeout_ms", "order_config_enabled", "topic_list_enabled",
        "drops_omitted_topics", "acting_master_enabled", "waits_for_service", "wait_for_service_s",
    }
)  # fmt: skip
"""Numbers and switches that endanger nobody. No paths, no addresses, no limits of memory."""


def shown_name(name: str) -> str:
    """RocketMQ's name of a setting where it has one: that is what its tools show."""
    return declarations(NameServerConfig)[name].alias or name


def locked(values: dict[str, str]) -> list[str]:
    """The keys among these that can't be changed while the server runs."""
    allowed = SETTABLE | {shown_name(name) for name in SETTABLE}
    return [key for key in values if key not in allowed]


def changed(config: NameServerConfig, values: dict[str, str]) -> NameServerConfig:
    """The settings with these values in place. SettingsError lists all that can't be used."""
    by_shown = {shown_name(name): name for name in declarations(NameServerConfig)}
    named: dict[str, object] = {by_shown.get(key, key): text for key, text in values.items()}
    return load(NameServerConfig, {**dataclasses.asdict(config), **named})[0]


def read_properties(text: str) -> dict[str, str]:
    """`key=value` lines as Java writes them; escapes are left as they are."""
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
