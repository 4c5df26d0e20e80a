"""Attributes of topics, as `+name=value,-name`: attributes to set and to remove.

Only attributes that this broker implements are accepted: storing others would suggest that they
have an effect.
"""

from collections.abc import Mapping
from typing import Final

from tianzhou.net.rpc import RequestRejected
from tianzhou.wire._generated_codes import ResponseCode

TOPIC_ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = {
    "message.type": ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"),
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
}
"""Name to the values it may have."""


def parse(text: str | None) -> dict[str, str]:
    """`+name=value,-name` as a table whose keys keep their signs."""
    changes: dict[str, str] = {}
    for part in (text or "").split(","):
        name, _, value = part.strip().partition("=")
        if name:
            changes[name.strip()] = value.strip()
    return changes


def alter(current: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """The attributes after the changes; a name without a sign is set. Raises RequestRejected."""
    altered = dict(current)
    for signed, value in changes.items():
        name = signed.lstrip("+-")
        allowed = TOPIC_ATTRIBUTES.get(name)
        if allowed is None:
            raise _refusal(f"attribute {name[:64]!r} is not one of {', '.join(TOPIC_ATTRIBUTES)}")
        if signed.startswith("-"):
            altered.pop(name, None)
        elif value in allowed:
            altered[name] = value
        else:
            raise _refusal(f"attribute {name} can be {', '.join(allowed)}, not {value[:64]!r}")
    return altered


def _refusal(why: str) -> RequestRejected:
    return RequestRejected(ResponseCode.INVALID_PARAMETER, why)
