"""Request signatures, as RocketMQ's access control requires them.

The values of all header fields, in the order of their names, and the body are signed with the
secret key; the access key says whose secret that is. Nothing secret travels. Neither the request
code nor a time is signed, so an eavesdropper can replay a request.
"""

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import Bytes

ACCESS_KEY: Final = "AccessKey"
_SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"

FORM: Final = '{"accessKey":"…","secretKey":"…"}'
"""How a pair is written, in RocketMQ's settings and ours."""


class _Pair(msgspec.Struct, rename="camel"):
    access_key: str
    secret_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """An access key and a secret key that sign every request.

    Raises UsageError if one of them is empty.

        client = ClientOptions(credentials=Credentials(access_key="orders", secret_key=secret))
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            raise UsageError("credentials need both an access key and a secret key")

    @classmethod
    def read(cls, text: str) -> "Credentials | None":
        """Return the credentials in a setting, or None if it is empty.

        Raises UsageError, without the text, which is secret.
        """
        if not text:
            return None
        try:
            pair = msgspec.json.decode(text, type=_Pair)
        except msgspec.DecodeError:
            raise UsageError(f"credentials are written {FORM}") from None
        return cls(access_key=pair.access_key, secret_key=pair.secret_key)

    def sign(self, ext: Mapping[str, str], body: Bytes = b"") -> dict[str, str]:
        """Return the header fields with the signature added."""
        signed = {**ext, ACCESS_KEY: self.access_key}
        if self.security_token:
            signed[_SECURITY_TOKEN] = self.security_token
        return {**signed, SIGNATURE: self._signature(signed, body)}

    def has_signed(self, ext: Mapping[str, str], body: Bytes) -> bool:
        """Whether the fields have a valid signature, in the same time whatever is wrong."""
        given = ext.get(SIGNATURE, "").encode()
        is_key = hmac.compare_digest(ext.get(ACCESS_KEY, "").encode(), self.access_key.encode())
        is_proof = hmac.compare_digest(given, self._signature(ext, body).encode())
        return is_key and is_proof

    def _signature(self, ext: Mapping[str, str], body: Bytes) -> str:
        # Java sorts by UTF-16 units; names of fields are ASCII.
        content = "".join(ext[name] for name in sorted(ext) if name != SIGNATURE).encode()
        mac = hmac.new(self.secret_key.encode(), content, "sha1")
        mac.update(body)
        return base64.b64encode(mac.digest()).decode()


def checked_credentials(text: str) -> str:
    """For a setting: the same text, if it is a pair or empty. Raises ValueError."""
    try:
        Credentials.read(text)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return text
