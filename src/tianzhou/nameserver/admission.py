"""Admission of changes: requests that are signed with the cluster's credentials.

Without credentials every request is admitted. With them, a request without the right signature gets
NO_PERMISSION, always with the same text, so that an attacker learns nothing. The reason is only
logged, and shown to operators who look for a missing broker.
"""

from typing import Final

from tianzhou.nameserver.config import NameServerConfig
from tianzhou.nameserver.refusals import CHARS_MAX
from tianzhou.net.rpc import Request
from tianzhou.wire.signing import ACCESS_KEY, SIGNATURE, Credentials

REFUSAL: Final = (
    "this NameServer accepts only changes signed with its cluster_credentials: set the same pair "
    "as innerClientAuthenticationCredentials of a broker, in TIANZHOU_CREDENTIALS for commands, in "
    "conf/tools.yml for mqadmin"
)


class Admission:
    """Owner: the event loop of the name server."""

    def __init__(self, config: NameServerConfig) -> None:
        self._pair = Credentials.read(config.cluster_credentials)

    def why_not(self, request: Request) -> str:
        """Return why a request is not admitted, for the log; empty if it is."""
        ext = request.header.ext
        if self._pair is None:
            return ""
        if not ext.get(SIGNATURE):
            return "it is not signed"
        if self._pair.has_signed(ext, request.body):
            return ""
        if ext.get(ACCESS_KEY) != self._pair.access_key:
            return f"it is signed by {ext.get(ACCESS_KEY, '')[:CHARS_MAX]!r}, not by the cluster"
        return "its signature is wrong: another secret key, or changed on the way"
