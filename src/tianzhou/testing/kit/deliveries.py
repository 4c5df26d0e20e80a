"""What was given to consumers: the answers to their pulls, as they leave the broker.

A message that is delivered twice is here twice, so a test can say how often it was.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple, Self

from tianzhou.base.kinds import Bytes
from tianzhou.net.server_connection import ServerConnection
from tianzhou.record.message import MessageView, decode_all
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.codec import decode_header
from tianzhou.wire.frame import FrameBatch, FrameBuffer
from tianzhou.wire.header import Header

PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


class Delivery(NamedTuple):
    """One answer to a pull that had messages."""

    group: str
    topic: str
    remote: str
    """`address:port` of the consumer."""
    body: bytes


class Deliveries:
    """Notes while its block lasts, or until `end`. Owner: the broker loop; a test may look at what
    is noted, because entries are only added."""

    def __init__(self, end: Callable[["Deliveries"], None]) -> None:
        self._end = end
        self._asked: dict[tuple[ServerConnection, int], tuple[str, str]] = {}
        """Group and topic of pulls that are not answered, by connection and number."""
        self._noted: list[Delivery] = []
        self._is_over = False

    def to(self, group: str, topic: str | None = None) -> list[MessageView]:
        """Messages that were given to a group, of one topic or all, in the order of giving."""
        return [
            message
            for delivery in tuple(self._noted)
            if delivery.group == group and topic in (None, delivery.topic)
            for message in decode_all(delivery.body)
        ]

    def all(self) -> list[Delivery]:
        return list(self._noted)

    def end(self) -> None:
        """Note no more. A second time changes nothing."""
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

    def asked(self, connection: ServerConnection, header: Header) -> None:
        if header.code in PULLS and not header.is_response:
            ext = header.ext
            self._asked[connection, header.opaque] = (
                ext.get("consumerGroup", ""),
                ext.get("topic", ""),
            )

    def answered(self, connection: ServerConnection, header: Header, body: bytes) -> None:
        pulled = self._asked.pop((connection, header.opaque), None)
        if pulled is not None and header.code == ResponseCode.SUCCESS:
            self._noted.append(Delivery(*pulled, connection.remote, body))


def frames_of(data: Bytes) -> FrameBatch:
    """Whole frames that leave together."""
    buffer = FrameBuffer(max(len(data), 8))
    buffer.writable()[: len(data)] = data
    buffer.wrote(len(data))
    return buffer.take()


def note_answers(notes: "list[Deliveries]", connection: ServerConnection, data: Bytes) -> None:
    batch = frames_of(data)
    for index in range(batch.count):
        header = decode_header(batch.header(index), batch.serialise_types[index])
        if header.is_response:
            body = bytes(batch.body(index))
            for note in notes:
                note.answered(connection, header, body)
