"""Who a request comes from, as RocketMQ's access control wants it proven.

The values of all header fields, in the order of their names, and the body are signed with the
secret key; the access key says whose secret that is. Nothing secret travels.
"""

import base64
import hmac
from dataclasses import dataclass, field

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import Bytes

_ACCESS_KEY = "AccessKey"
_SECURITY_TOKEN = "SecurityToken"
_SIGNATURE = "Signature"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            raise UsageError("credentials need both an access key and a secret key")

    def sign(self, ext: dict[str, str], body: Bytes = b"") -> dict[str, str]:
        """The header fields with the proof added."""
        signed = {**ext, _ACCESS_KEY: self.access_key}
        if self.security_token:
            signed[_SECURITY_TOKEN] = self.security_token
        signed.pop(_SIGNATURE, None)
        # Java sorts by UTF-16 units; names of fields are ASCII.
        content = "".join(signed[name] for name in sorted(signed)).encode()
        mac = hmac.new(self.secret_key.encode(), content, "sha1")
        mac.update(body)
        return {**signed, _SIGNATURE: base64.b64encode(mac.digest()).decode()}
