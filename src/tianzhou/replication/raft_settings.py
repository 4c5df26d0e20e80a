"""Settings of a Raft group, with DLedger's property names as aliases, and its peers."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.base.host_names import is_disguised_address
from tianzhou.base.settings import setting
from tianzhou.raft.membership import Members
from tianzhou.raft.messages import NodeId

_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
"""A name, an IPv4 address, or an IPv6 address in brackets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    raft_enabled: bool = setting(
        False,
        alias="enableDLegerCommitLog",
        help="Join a group that elects its own master.",
    )
    raft_group: str = setting(
        "", alias="dLegerGroup", help="Name of the Raft group, equal on all members."
    )
    raft_peers: str = setting(
        "",
        alias="dLegerPeers",
        help="Addresses of the members for each other: `n0=host:port;n1=host:port;n2=host:port`, "
        "or with `-` as RocketMQ writes it. The same on all members.",
    )
    raft_id: str = setting("", alias="dLegerSelfId", help="The name of this member in raft_peers.")
    raft_witness: str = setting(
        "",
        help="The name in raft_peers of the witness, which votes and has no messages: "
        "`tianzhou witness` starts it. The same on all members of a new group.",
    )
    raft_preferred: str = setting(
        "",
        alias="preferredLeaderId",
        help="Preferred leaders, best first, separated by `;`. Another leader hands over to "
        "them when they have everything.",
    )
    raft_new: bool = setting(
        False,
        help="The group is being created, so an empty directory has lost nothing. Set it once; "
        "a member with an empty directory otherwise counts only when the others repaired it.",
    )
    raft_relaxed: bool = setting(
        False,
        help="Acknowledge messages that a majority has in memory. A power failure may lose them.",
    )
    raft_secret: str = setting(
        "",
        help="Shared secret that members prove to each other. Empty: no proof.",
    )
    raft_election_ms: int = setting(
        1_000,
        min=100,
        max=60_000,
        help="A member without a leader for this long, or up to twice as long, stands for "
        "election; a leader without a majority for this long steps down.",
    )
    raft_heartbeat_ms: int = setting(
        200, min=10, max=10_000, help="Interval of the leader's heartbeats."
    )
    raft_ack_timeout_ms: int = setting(
        2_500,
        min=10,
        max=60_000,
        alias="maxWaitAckTimeMs",
        help="How long a producer waits for a majority before its send fails.",
    )


def peers_of(text: str) -> dict[NodeId, str]:
    """Parse the peers: names and addresses. Raises UsageError."""
    found: dict[NodeId, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        name, sign, address = part.partition("=")
        if not sign:
            name, sign, address = part.partition("-")
        host, colon, port = address.rpartition(":")
        is_port = port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65536
        if not (name and sign and colon and is_port and _HOST.fullmatch(host)):
            raise UsageError(
                f"invalid peer {part[:128]!r}; use name=host:port, several separated by ;"
            )
        if _is_nowhere(host):
            raise UsageError(f"{address} is not a valid member address; use one of its machine")
        if name in found:
            raise UsageError(f"{name} is named twice in raft_peers")
        found[name] = address
    return found


def _is_nowhere(host: str) -> bool:
    """Whether this address belongs to a cloud metadata service, to many machines at once, or to
    none, or hides such an address in a number."""
    ip = _ip(host)
    if ip is None:
        return is_disguised_address(host)
    is_reserved = ip.is_reserved and not ip.is_loopback  # ::1 is both
    return ip.is_link_local or ip.is_multicast or ip.is_unspecified or is_reserved


def is_loopback(address: str) -> bool:
    """Whether host:port is on the machine that connects to it."""
    host = address.rpartition(":")[0]
    ip = _ip(host)
    return host.lower() == "localhost" if ip is None else ip.is_loopback


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        ip = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip


def check(settings: RaftSettings) -> dict[NodeId, str]:
    """Validate these settings and return the peers. Raises UsageError."""
    peers = peers_of(settings.raft_peers)
    if not settings.raft_group:
        raise UsageError("a Raft group needs a name; pass --raft-group NAME")
    if settings.raft_id not in peers:
        known = ", ".join(peers) or "none"
        raise UsageError(f"raft_id {settings.raft_id!r} must be one of the peers ({known})")
    _check_witness(settings, peers)
    if settings.raft_heartbeat_ms * 2 > settings.raft_election_ms:
        raise UsageError(
            f"heartbeats every {settings.raft_heartbeat_ms} ms are too rare for elections after "
            f"{settings.raft_election_ms} ms; at least two must fit"
        )
    return peers


def first_members(settings: RaftSettings) -> Members:
    """The members of a new group. Raises UsageError."""
    peers = check(settings)
    witnesses = frozenset({settings.raft_witness} - {""})
    return Members(frozenset(peers), addresses=text_of(peers), witnesses=witnesses)


def _check_witness(settings: RaftSettings, peers: dict[NodeId, str]) -> None:
    witness = settings.raft_witness
    if not witness:
        return
    if witness not in peers:
        raise UsageError(
            f"raft_witness {witness!r} must be one of the peers ({', '.join(peers)}); "
            "add its address to raft_peers"
        )
    if len(peers) < 3:
        raise UsageError(
            f"a group with the witness {witness} needs two copies of the messages; name two "
            "brokers and the witness in raft_peers"
        )
    if witness in re.split("[,;]", settings.raft_preferred.replace(" ", "")):
        raise UsageError(f"the witness {witness} cannot lead; remove it from raft_preferred")


def broker_id_of(member: NodeId, peers: dict[NodeId, str]) -> int:
    """The id of a member's broker while it does not lead; never 0, which is the master's.

    As in RocketMQ: the number in its name, and one more. If these are not one for each, by rank.
    """
    names = sorted({*peers, member})
    numbers = {name: "".join(filter(str.isdecimal, name)) for name in names}
    if "" in numbers.values() or len({int(number) for number in numbers.values()}) < len(names):
        return names.index(member) + 1
    return int(numbers[member]) + 1


def text_of(addresses: dict[NodeId, str]) -> str:
    """The inverse of `peers_of`."""
    return ";".join(f"{name}={address}" for name, address in sorted(addresses.items()))
