"""Who answers at an address, and what: name, connection, protocol, kind of server."""

import enum
import socket
from typing import Final, NamedTuple

from tianzhou.admin.doctor.findings import Finding, fine, problem
from tianzhou.base.errors import TianzhouError
from tianzhou.client.core.admin_results import BrokerPlace
from tianzhou.client.options import split_address
from tianzhou.net.blocking import BlockingPeer
from tianzhou.wire._generated_codes import RequestCode, ResponseCode

WITHIN_S: Final = 3.0
_LOOPBACK: Final = ("127.", "localhost", "::1", "0.0.0.0")


class Reached(enum.Enum):
    SERVES = enum.auto()
    NO_NAME = enum.auto()
    REFUSED = enum.auto()
    SILENT = enum.auto()
    """No connection came about in time."""
    FOREIGN = enum.auto()
    """Somebody is there, and does not speak the protocol."""
    OTHER_KIND = enum.auto()
    """It speaks the protocol, and does not know the question."""


class Probe(NamedTuple):
    reached: Reached
    detail: str = ""


def probe(address: str, code: int) -> Probe:
    host, port = split_address(address)
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return Probe(Reached.NO_NAME, error.strerror or str(error))
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
        return Probe(Reached.FOREIGN, str(error))
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return Probe(Reached.OTHER_KIND)
    return Probe(Reached.SERVES)


def nameserver_finding(address: str) -> Finding:
    about, found = f"NameServer {address}", probe(address, RequestCode.GET_BROKER_CLUSTER_INFO)
    host, port = split_address(address)
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
            said = f"no connection came about: {found.detail}; a firewall, or the wrong address"
            return problem(about, said, f"tianzhou doctor -n HOST:{port}")
        case Reached.FOREIGN:
            said = f"something else is there, it does not speak RocketMQ's protocol: {found.detail}"
            return problem(about, said, "tianzhou doctor -n HOST:9876")
        case Reached.OTHER_KIND:
            said = "this is a broker, not a NameServer; its port is usually 9876"
            return problem(about, said, f"tianzhou doctor -n {host}:9876")


def broker_finding(place: BrokerPlace, address: str, nameserver: str) -> Finding:
    about = f"broker {place.name}"
    found = probe(address, RequestCode.GET_BROKER_RUNTIME_INFO)
    told = f"the NameServer hands out {address}, "
    mend = f"brokerIP1=ADDRESS in the settings of {place.name}, and start it again"
    match found.reached:
        case Reached.SERVES:
            return fine(about, f"{address} answers")
        case Reached.NO_NAME:
            return problem(about, f"{told}whose name is not known here: {found.detail}", mend)
        case Reached.REFUSED | Reached.SILENT:
            why = found.detail or "nothing listens there"
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
