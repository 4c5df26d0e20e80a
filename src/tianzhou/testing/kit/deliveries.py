"""Recording of deliveries: the responses to pulls, as they leave the broker.

A message that is delivered twice is recorded twice, so a test can count deliveries.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple, Self

from tianzhou.base.kinds import Bytes
from tianzhou.net.server_connection import ServerConnection
from tianzhou.record.message import MessageView, decode_all
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.codec import Header, decode_header
from tianzhou.wire.frame import FrameBatch, FrameBuffer

PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


class Delivery(NamedTuple):
    """One response to a pull that contained messages."""

    group: str
    topic: str
    remote: str
    """`address:port` of the consumer."""
    body: bytes


class Deliveries:
    """Records deliveries until its block ends, or until `end`.

    Owner: the broker loop. A test may read at any time, because entries are only added.
    """

    def __init__(self, end: Callable[["Deliveries"], None]) -> None:
        self._end = end
        self._pending: dict[tuple[ServerConnection, int], tuple[str, str]] = {}
        """Group and topic of pending pulls, by connection and request id."""
        self._recorded: list[Delivery] = []
        self._is_over = False

    def to(self, group: str, topic: str | None = None) -> list[MessageView]:
        """Return the messages delivered to a group, of one topic or all, in order of delivery."""
        return [
            message
            for delivery in tuple(self._recorded)
            if delivery.group == group and topic in (None, delivery.topic)
            for message in decode_all(delivery.body)
        ]

    def all(self) -> list[Delivery]:
        """Return all recorded responses."""
        return list(self._recorded)

    def end(self) -> None:
        """Stop recording. Further calls do nothing."""
        if not self._is_over:
            self._is_over = True
            self._end(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    # Called by the gate

    def on_request(self, connection: ServerConnection, header: Header) -> None:
        if header.code in PULLS and not header.is_response:
            ext = header.ext
            self._pending[connection, header.opaque] = (
                ext.get("consumerGroup", ""),
                ext.get("topic", ""),
            )

    def on_response(self, connection: ServerConnection, header: Header, body: bytes) -> None:
        pulled = self._pending.pop((connection, header.opaque), None)
        if pulled is not None and header.code == ResponseCode.SUCCESS:
            self._recorded.append(Delivery(*pulled, connection.remote, body))


def frames_of(data: Bytes) -> FrameBatch:
    """Split outgoing data into frames."""
    buffer = FrameBuffer(max(len(data), 8))
    buffer.writable()[: len(data)] = data
    buffer.wrote(len(data))
    return buffer.take()


def record_responses(notes: "list[Deliveries]", connection: ServerConnection, data: Bytes) -> None:
    batch = frames_of(data)
    for index in range(batch.count):
        header = decode_header(batch.header(index), batch.serialise_types[index])
        if header.is_response:
            body = bytes(batch.body(index))
            for note in notes:
                note.on_response(connection, header, body)
