"""An administrator that queries a broker and reads whole responses, and consumers to query."""

from typing import Any, NamedTuple

from tianzhou.base.kinds import Bytes
from tianzhou.testing.small_broker import RecordingPeer, SmallBroker, frames
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.codec import VERSION, Header, Language, decode_header, encode_command


class Answer(NamedTuple):
    header: Header
    body: bytes

    @property
    def code(self) -> int:
        return self.header.code

    @property
    def ext(self) -> dict[str, str]:
        return self.header.ext

    @property
    def remark(self) -> str:
        return self.header.remark or ""

    @property
    def json(self) -> Any:
        """The body as plain values; keys that are objects as their text."""
        return fastjson.parse(self.body)


class Administrator(RecordingPeer):
    """A tool that is connected to the broker."""

    def __init__(self, broker: SmallBroker) -> None:
        super().__init__("10.9.9.9", 9)
        self._broker = broker
        self._data = bytearray()
        self._opaque = 0

    def send(self, data: Bytes) -> None:
        self._data += data

    def ask(  # pyright: ignore[reportIncompatibleMethodOverride] - the broker sends the tool no requests
        self, code: int, body: bytes = b"", /, **ext: str
    ) -> Answer:
        """Send a request; its answer, which must have come."""
        (answer,) = self.begin(code, body, **ext)
        return answer

    def begin(self, code: int, body: bytes = b"", /, **ext: str) -> list[Answer]:
        """Send a request whose answer may take its time."""
        self._opaque += 1
        header = Header(code=code, opaque=self._opaque, ext=ext)
        self._broker.received(self, encode_command(header, body))
        return self.taken()

    def taken(self) -> list[Answer]:
        """Answers that came since the last look."""
        data, self._data = bytes(self._data), bytearray()
        batch = frames(data)
        return [
            Answer(
                decode_header(batch.header(index), batch.serialise_types[index]),
                bytes(batch.body(index)),
            )
            for index in range(batch.count)
        ]


def join(
    broker: SmallBroker,
    group: str,
    *topics: str,
    client_id: str = "client-1",
    language: Language = Language.JAVA,
    port: int = 5000,
) -> RecordingPeer:
    """A consumer of a group that is online now."""
    peer = RecordingPeer("10.1.1.1", port)
    told = {
        "clientID": client_id,
        "consumerDataSet": [
            {
                "groupName": group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [
                    {"topic": topic, "subString": "*", "subVersion": 1} for topic in topics
                ],
            }
        ],
    }
    header = Header(code=RequestCode.HEART_BEAT, opaque=1, language=language, version=VERSION)
    broker.received(peer, encode_command(header, fastjson.encode(told)))
    peer.answers()
    peer.take_told()
    return peer


def make_topic(broker: SmallBroker, name: str, queues: int = 2, /, **more: str) -> Answer:
    ext = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    return Administrator(broker).ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **(ext | more))
