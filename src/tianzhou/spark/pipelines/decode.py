"""Decoding of bodies. Bodies that cannot be decoded are kept, with the reason.

Every decoder adds two columns: the decoded value, and a reason, which is null on success. Text and
JSON (`decode_json.py`) are decoded by Spark's own functions; Avro and Protobuf by Python, in Arrow
batches, because Spark's decoders for these need JARs.

Avro has one schema for all bodies, which are bare records or use single-object encoding. Protobuf
has one message type of a descriptor set written by `protoc`.
"""

import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas import types as spark_arrow
from pyspark.sql.types import StringType, StructField, StructType

from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.model import Framing

if TYPE_CHECKING:
    from tianzhou.spark.arrow import Batch

VALUE: Final = "_value"
REASON: Final = "_reason"
NOT_TEXT: Final = "the body is not UTF-8 text"

Read = Callable[[bytes], dict[str, Any]]
"""Returns the fields of a body, or raises one of the decoder's errors."""

CONFLUENT: Final = b"\x00"
CONFLUENT_BYTES: Final = 5
"""A zero, then four bytes with the number of the schema in the registry."""
NO_PREFIX: Final = "the body has no prefix of a schema registry"

SINGLE_OBJECT: Final = b"\xc3\x01"
SINGLE_OBJECT_BYTES: Final = 10
"""Two bytes of marker, eight of the schema's fingerprint."""

