"""Probe an address: name, connection, protocol, kind of server.

A firewall that drops packets sends no reply, so a connection attempt through it ends only with its
timeout. The timeout is therefore short, and all addresses are probed at once.
"""

import enum
import socket
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from tianzhou.admin.doctor.findings import Finding, fine, problem, warning
from tianzhou.base.errors import TianzhouError
from tianzhou.base.nameserver_addresses import is_host_name
from tianzhou.client.core.admin_results import BrokerPlace
from tianzhou.client.options import split_address
from tianzhou.net.blocking import BlockingPeer
from tianzhou.net.connect import connect_blocking
from tianzhou.net.resolver import addresses_of
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.routes import decode_cluster_table

WITHIN_S: Final = 3.0
AT_ONCE: Final = 16
_LOOPBACK: Final = ("127.", "localhost", "::1", "0.0.0.0")


class Reached(enum.Enum):
    SERVES = enum.auto()
    NO_NAME = enum.auto()
    REFUSED = enum.auto()
    SILENT = enum.auto()
    """The connection timed out."""
    MUTE = enum.auto()
    """Connected, but the request timed out."""
    FOREIGN = enum.auto()
    """The peer does not speak the protocol."""
    OTHER_KIND = enum.auto()
    """The peer speaks the protocol but rejects the request code."""


class Probe(NamedTuple):
    reached: Reached
    detail: str = ""


def probe_all(addresses: Iterable[str], code: int) -> dict[str, Probe]:
    """Probe all addresses at once, so that several silent ones cost one timeout."""
    wanted = list(dict.fromkeys(addresses))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        probes = pool.map(probe, wanted, [code] * len(wanted))
        return dict(zip(wanted, probes, strict=True))


def probe(address: str, code: int) -> Probe:
    host, port = split_address(address)
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return Probe(Reached.NO_NAME, error.strerror or str(error))
    except UnicodeError:  # such as a..b, which DNS cannot resolve
        return Probe(Reached.NO_NAME, "it is not a valid host name")
    try:
        connect_blocking(host, port, timeout_s=WITHIN_S).close()
    except ConnectionRefusedError:
        return Probe(Reached.REFUSED)
    except OSError as error:
        return Probe(Reached.SILENT, str(error))
    try:
        with BlockingPeer(address, WITHIN_S) as peer:
            answer, _ = peer.call(code)
    except TianzhouError as error:
        silent = isinstance(error.__cause__, TimeoutError)
        return Probe(Reached.MUTE if silent else Reached.FOREIGN, str(error))
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return Probe(Reached.OTHER_KIND)
    return Probe(Reached.SERVES)


def each_nameserver(entries: Iterable[str]) -> list[str]:
    """The NameServers of a list. A host name with several addresses stands for several of them."""
    found: dict[str, None] = {}
    for entry in entries:
        behind = addresses_of(entry) if is_host_name(entry) else ()
        found |= dict.fromkeys(behind if len(behind) > 1 else (entry,))
    return list(found)


def listing_findings(servers: Sequence[str]) -> Iterator[Finding]:
    """Brokers that one of these NameServers lists and another one does not: which broker a client
    finds depends on the NameServer that it asks."""
    listed = {server: _listed(server) for server in servers} if len(servers) > 1 else {}
    every = {broker for brokers in listed.values() for broker in brokers}
    for server, brokers in listed.items():
        for name, address in sorted(every - brokers):
            others = ", ".join(at for at, found in listed.items() if (name, address) in found)
            said = f"it does not list {name} at {address}, which {others} lists"
            fix = f"add it to namesrvAddr: tianzhou broker config {name} --like namesrvAddr"
            yield warning(f"NameServer {server}", said, fix)


