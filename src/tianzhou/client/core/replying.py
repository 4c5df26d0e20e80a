"""Request and reply: what a request carries, what a reply is made of, and what comes back.

A request is an ordinary message that names the client that waits (`REPLY_TO_CLIENT`), which of its
requests it is (`CORRELATION_ID`) and how long it waits (`TTL`). Whoever consumes it sends a reply
to a topic of the cluster, and the broker hands it to the client that is named.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import Bytes
from tianzhou.client.core.arguments import wrong_type
from tianzhou.record import compression, names, properties
from tianzhou.record.message import Message, MessageView
from tianzhou.wire._generated_headers_send import PushReplyRequest
from tianzhou.wire.names import REPLY_TOPIC_SUFFIX

REPLY_TYPE = "reply"


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a consumer to a request."""

    body: bytes = field(repr=False)
    topic: str
    properties: Mapping[str, str]
    flag: int
    born_timestamp: int
    """Milliseconds since 1970, by the clock of the one who replied."""
    store_timestamp: int

    @property
    def tags(self) -> str | None:
        return self.properties.get(names.TAGS.decode())

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.properties.get(names.KEYS.decode(), "").split())


def request_properties(client_id: str, correlation_id: str, ttl_ms: int) -> dict[bytes, str]:
    return {
        names.CORRELATION_ID: correlation_id,
        names.REPLY_TO_CLIENT: client_id,
        names.TTL: str(ttl_ms),
    }


def reply_of(pushed: PushReplyRequest, body: bytes) -> tuple[str | None, Reply]:
    """The request that is answered, and the reply. Raises DecompressionError."""
    carried = properties.decode((pushed.properties or "").encode())
    reply = Reply(
        compression.decompress(body, pushed.sys_flag), pushed.topic, carried, pushed.flag,
        pushed.born_timestamp_ms, pushed.store_timestamp_ms,
    )  # fmt: skip
    return carried.get(names.CORRELATION_ID.decode()), reply


def _check_is_request(request: object) -> None:
    if not isinstance(request, MessageView):
        raise wrong_type("request", request, "a message that a consumer received")


def reply_message(
    request: MessageView, body: Bytes, more: Mapping[str, str] | None
) -> tuple[Message, dict[bytes, str]]:
    """The message that answers a request, and the properties that lead it back."""
    _check_is_request(request)
    asked = request.properties
    added: dict[bytes, str] = {names.MSG_TYPE: REPLY_TYPE}
    for name in (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL):
        value = asked.get(name.decode())
        if value is None:
            raise UsageError(
                f"message {request.message_id} is no request: it has no property {name.decode()}"
            )
        added[name] = value
    cluster = asked.get(names.CLUSTER.decode())
    if cluster is None:
        raise UsageError(f"message {request.message_id} does not say of which cluster it is")
    return Message(f"{cluster}{REPLY_TOPIC_SUFFIX}", body, properties=more), added