_AVRO_TYPES: Final[dict[str, T.DataType]] = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "bytes": T.BinaryType(),
    "string": T.StringType(),
    "enum": T.StringType(),
    "fixed": T.BinaryType(),
}
_AVRO_LOGICAL_TYPES: Final[dict[str, T.DataType]] = {
    "date": T.DateType(),
    "timestamp-millis": T.TimestampType(),
    "timestamp-micros": T.TimestampType(),
    "uuid": T.StringType(),
    "local-timestamp-millis": T.TimestampNTZType(),
    "local-timestamp-micros": T.TimestampNTZType(),
}

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_LEVELS_MAX: Final = 16
"""A recursive message has no Spark type."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """Decodes bodies: `mark` adds the columns for value and reason."""

    mark: Callable[[DataFrame], DataFrame]
    can_fail: bool = True


def good(marked: DataFrame) -> DataFrame:
    """Return the decoded rows, with the value as `body`."""
    return marked.where(F.col(REASON).isNull()).withColumn("body", F.col(VALUE)).drop(VALUE, REASON)


def bad(marked: DataFrame) -> DataFrame:
    """Return the rows that could not be decoded, unchanged, with the reason."""
    return marked.where(F.col(REASON).isNotNull()).withColumnRenamed(REASON, "reason").drop(VALUE)


def raw() -> Decoder:
    return Decoder(
        lambda rows: rows.withColumn(VALUE, F.col("body")).withColumn(
            REASON, F.lit(None).cast(StringType())
        ),
        can_fail=False,
    )


def text() -> Decoder:
    def mark(rows: DataFrame) -> DataFrame:
        as_text = F.col("body").cast(StringType())
        reason = F.when(~F.is_valid_utf8(as_text), NOT_TEXT)
        return rows.withColumn(VALUE, as_text).withColumn(REASON, reason)

    return Decoder(mark)


# Decoding in Python


def decoder_of(
    schema: StructType, reader: Callable[[], Read], errors: tuple[type[Exception], ...]
) -> Decoder:
    """Return a decoder that reads every body with the result of `reader`. Each task calls `reader`
    once, in a worker, so it must be picklable."""

    def mark(rows: DataFrame) -> DataFrame:
        added = [StructField(VALUE, schema), StructField(REASON, StringType())]
        out = StructType([*rows.schema.fields, *added])
        frame: Any = rows  # `mapInArrow` has no annotations
        return frame.mapInArrow(_marking(schema, reader, errors), out)

    return Decoder(mark)


def _marking(
    schema: StructType, reader: Callable[[], Read], errors: tuple[type[Exception], ...]
) -> "Callable[[Iterator[Batch]], Iterator[Batch]]":
    def marked(batches: "Iterator[Batch]") -> "Iterator[Batch]":
        # Imported here because only workers need Arrow.
        from tianzhou.spark.arrow import pa

        # Spark's own type conversion; the call has no annotations.
        to_arrow_type: Any = vars(spark_arrow)["to_arrow_type"]
        kind, read = to_arrow_type(schema, timezone="UTC"), reader()
        for batch in batches:
            values: list[dict[str, Any] | None] = []
            reasons: list[str | None] = []
            for body in batch.column("body").to_pylist():
                value, reason = _tried(read, body, errors)
                values.append(value)
                reasons.append(reason)
            columns = [*batch.columns, pa.array(values, kind), pa.array(reasons, pa.string())]
            yield pa.RecordBatch.from_arrays(columns, [*batch.schema.names, VALUE, REASON])

    return marked


def _tried(
    read: Read, body: bytes, errors: tuple[type[Exception], ...]
) -> tuple[dict[str, Any] | None, str | None]:
    try:
        return read(body), None
    except errors as error:
        return None, f"{type(error).__name__}: {error}"[:500]


def _unframed(read: Read, framing: Framing, *, has_indexes: bool) -> Read:
    """Read a body without the prefix of a schema registry. In Protobuf a list of indexes follows,
    which says which message type of the schema it is; one zero means the first."""
    if framing == "none":
        return read

    def read_framed(body: bytes) -> dict[str, Any]:
        if not body.startswith(CONFLUENT) or len(body) < CONFLUENT_BYTES:
            raise ValueError(NO_PREFIX)
        start = CONFLUENT_BYTES
        if has_indexes:
            count, start = _zigzag(body, start)
            for _ in range(count):
                _, start = _zigzag(body, start)
        return read(body[start:])

    return read_framed


def _zigzag(body: bytes, at: int) -> tuple[int, int]:
    """Decode a number with a variable length; returns it and the position after it."""
    number = shift = 0
    while shift < 35:
        if at >= len(body):
            raise ValueError(NO_PREFIX)
        byte = body[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise ValueError(NO_PREFIX)


# Avro


def avro_of(file: Path, framing: Framing = "none") -> Decoder:
    """Return a decoder for a schema file. Raises PipelineError if the schema is invalid."""
    fastavro: Any = import_module("fastavro")
    try:
        schema = fastavro.parse_schema(json.loads(file.read_text("utf-8")))
    except OSError as error:
        raise PipelineError(f"decode.schema: {file} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise PipelineError(f"decode.schema: {file} is not a valid Avro schema: {error}") from error
    kind = _avro_type(schema, {})
    if not isinstance(kind, T.StructType):
        raise PipelineError(
            f"decode.schema: {file} must describe a record, not {kind.simpleString()}"
        )

    errors = (ValueError, EOFError, IndexError, KeyError, TypeError)
    return decoder_of(
        kind, lambda: _unframed(_avro_reader(schema), framing, has_indexes=False), errors
    )


def _avro_reader(schema: Any) -> Read:
    read_record: Any = import_module("fastavro").schemaless_reader

    def read(body: bytes) -> dict[str, Any]:
        start = SINGLE_OBJECT_BYTES if body.startswith(SINGLE_OBJECT) else 0
        file = io.BytesIO(body)
        file.seek(start)
        value = read_record(file, schema)
        if file.tell() != len(body):
            raise ValueError(f"the record ends at byte {file.tell()} of {len(body)}")
        return value

    return read


def _avro_type(schema: Any, named: Mapping[str, Any]) -> T.DataType:
    """Return the Spark type of an Avro type."""
    if isinstance(schema, list):
        kinds = [one for one in cast("list[Any]", schema) if one != "null"]
        if len(kinds) != 1:
            raise PipelineError(f"decode.schema: a union of {kinds} has no Spark type")
        return _avro_type(kinds[0], named)
    if isinstance(schema, str):
        if schema in named:
            return _avro_type(named[schema], named)
        if schema not in _AVRO_TYPES:
            raise PipelineError(f"decode.schema: unknown type {schema!r}")
        return _AVRO_TYPES[schema]
    return _avro_type_of_mapping(schema, named)


def _avro_type_of_mapping(schema: dict[str, Any], named: Mapping[str, Any]) -> T.DataType:
    logical, kind = schema.get("logicalType"), schema["type"]
    if logical == "decimal":
        return T.DecimalType(schema["precision"], schema.get("scale", 0))
    if logical in _AVRO_LOGICAL_TYPES:
        return _AVRO_LOGICAL_TYPES[logical]
    if kind == "record":
        known = {**named, schema["name"]: schema}
        return T.StructType(
            [T.StructField(one["name"], _avro_type(one["type"], known)) for one in schema["fields"]]
        )
    if kind == "array":
        return T.ArrayType(_avro_type(schema["items"], named))
    if kind == "map":
        return T.MapType(T.StringType(), _avro_type(schema["values"], named))
    return _avro_type(kind, named)


# Protobuf


def protobuf_of(file: Path, name: str, framing: Framing = "none") -> Decoder:
    """Return a decoder for a message type. Raises PipelineError if the file or type is invalid."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise PipelineError(f"decode.descriptor: {file} cannot be read: {error}") from error
    schema = _struct(_message_class(data, name, str(file)).DESCRIPTOR, 0)
    decode_error: type[Exception] = import_module("google.protobuf.message").DecodeError
    errors = (decode_error, ValueError)
    return decoder_of(
        schema, lambda: _unframed(_protobuf_reader(data, name), framing, has_indexes=True), errors
    )


