"""The pair that signs requests, from the environment: everybody may read a command line."""

import os
from typing import Final

from tianzhou.base.errors import UsageError

VARIABLE: Final = "TIANZHOU_CREDENTIALS"


def from_environment() -> str:
    """As it stands in a setting; empty if there is none. Raises UsageError."""
    text = os.environ.get(VARIABLE, "")
    if text:
        from tianzhou.wire.signing import checked_credentials

        try:
            return checked_credentials(text)
        except ValueError as error:
            raise UsageError(f"{VARIABLE}: {error}") from None
    return text
