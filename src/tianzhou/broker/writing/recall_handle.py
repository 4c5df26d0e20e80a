"""Recall handles, by which timed messages can be cancelled.

A handle is `v1 topic brokerName timestampMs uniqKey`, in URL-safe Base64. It is opaque to clients;
they get it in the response to a send. Pure.
"""

import base64
import binascii
from typing import Final, NamedTuple

from tianzhou.broker.writing.incoming import Incoming, number_of
from tianzhou.record import names as keys

VERSION: Final = "v1"
HANDLE_CHARS_MAX: Final = 1024
"""Enough for a topic, a broker, a number and an id; brokers create no longer handles."""


class Handle(NamedTuple):
    topic: str
    broker: str
    deliver_ms: int
    unique_id: str

    def encode(self) -> str:
        text = f"{VERSION} {self.topic} {self.broker} {self.deliver_ms} {self.unique_id}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    def cancel_key(self) -> bytes:
        """How a recall names its message in the timer's topic, as in RocketMQ."""
        return cancel_key(self.topic.encode(), self.unique_id.encode())


def cancel_key(topic: bytes, unique_id: bytes) -> bytes:
    return topic + b"+" + unique_id


def decode(text: str) -> Handle | None:
    """Decode a handle; None if it is invalid."""
    if len(text) > HANDLE_CHARS_MAX:
        return None
    try:
        decoded = base64.urlsafe_b64decode(text.encode()).decode()
    except (binascii.Error, ValueError):
        return None
    parts = decoded.split(" ")
    if len(parts) != 5 or parts[0] != VERSION:
        return None
    deliver_ms = number_of(parts[3].encode(), -1)
    return Handle(parts[1], parts[2], deliver_ms, parts[4]) if deliver_ms >= 0 else None


def handle_of(properties: bytes, broker: str) -> str | None:
    """The handle of a message that was stored in the timer's topic."""
    message = Incoming("", 0, b"", properties)
    topic, unique_id = message.get(keys.REAL_TOPIC), message.get(keys.UNIQ_KEY)
    deliver_ms = number_of(message.get(keys.TIMER_DELIVER_MS), -1)
    if topic is None or unique_id is None or deliver_ms < 0:
        return None
    named = unique_id.decode("utf-8", "replace")
    return Handle(topic.decode("utf-8", "replace"), broker, deliver_ms, named).encode()
