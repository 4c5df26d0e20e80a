"""Proof that a request comes from the cluster itself: RocketMQ's signature with its credentials.

Some requests weaken the guarantees of a whole group, or change its master or its members. Where
`cluster_credentials` are set, such a request must be signed with them, as registrations are.
Without credentials any client may send most of them, so such a broker belongs in an isolated
network. Changes of the members of a Raft group are then accepted from the broker's own machine
only, because they can destroy the majority permanently.
"""

import ipaddress
from typing import Final

from tianzhou.net.rpc import Request, RequestRejected
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.signing import Credentials

PROVEN: Final = frozenset({RequestCode.PROMOTE_BROKER, RequestCode.STEP_DOWN_BROKER})
"""Requests that always need the proof. Others need it for some of their arguments."""


class ClusterProof:
    """Owner: the broker loop."""

    def __init__(self, credentials: str = "") -> None:
        self._pair = Credentials.read(credentials)

    def check(self, request: Request) -> None:
        """Raises RequestRejected unless the request is signed, if that is required here."""
        if self._pair is None or self._pair.has_signed(request.header.ext, request.body):
            return
        raise RequestRejected(
            ResponseCode.NO_PERMISSION,
            f"{_name(request)} needs the signature of this cluster; set its pair in "
            "TIANZHOU_CREDENTIALS for commands, or in conf/tools.yml for mqadmin",
        )

    def check_members(self, request: Request) -> None:
        """The same for a change of members, which without credentials must come from this
        machine."""
        self.check(request)
        if self._pair is None and not _is_loopback(request.peer.remote):
            raise RequestRejected(
                ResponseCode.NO_PERMISSION,
                f"without cluster_credentials {_name(request)} is accepted from the broker's own "
                "machine only; run the command there, or set cluster_credentials on every broker "
                "and the same pair in TIANZHOU_CREDENTIALS for commands",
            )


def _name(request: Request) -> str:
    return RequestCode(request.header.code).name


def _is_loopback(remote: str) -> bool:
    try:
        address = ipaddress.ip_address(remote.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