def _listed(server: str) -> set[tuple[str, str]]:
    """The name and address of each broker process."""
    try:
        with BlockingPeer(server, WITHIN_S) as peer:
            _, body = peer.call(RequestCode.GET_BROKER_CLUSTER_INFO)
        table = decode_cluster_table(body).broker_addr_table
    except TianzhouError:
        return set()
    return {(name, at) for name, row in table.items() for at in row.broker_addrs.values()}


def nameserver_findings(addresses: Iterable[str]) -> dict[str, Finding]:
    """By address."""
    probes = probe_all(addresses, RequestCode.GET_BROKER_CLUSTER_INFO)
    return {address: _nameserver(address, found) for address, found in probes.items()}


def _nameserver(address: str, found: Probe) -> Finding:
    about, (host, port) = f"NameServer {address}", split_address(address)
    match found.reached:
        case Reached.SERVES:
            return fine(about, "it responds")
        case Reached.NO_NAME:
            said = f"the name {host!r} cannot be resolved: {found.detail}"
            return problem(about, said, "pass -n with the correct name, or with the IP address")
        case Reached.REFUSED:
            said = f"nothing listens on port {port}; it is not running, or uses another port"
            return problem(about, said, f"tianzhou nameserver --port {port}")
        case Reached.SILENT:
            said = (
                f"the connection timed out after {WITHIN_S:.0f} s: a firewall drops it, or the "
                f"address is wrong ({found.detail})"
            )
            fix = f"allow TCP connections from here to port {port} of {host}"
            return problem(about, said, f"{fix}, or: tianzhou doctor -n HOST:{port}")
        case Reached.MUTE:
            said = f"it accepts connections but does not respond within {WITHIN_S:.0f} s: it hangs"
            return problem(about, said, f"restart it: tianzhou nameserver --port {port}")
        case Reached.FOREIGN:
            said = f"the program there does not speak RocketMQ's protocol: {found.detail}"
            return problem(about, said, "tianzhou doctor -n HOST:9876")
        case Reached.OTHER_KIND:
            said = "this is a broker, not a NameServer; its port is usually 9876"
            return problem(about, said, f"tianzhou doctor -n {host}:9876")


def probe_brokers(places: Iterable[BrokerPlace]) -> dict[str, Probe]:
    """By address."""
    addresses = [address for place in places for address in place.addresses.values()]
    return probe_all(addresses, RequestCode.GET_BROKER_RUNTIME_INFO)


def broker_finding(place: BrokerPlace, address: str, nameserver: str, found: Probe) -> Finding:
    about = f"broker {place.name}"
    told = f"the NameServer returns {address}, "
    fix = f"brokerIP1=ADDRESS in the settings of {place.name}, and restart it"
    match found.reached:
        case Reached.SERVES:
            if is_loopback(address) and not is_loopback(nameserver):
                said = f"{told}which responds here, but is the local machine for every other client"
                return warning(about, said, fix)
            return fine(about, f"{address} responds")
        case Reached.NO_NAME:
            return problem(about, f"{told}which cannot be resolved here: {found.detail}", fix)
        case Reached.MUTE:
            said = f"{told}which accepts connections but does not respond: it hangs"
            return problem(about, said, f"restart {place.name}, and check its log")
        case Reached.REFUSED | Reached.SILENT:
            why = "nothing listens there"
            if found.reached is Reached.SILENT:
                why = f"the connection times out after {WITHIN_S:.0f} s, as behind a firewall"
            if is_loopback(address) and not is_loopback(nameserver):
                return problem(about, f"{told}which is this machine, not the broker's", fix)
            return problem(about, f"{told}which cannot be reached from here: {why}", fix)
        case Reached.FOREIGN:
            said = f"{told}where another program listens: {found.detail}"
            return problem(about, said, f"check listenPort of {place.name}; the default is 10911")
        case Reached.OTHER_KIND:
            said = f"{told}which is a NameServer, not a broker"
            return problem(about, said, f"check listenPort of {place.name}; the default is 10911")


def is_loopback(address: str) -> bool:
    return address.lstrip("[").startswith(_LOOPBACK)
