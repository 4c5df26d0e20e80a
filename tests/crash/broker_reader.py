"""Reads a broker's queues by pulls, one request at a time."""

import socket
from collections.abc import Iterator
from typing import Final, Self

from crash.broker_load import SILENCE_S
from tianzhou.record.message import MessageView, decode_all
from tianzhou.wire.codec import Header, Language, decode_header, encode_command
from tianzhou.wire.frame import PREFIX

FOUND: Final = 0
NOT_FOUND: Final = 19
NO_TOPIC: Final = 17
GROUP: Final = "kill-readers"


class Reader:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=SILENCE_S)
        self._stream = self._socket.makefile("rb")
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def tell(self, code: int, ext: dict[str, str]) -> None:
        """Send a request without waiting for the response."""
        self._opaque += 1
        header = Header(
            code=code, opaque=self._opaque, language=Language.JAVA, version=409, ext=ext
        )
        self._socket.sendall(encode_command(header))

    def ask(self, code: int, ext: dict[str, str]) -> tuple[Header, bytes]:
        self.tell(code, ext)
        size, word = PREFIX.unpack(self._stream.read(PREFIX.size))
        rest = self._stream.read(size - 4)
        header_size = word & 0xFFFFFF
        answer = decode_header(rest[:header_size], word >> 24)
        assert answer.opaque == self._opaque
        return answer, rest[header_size:]

    def messages(self, topic: str, queue_id: int, start: int) -> Iterator[MessageView]:
        """The messages from an offset to the end; checks that the offsets have no gap."""
        at = start
        while True:
            answer, body = self.ask(11, pull_of(topic, queue_id, at))
            if answer.code in (NOT_FOUND, NO_TOPIC):
                return
            assert answer.code == FOUND, answer
            for view in decode_all(body):
                assert view.queue_offset == at, "a gap in a queue"
                assert (view.topic, view.queue_id) == (topic, queue_id)
                yield view
                at += 1
            assert answer.ext["nextBeginOffset"] == str(at)

    def commit(self, topic: str, queue_id: int, offset: int) -> None:
        ext = _queue(topic, queue_id) | {"consumerGroup": GROUP, "commitOffset": str(offset)}
        assert self.ask(15, ext)[0].code == 0

    def committed(self, topic: str, queue_id: int) -> int:
        ext = _queue(topic, queue_id) | {"consumerGroup": GROUP}
        answer, _ = self.ask(14, ext)
        assert answer.code == 0, answer
        return int(answer.ext["offset"])


def _queue(topic: str, queue_id: int) -> dict[str, str]:
    return {"topic": topic, "queueId": str(queue_id)}


def pull_of(topic: str, queue_id: int, offset: int, *, wait_ms: int = 0) -> dict[str, str]:
    return _queue(topic, queue_id) | {
        "consumerGroup": GROUP,
        "queueOffset": str(offset),
        "maxMsgNums": "200",
        "sysFlag": "6" if wait_ms else "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": str(wait_ms),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
