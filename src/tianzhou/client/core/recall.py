"""Handles by which timed messages are taken back: opaque, except for the broker that has them.

URL-safe Base64 of `v1 topic brokerName timestampMs uniqKey`.
"""

import base64
import binascii

from tianzhou.base.errors import UsageError


def broker_of_handle(topic: str, handle: str | None) -> str:
    """The broker that a recall goes to. Raises UsageError for what is no handle of the topic."""
    if handle is None:
        raise UsageError("there is no recall handle: only timed messages have one, from RocketMQ 5")
    try:
        parts = base64.urlsafe_b64decode(handle.encode()).decode().split(" ")
    except (binascii.Error, UnicodeError) as error:
        raise UsageError(f"{handle!r} is no recall handle: {error}") from error
    if len(parts) != 5 or parts[0] != "v1":
        raise UsageError(f"{handle!r} is no recall handle that is understood here")
    if parts[1] != topic:
        raise UsageError(f"the handle is of topic {parts[1]!r}, not {topic!r}")
    return parts[2]