def _protobuf_reader(data: bytes, name: str) -> Read:
    # Message classes are built from the descriptor and cannot be pickled.
    message_class = _message_class(data, name, "")

    def read(body: bytes) -> dict[str, Any]:
        message = message_class()
        message.ParseFromString(body)
        return _fields(message)

    return read


def _message_class(data: bytes, name: str, file: str) -> Any:
    descriptor_pb2 = import_module("google.protobuf.descriptor_pb2")
    pools: Any = import_module("google.protobuf.descriptor_pool")
    factory: Any = import_module("google.protobuf.message_factory")
    decode_error: type[Exception] = import_module("google.protobuf.message").DecodeError
    pool = pools.DescriptorPool()
    try:
        for one in descriptor_pb2.FileDescriptorSet.FromString(data).file:
            pool.Add(one)
        return factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except (decode_error, TypeError) as error:
        raise PipelineError(
            f"decode.descriptor: {file} is not a descriptor set; write it with protoc "
            f"--include_imports --descriptor_set_out: {error}"
        ) from error
    except KeyError as error:
        raise PipelineError(f"decode.message: {file} has no message {name!r}") from error


def _struct(descriptor: Any, level: int) -> T.StructType:
    """Return the Spark type of a Protobuf message type."""
    if level > _LEVELS_MAX:
        raise PipelineError(
            f"decode.message: {descriptor.full_name} is recursive, which tables do not support"
        )
    return T.StructType(
        [T.StructField(one.name, _protobuf_type(one, level)) for one in descriptor.fields]
    )


def _protobuf_type(field: Any, level: int) -> T.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return T.MapType(_single(entry["key"], level), _single(entry["value"], level))
    kind = _single(field, level)
    return T.ArrayType(kind) if _is_repeated(field) else kind


def _single(field: Any, level: int) -> T.DataType:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return T.TimestampType()
        return _struct(field.message_type, level + 1)
    by_cpp_type = {
        field.CPPTYPE_INT32: T.IntegerType(),
        field.CPPTYPE_INT64: T.LongType(),
        field.CPPTYPE_UINT32: T.LongType(),
        field.CPPTYPE_UINT64: T.DecimalType(20, 0),
        field.CPPTYPE_DOUBLE: T.DoubleType(),
        field.CPPTYPE_FLOAT: T.FloatType(),
        field.CPPTYPE_BOOL: T.BooleanType(),
        field.CPPTYPE_ENUM: T.StringType(),
    }
    if field.type == field.TYPE_BYTES:
        return T.BinaryType()
    return by_cpp_type.get(field.cpp_type, T.StringType())


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _fields(message: Any) -> dict[str, Any]:
    """Return the fields. Unset fields with presence are omitted; others have their defaults."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if _is_map(field):
            inner = field.message_type.fields_by_name["value"]
            found[field.name] = [(key, _value(inner, one)) for key, one in value.items()]
        elif _is_repeated(field):
            found[field.name] = [_value(field, one) for one in value]
        else:
            found[field.name] = _value(field, value)
    return found


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        is_time = field.message_type.full_name == _TIMESTAMP
        return value.ToDatetime(UTC) if is_time else _fields(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    return value
