r"""Message trace: what happened to a message, in RocketMQ's own format.

A trace message has records, each ended by \x02, with fields separated by \x01. The first field is
the kind:

    Pub             timestamp region group topic message_id tags keys store_host body_length
                    cost_ms message_type offset_id success
    SubBefore       timestamp region group request_id message_id retry_times keys
    SubAfter        request_id message_id cost_ms success keys context_code timestamp group
    EndTransaction  timestamp region group topic message_id tags keys store_host message_type
                    transaction_id state from_check
    Recall          timestamp region group topic message_id success

Old producers leave out `offset_id` of Pub, or add a host at its end; brokers of a cloud leave out
the last two of SubAfter. What is missing reads as its default. Java writes `null` for what it does
not have, and so do we where it would.
"""

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tianzhou.base.errors import TianzhouError

FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"
_NULL: Final = "null"


class TraceError(TianzhouError):
    """Invalid trace text."""


class MessageType(enum.IntEnum):
    """What kind of message was sent, by Java's ordinals."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


class ContextCode(enum.IntEnum):
    """How consuming ended."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    timestamp_ms: int
    region_id: str = ""
    group: str
    topic: str
    message_id: str
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    body_length: int = 0
    cost_ms: int = 0
    message_type: int = MessageType.NORMAL
    offset_id: str = ""
    is_success: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeBegun:
    timestamp_ms: int
    region_id: str = ""
    group: str
    request_id: str
    """The same in the record of the end."""
    message_id: str
    retry_times: int = 0
    keys: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeEnded:
    request_id: str
    message_id: str
    cost_ms: int = 0
    is_success: bool = True
    keys: str = ""
    context_code: int = ContextCode.SUCCESS
    timestamp_ms: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnded:
    timestamp_ms: int
    region_id: str = ""
    group: str
    topic: str
    message_id: str
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    message_type: int = MessageType.TRANSACTION_COMMIT
    transaction_id: str = ""
    state: str = ""
    """COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW."""
    from_check: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    timestamp_ms: int
    region_id: str = ""
    group: str
    topic: str
    message_id: str
    is_success: bool = True


TraceRecord: TypeAlias = Published | ConsumeBegun | ConsumeEnded | TransactionEnded | Recalled

# The order of the fields on the wire.
_FIELDS: Final[dict[str, tuple[type[TraceRecord], tuple[str, ...]]]] = {
    "Pub": (Published, (
        "timestamp_ms", "region_id", "group", "topic", "message_id", "tags", "keys", "store_host",
        "body_length", "cost_ms", "message_type", "offset_id", "is_success")),
    "SubBefore": (ConsumeBegun, (
        "timestamp_ms", "region_id", "group", "request_id", "message_id", "retry_times", "keys")),
    "SubAfter": (ConsumeEnded, (
        "request_id", "message_id", "cost_ms", "is_success", "keys", "context_code",
        "timestamp_ms", "group")),
    "EndTransaction": (TransactionEnded, (
        "timestamp_ms", "region_id", "group", "topic", "message_id", "tags", "keys", "store_host",
        "message_type", "transaction_id", "state", "from_check")),
    "Recall": (Recalled, (
        "timestamp_ms", "region_id", "group", "topic", "message_id", "is_success")),
}  # fmt: skip
_KINDS: Final = {cls: (kind, names) for kind, (cls, names) in _FIELDS.items()}
_PUB_OLD_COUNT: Final = 12
"""Fields of a Pub without `offset_id`."""


def encode_trace(records: Iterable[TraceRecord]) -> bytes:
    """The body of a trace message."""
    return "".join(_encode(record) for record in records).encode("utf-8", "replace")


def _encode(record: TraceRecord) -> str:
    kind, names = _KINDS[type(record)]
    values = [kind, *(_text(getattr(record, name)) for name in names)]
    return FIELD_END.join(values) + RECORD_END


def _text(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    # A separator in a key would split the record in two.
    return value.replace(FIELD_END, " ").replace(RECORD_END, " ")


def decode_trace(body: bytes | str) -> list[TraceRecord]:
    """Return the records of a trace message; unknown kinds are left out.

    Raises TraceError for a record with too few fields or text in place of a number.
    """
    text = body if isinstance(body, str) else body.decode("utf-8", "replace")
    records = (_decode(part.split(FIELD_END)) for part in text.split(RECORD_END) if part.strip())
    return [record for record in records if record is not None]


def _decode(fields: Sequence[str]) -> TraceRecord | None:
    kind, values = fields[0], list(fields[1:])
    if kind not in _FIELDS:
        return None
    cls, names = _FIELDS[kind]
    if kind == "Pub" and len(values) == _PUB_OLD_COUNT:
        values.insert(_PUB_OLD_COUNT - 1, "")
    annotations = cls.__annotations__
    try:
        found = {
            name: _READERS[annotations[name]](value)
            for name, value in zip(names, values, strict=False)
        }
        return cls(**found)  # type: ignore[arg-type] # each reader gives the type of its field
    except (TypeError, ValueError) as error:
        raise TraceError(f"trace record {FIELD_END.join(fields)[:200]!r}: {error}") from error


def _number(text: str) -> int:
    return 0 if text in ("", _NULL) else int(text)


def _word(text: str) -> str:
    return "" if text == _NULL else text


def _is_true(text: str) -> bool:
    return text == "true"


_READERS: Final[dict[object, Callable[[str], str | int | bool]]] = {
    int: _number,
    str: _word,
    bool: _is_true,
}


def keys_of(records: Iterable[TraceRecord]) -> set[str]:
    """Return the keys of a trace message: the ids and keys of the messages in its records."""
    keys: set[str] = set()
    for record in records:
        keys.add(record.message_id)
        if not isinstance(record, Recalled):
            keys.update(record.keys.split())
    return keys - {""}
