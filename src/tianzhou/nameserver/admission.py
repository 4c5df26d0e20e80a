"""Who may change what the name server knows: who signs with the pair of the cluster.

Without a pair everybody may. With one, a request without the right signature gets NO_PERMISSION,
always with the same words: a stranger learns nothing from them. What is learned stays here, for the
log and for whoever asks why a broker is missing.
"""

from collections.abc import Mapping
from typing import Final

from tianzhou.nameserver.config import NameServerConfig
from tianzhou.net.exchange import Request
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.signing import ACCESS_KEY, SIGNATURE, Credentials

REMEMBERED_S: Final = 120.0
"""A broker that is refused tries again every second; who is silent for so long has given up."""
_BROKERS_MAX: Final = 16
_CHARS_MAX: Final = 128
"""Of names that strangers chose."""

REFUSAL: Final = (
    "this NameServer is changed only by who signs with its cluster_credentials: set the same pair "
    "as innerClientAuthenticationCredentials of a broker, in TIANZHOU_CREDENTIALS for commands, in "
    "conf/tools.yml for mqadmin"
)


class Admission:
    """Owner: the event loop of the name server."""

    def __init__(self, config: NameServerConfig) -> None:
        self._pair = Credentials.read(config.cluster_credentials)
        self._refused: dict[str, tuple[float, str]] = {}
        """When and how, by broker name; the latest is the last."""

    def why_not(self, request: Request) -> str:
        """In a few words, for our own log; empty if it may."""
        ext = request.header.ext
        if self._pair is None:
            return ""
        if not ext.get(SIGNATURE):
            return "it is not signed"
        if self._pair.has_signed(ext, request.body):
            return ""
        if ext.get(ACCESS_KEY) != self._pair.access_key:
            return f"it is signed as {ext.get(ACCESS_KEY, '')[:_CHARS_MAX]!r}, not as the cluster"
        return "its signature is wrong: another secret key, or changed on the way"

    def is_news(self, request: Request, reason: str, now_s: float) -> bool:
        """Remember a broker that is refused. False: it is the same as at its last try."""
        if request.header.code != RequestCode.REGISTER_BROKER:
            return True
        ext = request.header.ext
        name, address = (ext.get(key, "")[:_CHARS_MAX] for key in ("brokerName", "brokerAddr"))
        told = f"{address}, from {request.peer.remote}: {reason}"
        before = self._refused.pop(name, None)
        self._refused[name] = now_s, told
        if len(self._refused) > _BROKERS_MAX:
            del self._refused[next(iter(self._refused))]
        return before is None or before[1] != told

    def refused(self, now_s: float) -> Mapping[str, str]:
        """Brokers that were refused lately: where and why, by name."""
        rows = self._refused.items()
        return {name: told for name, (at_s, told) in rows if now_s < at_s + REMEMBERED_S}

    def admitted(self, broker_name: str) -> None:
        """It has registered: what was before is over."""
        self._refused.pop(broker_name, None)
