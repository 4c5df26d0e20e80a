"""Proof that a request comes from the cluster itself: RocketMQ's signature with its credentials.

Some requests weaken what a whole group promises, or change who its master is. Where
`cluster_credentials` are set, such a request must be signed with them, as registrations are.
Without credentials every client may send it: a broker then belongs into a network of its own.
"""

from typing import Final

from tianzhou.net.exchange import Refused, Request
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.signing import Credentials

PROVEN: Final = frozenset({RequestCode.PROMOTE_BROKER, RequestCode.STEP_DOWN_BROKER})
"""Requests that always need the proof. Others need it for some of what they may ask."""


class ClusterProof:
    """Owner: the broker loop."""

    def __init__(self, credentials: str = "") -> None:
        self._pair = Credentials.read(credentials)

    def check(self, request: Request) -> None:
        """Raises Refused unless the request is signed, if that is required here."""
        if self._pair is None or self._pair.has_signed(request.header.ext, request.body):
            return
        code = RequestCode(request.header.code).name
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"{code} needs the signature of this cluster; set its pair in TIANZHOU_CREDENTIALS "
            "for commands, or in conf/tools.yml for mqadmin",
        )
