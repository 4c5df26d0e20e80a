"""A client that says whatever a test wants, byte by byte, and knows when it was hung up on."""

import json
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from tianzhou.wire.codec import decode_header
from tianzhou.wire.frame import PREFIX
from tianzhou.wire.header import Header, SerialiseType
from tianzhou.wire.headers_binary import encode_binary
from tianzhou.wire.headers_json import encode_json

WAIT_S: Final = 10.0
UNIQUE: Final = "UNIQ_KEY\x01" + 32 * "A" + "\x02"

_opaques = count(1)


class Answer(NamedTuple):
    header: Header
    body: bytes

    @property
    def code(self) -> int:
        return self.header.code

    @property
    def remark(self) -> str:
        return self.header.remark or ""


class HungUp(Exception):
    """The other side closed the connection."""


class RawClient:
    """One connection."""

    def __init__(self, address: str, *, receive_buffer: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(WAIT_S)
        self.socket.connect((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.socket.close()

    def send(self, data: bytes) -> None:
        with suppress(ConnectionError):  # what counts is what comes back
            self.socket.sendall(data)

    def receive(self, wait_s: float = WAIT_S) -> Answer:
        """The next frame. HungUp: there is none and will be none; TimeoutError: not yet."""
        deadline = time.monotonic() + wait_s
        while True:
            if len(self._received) >= PREFIX.size:
                size, word = PREFIX.unpack_from(self._received)
                if len(self._received) >= size + 4:
                    frame = bytes(self._received[: size + 4])
                    del self._received[: size + 4]
                    header_end = 8 + (word & 0xFFFFFF)
                    return Answer(
                        decode_header(frame[8:header_end], word >> 24), frame[header_end:]
                    )
            self._more(deadline)

    def _more(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            raise HungUp
        self._received += data

    def ask_bytes(self, data: bytes, wait_s: float = WAIT_S) -> Answer:
        self.send(data)
        return self.receive(wait_s)

    def ask(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", *,
        binary: bool = False, wait_s: float = WAIT_S,
    ) -> Answer:  # fmt: skip
        opaque, data = request(code, ext, body, binary=binary)
        self.send(data)
        deadline = time.monotonic() + wait_s
        while True:
            answer = self.receive(deadline - time.monotonic())
            if answer.header.is_response and answer.header.opaque == opaque:
                return answer

    def send_message(self, topic: str, properties: str = UNIQUE, body: bytes = b"x") -> Answer:
        answer = self.ask(310, send_v2(topic, properties=properties), body)
        assert answer.code == 0, answer
        return answer

    def is_hung_up(self, wait_s: float = WAIT_S) -> bool:
        """Whether the other side closes, saying nothing more, within this time."""
        try:
            self.receive(wait_s)
        except HungUp:
            return True
        except TimeoutError:
            return False
        return False

    def ends(self, wait_s: float = WAIT_S) -> bool:
        """Whether the other side closes within this time, whatever it says before."""
        deadline = time.monotonic() + wait_s
        try:
            while True:
                self._more(deadline)
        except HungUp:
            return True
        except TimeoutError:
            return False


def frame(header: bytes, body: bytes = b"", *, kind: int = 0) -> bytes:
    return PREFIX.pack(4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def request(
    code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", *,
    binary: bool = False, flag: int = 0, version: int = 400,
) -> tuple[int, bytes]:  # fmt: skip
    """The number of a request, and its bytes."""
    opaque = next(_opaques)
    kind = SerialiseType.BINARY if binary else SerialiseType.JSON
    header = Header(
        code=code, opaque=opaque, flag=flag, version=version, ext=dict(ext or {}),
        serialise_type=kind,
    )  # fmt: skip
    data = encode_binary(header) if binary else encode_json(header)
    return opaque, frame(data, body, kind=kind)


def send_v1(
    topic: str, *, queue_id: int = 0, properties: str = UNIQUE, **more: str
) -> dict[str, str]:
    """The fields of SEND_MESSAGE."""
    return {
        "producerGroup": "abusers", "topic": topic, "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4", "queueId": str(queue_id), "sysFlag": "0",
        "bornTimestamp": "1700000000000", "flag": "0", "properties": properties,
        "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
    } | more  # fmt: skip


def send_v2(
    topic: str, *, queue_id: int = 0, properties: str = UNIQUE, **more: str
) -> dict[str, str]:
    """The same fields with the short names of SEND_MESSAGE_V2."""
    return {
        "a": "abusers", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
        "g": "1700000000000", "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
    } | more  # fmt: skip


def pull_of(topic: str, *, queue_id: int = 0, offset: int = 0, **more: str) -> dict[str, str]:
    """A pull that brings its own subscription and does not wait."""
    return {
        "consumerGroup": "abused", "topic": topic, "queueId": str(queue_id),
        "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
        "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    } | more  # fmt: skip


def heartbeat_of(
    *, client: str = "abuser", producers: tuple[str, ...] = (), consumers: tuple[str, ...] = (),
    topic: str = "T",
) -> bytes:  # fmt: skip
    told: dict[str, Any] = {
        "clientID": client,
        "producerDataSet": [{"groupName": name} for name in producers],
        "consumerDataSet": [
            {
                "groupName": name, "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 1}],
            }
            for name in consumers
        ],
    }  # fmt: skip
    return json.dumps(told).encode()


def batch_entry(body: bytes, properties: bytes = b"", *, total: int | None = None) -> bytes:
    size = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", size if total is None else total, 0, 0, 0, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties
