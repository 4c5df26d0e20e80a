"""Credentials from the environment: other users of a machine can read command lines."""

import os
from typing import Final

from tianzhou.base.errors import UsageError

VARIABLE: Final = "TIANZHOU_CREDENTIALS"


def from_environment() -> str:
    """The credentials in the format of the setting; empty if not set. Raises UsageError."""
    text = os.environ.get(VARIABLE, "")
    if text:
        from tianzhou.wire.signing import checked_credentials

        try:
            return checked_credentials(text)
        except ValueError as error:
            raise UsageError(f"{VARIABLE}: {error}") from None
    return text
