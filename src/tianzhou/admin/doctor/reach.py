"""Who answers at an address, and what: name, connection, protocol, kind of server.

A firewall that drops packets says nothing, and a connection through it takes as long as one waits.
So nobody waits long, and all addresses are tried at once.
"""

import enum
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from tianzhou.admin.doctor.findings import Finding, fine, problem, warning
from tianzhou.base.errors import TianzhouError
from tianzhou.client.core.admin_results import BrokerPlace
from tianzhou.client.options import split_address
from tianzhou.net.blocking import BlockingPeer
from tianzhou.wire._generated_codes import RequestCode, ResponseCode

WITHIN_S: Final = 3.0
AT_ONCE: Final = 16
_LOOPBACK: Final = ("127.", "localhost", "::1", "0.0.0.0")


class Reached(enum.Enum):
    SERVES = enum.auto()
    NO_NAME = enum.auto()
    REFUSED = enum.auto()
    SILENT = enum.auto()
    """No connection came about in time."""
    MUTE = enum.auto()
    """A connection came about, and no answer."""
    FOREIGN = enum.auto()
    """Somebody is there, and does not speak the protocol."""
    OTHER_KIND = enum.auto()
    """It speaks the protocol, and does not know the question."""


class Probe(NamedTuple):
    reached: Reached
    detail: str = ""


def probe_all(addresses: Iterable[str], code: int) -> dict[str, Probe]:
    """Ask at all of them at once, so that one that is silent costs no more than one."""
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
        socket.create_connection((host, port), WITHIN_S).close()
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


def nameserver_findings(addresses: Iterable[str]) -> dict[str, Finding]:
    """By address."""
    probes = probe_all(addresses, RequestCode.GET_BROKER_CLUSTER_INFO)
    return {address: _nameserver(address, found) for address, found in probes.items()}


def _nameserver(address: str, found: Probe) -> Finding:
    about, (host, port) = f"NameServer {address}", split_address(address)
    match found.reached:
        case Reached.SERVES:
            return fine(about, "it answers")
        case Reached.NO_NAME:
            said = f"the name {host!r} leads to no address: {found.detail}"
            return problem(about, said, "-n with the right name, or its IP address")
        case Reached.REFUSED:
            said = f"nothing listens on port {port}; it is not running, or has another port"
            return problem(about, said, f"tianzhou nameserver --port {port}")
        case Reached.SILENT:
            said = (
                f"no connection came about within {WITHIN_S:.0f} s, and nobody refused it: "
                f"a firewall, or the wrong address ({found.detail})"
            )
            mend = f"let {host} accept TCP connections to port {port} from here"
            return problem(about, said, f"{mend}, or: tianzhou doctor -n HOST:{port}")
        case Reached.MUTE:
            said = f"it takes connections and does not answer within {WITHIN_S:.0f} s: it hangs"
            return problem(about, said, f"start it again: tianzhou nameserver --port {port}")
        case Reached.FOREIGN:
            said = f"something else is there, it does not speak RocketMQ's protocol: {found.detail}"
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
    told = f"the NameServer hands out {address}, "
    mend = f"brokerIP1=ADDRESS in the settings of {place.name}, and start it again"
    match found.reached:
        case Reached.SERVES:
            if is_loopback(address) and not is_loopback(nameserver):
                said = f"{told}which answers here, and is every other client's own machine"
                return warning(about, said, mend)
            return fine(about, f"{address} answers")
        case Reached.NO_NAME:
            return problem(about, f"{told}whose name is not known here: {found.detail}", mend)
        case Reached.MUTE:
            said = f"{told}where connections are taken and nothing is answered: it hangs"
            return problem(about, said, f"start {place.name} again, and look at its log")
        case Reached.REFUSED | Reached.SILENT:
            why = "nothing listens there"
            if found.reached is Reached.SILENT:
                why = f"nobody answers or refuses within {WITHIN_S:.0f} s, as behind a firewall"
            if is_loopback(address) and not is_loopback(nameserver):
                return problem(about, f"{told}which is this machine, not the broker's", mend)
            return problem(about, f"{told}which can't be reached from here: {why}", mend)
        case Reached.FOREIGN:
            said = f"{told}where something else is: {found.detail}"
            return problem(about, said, f"listenPort of {place.name}: 10911 unless it was changed")
        case Reached.OTHER_KIND:
            said = f"{told}which is a NameServer, not a broker"
            return problem(about, said, f"listenPort of {place.name}: 10911 unless it was changed")


def is_loopback(address: str) -> bool:
    return address.lstrip("[").startswith(_LOOPBACK)
