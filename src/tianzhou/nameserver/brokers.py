"""Brokers as the NameServer knows them: their registrations, and the state kept of them.

A broker name stands for a group of processes with the same messages: the master with id 0, and
slaves. Each has one address.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tianzhou.nameserver.addresses import as_dialled
from tianzhou.wire.routes import QueueData
from tianzhou.wire.tables import DataVersion, TopicConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The validated contents of REGISTER_BROKER."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    by_dial: bool = False
    """The address was not configured, and the broker runs on this machine."""
    timeout_s: float = 120.0
    acting_master: bool | None = None
    """Whether the slave with the lowest id acts for the master. None: the broker is too old to
    report it."""
    zone: str | None = None
    data_version: DataVersion = DataVersion()
    greets: bool = False
    """Whether the broker runs Tianzhou: it reports its epoch and exchanges greetings with
    slaves."""
    epoch_token: str = ""
    """Distinguishes masters with the same epoch; empty if its epochs are not tracked here."""
    topics: tuple[TopicConfig, ...] = ()


@dataclass(slots=True)
class Member:
    """One process of a group."""

    address: str
    ha_address: str
    by_dial: bool
    data_version: DataVersion
    timeout_s: float
    heard_s: float
    connection: object
    """The connection it registered through; only its identity is used."""
    greets: bool = False

    def address_for(self, dialled: str | None) -> str:
        """Return its address for a client that reached the NameServer through this local
        address."""
        return as_dialled(self.address, dialled) if self.by_dial and dialled else self.address

    def ha_address_for(self, dialled: str | None) -> str:
        if self.by_dial and dialled and self.ha_address:
            return as_dialled(self.ha_address, dialled)
        return self.ha_address


@dataclass(frozen=True, slots=True)
class Lost:
    """A process that disappeared without unregistering, and the last known state of its group."""

    name: str
    broker_id: int
    cluster: str
    member: Member
    rows: Mapping[str, QueueData]
    """The last known topics of the group."""


@dataclass(slots=True)
class BrokerGroup:
    """All processes with one broker name."""

    name: str
    cluster: str
    acting_master: bool = False
    zone: str | None = None
    members: dict[int, Member] = field(default_factory=dict[int, Member])

    def id_of(self, address: str) -> int | None:
        return next((i for i, m in self.members.items() if m.address == address), None)

    def addresses_for(self, dialled: str | None) -> dict[int, str]:
        return {i: m.address_for(dialled) for i, m in sorted(self.members.items())}
