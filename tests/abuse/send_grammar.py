"""A grammar of sends: every kind of send that brokers know, valid until some fields are mutated.

Random bytes rarely get past the header. Here each request is built as a client builds it, then a
few of its fields take values at the edges of their types: flags, queues, sizes, times, properties,
batch bodies, the offsets of other messages. Hypothesis would spend most of its time drawing; a seed
and `random` reproduce the same requests and cost microseconds.
"""

import struct
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from raw_client import UNIQUE, request, send_v1, send_v2

from tianzhou.wire.errors import CannotEncode

TOPICS: Final = ("Fuzz", "FuzzTwo", "%RETRY%fuzzers", "%DLQ%fuzzers")
INT32: Final = (0, 1, -1, 2, 7, 127, 128, 255, 65536, 2**31 - 1, -(2**31), 2**31, -(2**31) - 1)
INT64: Final = (*INT32, 2**53, 2**62, 2**63 - 1, -(2**63), 2**63, 10**30)
SYS_FLAGS: Final = (
    *(1 << bit for bit in range(31)),
    0x10,
    0x20,
    0x30,
    0x14,
    0x2C,
    0xC0,
    0x700,
    0x7FF,
    -1,
    *INT32,
)
TEXTS: Final = (
    "",
    "\x00",
    "\x01",
    "\x02",
    "/",
    "..",
    ".",
    "a" * 127,
    "a" * 128,
    "a" * 255,
    "主" * 60,
    "😀",
    "%RETRY%",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "TBW102",
    "x" * 40_000,
)
NAMES: Final = (
    "KEYS", "TAGS", "DELAY", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "WAIT",
    "TRAN_MSG", "PGROUP", "UNIQ_KEY", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC", "POP_CK", "__CRC32#",
    "INNER_NUM", "INNER_BASE", "MSG_REGION", "ORIGIN_MESSAGE_ID", "TIMER_DEL_UNIQKEY",
    "TRAN_PREPARED_QUEUE_OFFSET", "CHECK_IMMUNITY_TIME_IN_SECONDS", "TRANSACTION_CHECK_TIMES",
    "TIMER_ROLL_TIMES", "TIMER_OUT_MS", "DLQ_ORIGIN_TOPIC", "REPLY_TO_CLIENT", "",
)  # fmt: skip
VALUES: Final = (
    "", "0", "1", "-1", "3", "18", "19", "999", "9" * 18, "9" * 19, "9" * 400, "true", "false",
    "Fuzz", "2147483647", "2147483648", "9223372036854775807", "1" * 2_000, "a b c " * 30, " ",
    "\x00", "é主😀", "1700000000000", "2000", "¼", "٣",
)  # fmt: skip


class Sent(NamedTuple):
    """A request, and its kind for the report of a failure."""

    kind: str
    data: bytes


def next_request(dice: Random, place: int) -> Sent:
    """Build the next request. `place` is about where the log ends: some requests refer to it."""
    kind, make = dice.choice(_KINDS)
    return Sent(kind, make(dice, place))


def _properties(dice: Random) -> str:
    text = "" if dice.random() < 0.1 else UNIQUE
    for _ in range(dice.choice((0, 0, 1, 1, 2, 4))):
        text += f"{dice.choice(NAMES)}\x01{dice.choice(VALUES)}\x02"
    match dice.randrange(12):
        case 0:
            return text[:-1]
        case 1:
            at = dice.randrange(len(text) + 1)
            return text[:at] + dice.choice(("\x01", "\x02", "\x00", "\ud83d", "é")) + text[at:]
        case _:
            return text


def _body(dice: Random) -> bytes:
    return dice.choice((b"", b"x", b"body" * 9, bytes(64), b"\xff" * 1000, b"y" * 20_000))


_V2_FIELDS: Final = {
    "a": TEXTS,
    "b": TEXTS,
    "c": TEXTS,
    "d": INT32,
    "e": INT32,
    "f": SYS_FLAGS,
    "g": INT64,
    "h": INT32,
    "j": INT32,
    "k": ("true", "x", ""),
    "l": INT32,
    "m": ("true", "false", "1", ""),
}
_V1_NAMES: Final = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}


def _mutations(dice: Random) -> dict[str, str]:
    """Mutated fields of a V2 send. Flags and hosts get extra weight."""
    count = dice.choice((0, 1, 1, 1, 2, 3))
    names = dice.choices(tuple(_V2_FIELDS), k=count)
    if dice.random() < 0.3:
        names.append("f")
    return {name: str(dice.choice(_V2_FIELDS[name])) for name in names}


def _send(
    dice: Random,
    _place: int,
    *,
    code: int = 310,
    body: bytes | None = None,
    properties: str | None = None,
    **more: str,
) -> bytes:
    topic = dice.choice(TOPICS) if dice.random() < 0.2 else "Fuzz"
    text = _properties(dice) if properties is None else properties
    fields = send_v2(topic, queue_id=dice.randrange(4), properties=text) | more | _mutations(dice)
    if code in (10, 324):
        properties_v1 = fields.pop("i")
        fields = send_v1(topic, properties=properties_v1) | {
            _V1_NAMES[name]: value for name, value in fields.items() if name in _V1_NAMES
        }
    if dice.random() < 0.05:
        del fields[dice.choice(tuple(fields))]
    data = body if body is not None else _body(dice)
    flag = 2 if dice.random() < 0.1 else 0
    version = dice.choice((0, 120, 121, 400, 32767))
    binary = dice.random() < 0.3
    try:
        return request(code, fields, data, binary=binary, flag=flag, version=version)[1]
    except CannotEncode:  # invalid text, or too long for a binary header
        fields = {name: value.encode("utf-8", "replace").decode() for name, value in fields.items()}
        return request(code, fields, data, flag=flag, version=version)[1]


