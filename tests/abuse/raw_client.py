"""A client that sends arbitrary bytes, and notices when the server closes the connection."""

import json
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from tianzhou.testing.kit.patience import Patience
from tianzhou.wire.codec import Header, decode_header, encode_binary, encode_json
from tianzhou.wire.frame import PREFIX, SerialiseType

WAIT_S: Final = 10.0
"""Seconds of an idle machine, as `Patience` counts them."""
SEND_S: Final = 120.0
UNIQUE: Final = "UNIQ_KEY\x01" + 32 * "A" + "\x02"

_opaques = count(1)


class Response(NamedTuple):
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
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.settimeout(SEND_S)
        with suppress(ConnectionError):  # only the response matters
            self.socket.sendall(data)

    def receive(self, wait_s: float = WAIT_S) -> Response:
        """Return the next frame. Raises HungUp at the end of the stream, TimeoutError if late."""
        return self._receive(Patience(wait_s), wait_s)

    def _receive(self, patience: Patience, wait_s: float) -> Response:
        while True:
            if len(self._received) >= PREFIX.size:
                size, word = PREFIX.unpack_from(self._received)
                if len(self._received) >= size + 4:
                    frame = bytes(self._received[: size + 4])
                    del self._received[: size + 4]
                    header_end = 8 + (word & 0xFFFFFF)
                    return Response(
                        decode_header(frame[8:header_end], word >> 24), frame[header_end:]
                    )
            self._read(patience, wait_s)

    def _read(self, patience: Patience, wait_s: float) -> None:
        # No polling: on a busy machine each wake-up waits for a core, which would hide stalls of
        # the broker from the witness.
        self.socket.settimeout(max(wait_s, 0.001))
        try:
            data = self.socket.recv(1 << 20)
        except TimeoutError:
            if patience.is_over():
                raise
            return
        except ConnectionError:
            data = b""
        if not data:
            raise HungUp
        self._received += data

    def ask_bytes(self, data: bytes, wait_s: float = WAIT_S) -> Response:
        self.send(data)
        return self.receive(wait_s)

    def ask(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        binary: bool = False,
        wait_s: float = WAIT_S,
    ) -> Response:
        opaque, data = request(code, ext, body, binary=binary)
        self.send(data)
        patience = Patience(wait_s)
        while True:
            response = self._receive(patience, wait_s)
            if response.header.is_response and response.header.opaque == opaque:
                return response

    def send_message(self, topic: str, properties: str = UNIQUE, body: bytes = b"x") -> Response:
        response = self.ask(310, send_v2(topic, properties=properties), body)
        assert response.code == 0, response
        return response

    def is_hung_up(self, wait_s: float = WAIT_S) -> bool:
        """Whether the server closes the connection within this time, without another frame."""
        try:
            self.receive(wait_s)
        except HungUp:
            return True
        except TimeoutError:
            return False
        return False

    def ends(self, wait_s: float = WAIT_S) -> bool:
        """Whether the server closes the connection within this time, whatever it sends first."""
        patience = Patience(wait_s)
        try:
            while True:
                self._read(patience, wait_s)
        except HungUp:
            return True
        except TimeoutError:
            return False


def frame(header: bytes, body: bytes = b"", *, kind: int = 0) -> bytes:
    return PREFIX.pack(4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def request(
    code: int,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    binary: bool = False,
    flag: int = 0,
    version: int = 400,
) -> tuple[int, bytes]:
    """Build a request; returns its opaque number and its bytes."""
    opaque = next(_opaques)
    kind = SerialiseType.BINARY if binary else SerialiseType.JSON
    header = Header(
        code=code,
        opaque=opaque,
        flag=flag,
        version=version,
        ext=dict(ext or {}),
        serialise_type=kind,
    )
    data = encode_binary(header) if binary else encode_json(header)
    return opaque, frame(data, body, kind=kind)


def send_v1(
    topic: str, *, queue_id: int = 0, properties: str = UNIQUE, **more: str
) -> dict[str, str]:
    """The fields of SEND_MESSAGE."""
    return {
        "producerGroup": "abusers",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": str(queue_id),
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": properties,
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    } | more


def send_v2(
    topic: str, *, queue_id: int = 0, properties: str = UNIQUE, **more: str
) -> dict[str, str]:
    """The same fields with the short names of SEND_MESSAGE_V2."""
    return {
        "a": "abusers",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
    } | more


def pull_of(topic: str, *, queue_id: int = 0, offset: int = 0, **more: str) -> dict[str, str]:
    """The fields of a pull that includes its own subscription and does not wait."""
    return {
        "consumerGroup": "abused",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    } | more


def heartbeat_of(
    *,
    client: str = "abuser",
    producers: tuple[str, ...] = (),
    consumers: tuple[str, ...] = (),
    topic: str = "T",
) -> bytes:
    fields: dict[str, Any] = {
        "clientID": client,
        "producerDataSet": [{"groupName": name} for name in producers],
        "consumerDataSet": [
            {
                "groupName": name,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 1}],
            }
            for name in consumers
        ],
    }
    return json.dumps(fields).encode()


def batch_entry(body: bytes, properties: bytes = b"", *, total: int | None = None) -> bytes:
    size = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", size if total is None else total, 0, 0, 0, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties
