"""Request and reply: the properties of requests, and the conversion of replies.

A request is an ordinary message whose properties name the waiting client (`REPLY_TO_CLIENT`), the
request (`CORRELATION_ID`) and its timeout (`TTL`). The consumer sends the reply to a topic of the
cluster, and the broker forwards it to the waiting client.
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
    """The reply of a consumer to a request, returned by `Producer.request`.

    `properties` includes those that clients and brokers add.

        reply = await producer.request(Message("prices", b"T1"))
        print(reply.body, reply.tags)
    """

    body: bytes = field(repr=False)
    topic: str
    properties: Mapping[str, str]
    flag: int
    born_timestamp: int
    """Milliseconds since 1970, by the clock of the replying consumer."""
    store_timestamp: int

    @property
    def tags(self) -> str | None:
        """The tag of the reply; None if it has none."""
        return self.properties.get(names.TAGS.decode())

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the reply."""
        return tuple(self.properties.get(names.KEYS.decode(), "").split())


def request_properties(client_id: str, correlation_id: str, ttl_ms: int) -> dict[bytes, str]:
    """Return the properties that make a message a request."""
    return {
        names.CORRELATION_ID: correlation_id,
        names.REPLY_TO_CLIENT: client_id,
        names.TTL: str(ttl_ms),
    }


def reply_of(pushed: PushReplyRequest, body: bytes) -> tuple[str | None, Reply]:
    """Return the correlation id of the request, and its reply. Raises DecompressionError."""
    carried = properties.decode((pushed.properties or "").encode())
    reply = Reply(
        compression.decompress(body, pushed.sys_flag),
        pushed.topic,
        carried,
        pushed.flag,
        pushed.born_timestamp_ms,
        pushed.store_timestamp_ms,
    )
    return carried.get(names.CORRELATION_ID.decode()), reply


def _check_is_request(request: object) -> None:
    if not isinstance(request, MessageView):
        raise wrong_type("request", request, "a message that a consumer received")


def reply_message(
    request: MessageView, body: Bytes, more: Mapping[str, str] | None
) -> tuple[Message, dict[bytes, str]]:
    """Return the reply to a request, and the properties by which the broker forwards it."""
    _check_is_request(request)
    asked = request.properties
    added: dict[bytes, str] = {names.MSG_TYPE: REPLY_TYPE}
    for name in (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL):
        value = asked.get(name.decode())
        if value is None:
            raise UsageError(
                f"message {request.message_id} is not a request: it has no property {name.decode()}"
            )
        added[name] = value
    cluster = asked.get(names.CLUSTER.decode())
    if cluster is None:
        raise UsageError(f"message {request.message_id} has no property {names.CLUSTER.decode()}")
    return Message(f"{cluster}{REPLY_TOPIC_SUFFIX}", body, properties=more), added