def _send_v1(dice: Random, place: int) -> bytes:
    return _send(dice, place, code=10)


def _reply(dice: Random, place: int) -> bytes:
    return _send(dice, place, code=dice.choice((324, 325)))


def _delayed(dice: Random, place: int) -> bytes:
    level = dice.choice(VALUES)
    return _send(dice, place, properties=f"{UNIQUE}DELAY\x01{level}\x02")


def _timed(dice: Random, place: int) -> bytes:
    name = dice.choice(("TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"))
    return _send(dice, place, properties=f"{UNIQUE}{name}\x01{dice.choice(VALUES)}\x02")


def _half(dice: Random, place: int) -> bytes:
    text = f"{UNIQUE}TRAN_MSG\x01true\x02PGROUP\x01fuzzers\x02"
    if dice.random() < 0.4:
        text += f"{dice.choice(NAMES)}\x01{dice.choice(VALUES)}\x02"
    return _send(dice, place, properties=text, f=dice.choice(("4", "4", "20", "36", "0")))


def _retried(dice: Random, place: int) -> bytes:
    return _send(dice, place, b="%RETRY%fuzzers", j=str(dice.choice(INT32)))


def _batch(dice: Random, place: int) -> bytes:
    body = bytearray()
    for _ in range(dice.choice((1, 1, 2, 5, 50))):
        text = _properties(dice).encode("utf-8", "replace")[:30_000]
        inner = _body(dice)[:2_000]
        body += struct.pack(
            ">iiiii", 22 + len(inner) + len(text), 0, 0, dice.choice((0, 7, -1)), len(inner)
        )
        body += inner + struct.pack(">h", len(text)) + text
    if dice.random() < 0.4:
        at = dice.randrange(len(body))
        if dice.random() < 0.5:
            struct.pack_into(">i", body, min(at, len(body) - 4), _clamped(dice.choice(INT32)))
        else:
            del body[at:]
    if dice.random() < 0.5:
        return _send(dice, place, code=320, body=bytes(body))
    return _send(dice, place, body=bytes(body), m="true")


def _clamped(value: int) -> int:
    return max(-(2**31), min(value, 2**31 - 1))


def _offset(dice: Random, place: int) -> int:
    """An offset of the log where a message may or may not start."""
    return dice.choice((0, place, dice.randrange(place + 1), *INT64))


def _send_back(dice: Random, place: int) -> bytes:
    fields = {
        "group": dice.choice(("fuzzers", *TEXTS)),
        "offset": str(_offset(dice, place)),
        "delayLevel": str(dice.choice(INT32)),
        "maxReconsumeTimes": str(dice.choice(INT32)),
        "originMsgId": dice.choice(VALUES),
        "originTopic": dice.choice(TOPICS),
    }
    if dice.random() < 0.2:
        del fields[dice.choice(tuple(fields))]
    return request(36, fields, binary=dice.random() < 0.3)[1]


def _decision(dice: Random, place: int) -> bytes:
    fields = {
        "producerGroup": dice.choice(("fuzzers", *TEXTS[:12])),
        "tranStateTableOffset": str(dice.choice(INT64)),
        "commitLogOffset": str(_offset(dice, place)),
        "commitOrRollback": str(dice.choice((8, 12, 0, 4, *INT32))),
        "fromTransactionCheck": dice.choice(("true", "false", "x")),
        "msgId": dice.choice(VALUES),
        "transactionId": dice.choice(VALUES),
    }
    return request(37, fields, flag=dice.choice((0, 2)), binary=dice.random() < 0.3)[1]


def _pull(dice: Random, _place: int) -> bytes:
    fields = {
        "consumerGroup": "fuzzers",
        "topic": dice.choice(TOPICS),
        "queueId": "0",
        "queueOffset": str(dice.choice(INT64)),
        "maxMsgNums": str(dice.choice(INT32)),
        "sysFlag": str(dice.choice((4, 4, *SYS_FLAGS)) & ~2),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": dice.choice(("*", "a||b", *VALUES)),
        "subVersion": str(dice.choice(INT64)),
        "expressionType": dice.choice(("TAG", "SQL92", "")),
    }
    return request(11, fields)[1]


_KINDS: Final[tuple[tuple[str, Callable[[Random, int], bytes]], ...]] = (
    ("single", _send),
    ("single", _send),
    ("single v1", _send_v1),
    ("batch", _batch),
    ("batch", _batch),
    ("delayed", _delayed),
    ("timed", _timed),
    ("half", _half),
    ("retried", _retried),
    ("reply", _reply),
    ("send back", _send_back),
    ("decision", _decision),
    ("pull", _pull),
)
