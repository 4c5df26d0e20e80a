"""Rows of a DataFrame as messages: allowed columns, and how they map to a message."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tianzhou.base.errors import UsageError
from tianzhou.base.limits import BODY_BYTES_MAX
from tianzhou.record import names, properties
from tianzhou.spark.arrow import Array, Batch, pa, pc
from tianzhou.spark.errors import SourceError

_WHOLE: Final = (ShortType(), IntegerType(), LongType())

COLUMNS: Final[dict[str, tuple[DataType, ...]]] = {
    "body": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "topic": (StringType(),),
    "tags": (StringType(),),
    "keys": (ArrayType(StringType()), StringType()),
    "properties": (MapType(StringType(), StringType()),),
    "shardingKey": (StringType(),),
    "delayLevel": _WHOLE,
    "deliverAt": (TimestampType(), TimestampNTZType(), *_WHOLE),
}
"""Columns that can be written, and their allowed types."""


class Row(NamedTuple):
    """One message to write."""

    topic: str
    body: bytes
    properties: bytes
    sharding_key: str | None
    is_delayed: bool


def check_schema(schema: StructType, *, topic: str | None, idempotent: bool = False) -> None:
    """Check that a DataFrame can be written. Raises SourceError."""
    by_name = {name.lower(): name for name in COLUMNS}
    seen: set[str] = set()
    for field in schema.fields:
        name = by_name.get(field.name.lower())
        if name is None:
            raise SourceError(
                "SCHEMA_MISMATCH",
                f"column {field.name!r} cannot be written; a message has {', '.join(COLUMNS)}: "
                "select only these",
            )
        allowed = [kind.simpleString() for kind in COLUMNS[name]]
        if field.dataType.simpleString() not in allowed:
            raise SourceError(
                "SCHEMA_MISMATCH",
                f"column {field.name} is {field.dataType.simpleString()}; it must be "
                f"{' or '.join(allowed)}",
            )
        seen.add(name)
    if len(seen & {"body", "value"}) != 1:
        raise SourceError("SCHEMA_MISMATCH", "exactly one of the columns body and value is needed")
    if "topic" not in seen and topic is None:
        raise SourceError(
            "MISSING_OPTION", "no topic to write to; set option topic or add a column topic"
        )
    if "topic" in seen and idempotent:
        raise SourceError(
            "WRONG_OPTION",
            "idempotent=true works with one topic only; drop the column topic and set the option",
        )


def rows_of(batch: Batch, topic: str | None) -> Iterator[Row]:
    """Yield the messages of a batch. Raises SourceError for an invalid row."""
    by_name = {name.lower(): batch.column(n) for n, name in enumerate(batch.schema.names)}
    count = batch.num_rows
    column = by_name["body"] if "body" in by_name else by_name["value"]
    bodies = column.cast(pa.binary()).to_pylist()
    topics = _texts(by_name.get("topic"), count)
    texts = _property_strings(by_name, count)
    keys = _texts(by_name.get("shardingkey"), count)
    delays = _delays(by_name, count)
    for rank in range(count):
        body, where = bodies[rank], topics[rank] or topic
        if not body or len(body) > BODY_BYTES_MAX or where is None:
            raise _invalid_row(body, where)
        extra, delay, key = texts[rank], delays[rank], keys[rank]
        if key is not None:
            extra += b"__SHARDINGKEY\x01%s\x02" % key.encode()
        yield Row(where, body, extra + delay, key, bool(delay))


def _invalid_row(body: bytes | None, topic: str | None) -> SourceError:
    if topic is None:
        return SourceError("WRONG_ROW", "a row has no topic, and option topic is not set")
    if not body:
        return SourceError("WRONG_ROW", f"a row for topic {topic} has an empty body")
    return SourceError(
        "WRONG_ROW", f"a row for topic {topic} has a body of {len(body)} bytes; "
        f"at most {BODY_BYTES_MAX}",
    )  # fmt: skip


def _texts(column: Array | None, count: int) -> list[str | None]:
    return [None] * count if column is None else column.to_pylist()


def _property_strings(columns: dict[str, Array], count: int) -> list[bytes]:
    """Return the encoded properties of each row."""
    tags = _texts(columns.get("tags"), count)
    keys = columns.get("keys")
    lists: list[Any] = [None] * count if keys is None else keys.to_pylist()
    maps = columns.get("properties")
    given: list[Any] = [None] * count if maps is None else maps.to_pylist()
    if tags.count(None) == count and keys is None and maps is None:
        return [b""] * count
    try:
        return [
            _property_string(tag, keys_here, own)
            for tag, keys_here, own in zip(tags, lists, given, strict=True)
        ]
    except UsageError as error:
        raise SourceError("WRONG_ROW", f"a row is not a valid message: {error}") from None


def _property_string(
    tag: str | None, keys: list[str] | str | None, own: list[tuple[str, str]] | None
) -> bytes:
    found = {name: value for name, value in own or () if value}
    for name in found:
        if names.is_reserved(name):
            raise UsageError(f"property {name!r} is reserved by the protocol; remove it")
    if tag:
        found["TAGS"] = names.checked_tag(tag)
    if keys:
        words = [keys] if isinstance(keys, str) else keys
        found["KEYS"] = " ".join(map(names.checked_key, words))
    return properties.encode(found)


def _delays(columns: dict[str, Array], count: int) -> list[bytes]:
    levels, times = columns.get("delaylevel"), columns.get("deliverat")
    found = [b""] * count
    if levels is not None:
        found = [b"DELAY\x01%d\x02" % level if level else b"" for level in levels.to_pylist()]
    if times is not None:
        if pa.types.is_timestamp(times.type):
            times = pc.divide(times.cast(pa.int64()), 1_000)
        found = [
            b"TIMER_DELIVER_MS\x01%d\x02" % time if time else delay
            for time, delay in zip(times.to_pylist(), found, strict=True)
        ]
    return found
