"""Peers that send no greeting: RocketMQ's brokers, which have no epochs.

A slave that follows such a master, or a master that serves such a slave, cannot tell where two logs
diverge. So both are disabled unless the operator lists the peer's address in `ha_plain_peers`, and
a slave that has messages first requests its last bytes again and compares them (`Overlap`).
"""

import ipaddress
from typing import Final, NamedTuple, TypeAlias

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.replication.errors import PeerRefused
from tianzhou.replication.ha_frames import LogBytes

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

PEERS_MAX: Final = 64


class PlainPeers(NamedTuple):
    """The peers that may follow, or be followed, without a greeting."""

    networks: tuple[Network, ...] = ()

    @classmethod
    def read(cls, text: str) -> "PlainPeers":
        """Parse addresses and networks separated by commas. Raises ValueError."""
        words = [word for word in text.replace(",", " ").split() if word]
        if len(words) > PEERS_MAX:
            raise ValueError(f"{len(words)} peers are listed; at most {PEERS_MAX} are allowed")
        return cls(tuple(ipaddress.ip_network(word, strict=False) for word in words))

    def admits(self, host: str) -> bool:
        """Whether the peer at this IP address is listed. Host names are never listed."""
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self.networks)


def checked_plain_peers(text: str) -> str:
    """Validate the setting: return the text if it is a list of addresses. Raises ValueError."""
    if text.strip().lower() in ("", "false"):
        return ""
    if text.strip().lower() == "true":
        raise ValueError(
            "the value true, for every address, is no longer supported; list the IP addresses or "
            "networks of the RocketMQ brokers, separated by commas"
        )
    PlainPeers.read(text)
    return text


class Overlap:
    """The last bytes of a slave's log, which a master without epochs must send again.

    Owner: the connection. Until `is_proven` nothing may be appended or confirmed.
    """

    def __init__(self, start: PhysicalOffset, data: bytes) -> None:
        self.start = start
        self._data = data
        self._compared = 0

    @property
    def is_proven(self) -> bool:
        return self._compared == len(self._data)

    @property
    def end(self) -> int:
        return self.start + len(self._data)

    def strip(self, pieces: list[LogBytes]) -> list[LogBytes]:
        """Compare received bytes with the slave's own; returns those beyond them. Raises
        PeerRefused."""
        beyond: list[LogBytes] = []
        for offset, data in pieces:
            if self.is_proven:
                beyond.append(LogBytes(offset, data))
                continue
            at = self.start + self._compared
            if offset != at:
                raise PeerRefused(f"the master sends its log from {offset}; {at} was requested")
            ours = self._data[self._compared : self._compared + len(data)]
            if data[: len(ours)] != ours:
                raise PeerRefused(
                    f"the master's log differs from this slave's before {self.end}; a broker "
                    "without epochs cannot tell where they diverge: start this slave with an "
                    "empty directory"
                )
            self._compared += len(ours)
            if len(data) > len(ours):
                beyond.append(LogBytes(PhysicalOffset(offset + len(ours)), data[len(ours) :]))
        return beyond
