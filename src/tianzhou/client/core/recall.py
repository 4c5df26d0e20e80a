"""Handles by which timed messages are taken back: opaque, except for the broker that has them.

URL-safe Base64 of `v1 topic brokerName timestampMs uniqKey`.
"""

import base64
import binascii

from tianzhou.base.errors import UsageError
from tianzhou.client.core.arguments import check_text


def broker_of_handle(topic: str, handle: str | None) -> str:
    """Return the broker that a recall goes to. Raises UsageError for an invalid handle."""
    if handle is None:
        raise UsageError("there is no recall handle: only timed messages have one, from RocketMQ 5")
    check_text("topic", topic)
    check_text("handle", handle)
    try:
        parts = base64.urlsafe_b64decode(handle.encode()).decode().split(" ")
    except (binascii.Error, UnicodeError) as error:
        raise UsageError(f"invalid recall handle {handle!r}: {error}") from error
    if len(parts) != 5 or parts[0] != "v1":
        raise UsageError(f"invalid recall handle {handle!r}; use `recall_handle` of a SendResult")
    if parts[1] != topic:
        raise UsageError(f"the handle is of topic {parts[1]!r}, not {topic!r}")
    return parts[2]
