"""Avro: one schema for all bodies, which are bare records or use single-object encoding."""

import io
import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

from pyspark.sql import types as T

from tianzhou.spark.pipelines.decode import Decoder
from tianzhou.spark.pipelines.decode_binary import decoder_of
from tianzhou.spark.pipelines.errors import PipelineError

_avro: Any = import_module("fastavro")

SINGLE_OBJECT: Final = b"\xc3\x01"
SINGLE_OBJECT_BYTES: Final = 10
"""Two bytes of marker, eight of the schema's fingerprint."""

_PLAIN: Final[dict[str, T.DataType]] = {
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
_LOGICAL: Final[dict[str, T.DataType]] = {
    "date": T.DateType(),
    "timestamp-millis": T.TimestampType(),
    "timestamp-micros": T.TimestampType(),
    "uuid": T.StringType(),
    "local-timestamp-millis": T.TimestampNTZType(),
    "local-timestamp-micros": T.TimestampNTZType(),
}


def avro_of(file: Path) -> Decoder:
    """Return a decoder for a schema file. Raises PipelineError if the schema is invalid."""
    try:
        schema = _avro.parse_schema(json.loads(file.read_text("utf-8")))
    except OSError as error:
        raise PipelineError(f"decode.schema: {file} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError, _avro.schema.SchemaParseException) as error:
        raise PipelineError(f"decode.schema: {file} is not a valid Avro schema: {error}") from error
    kind = _kind(schema, {})
    if not isinstance(kind, T.StructType):
        raise PipelineError(
            f"decode.schema: {file} must describe a record, not {kind.simpleString()}"
        )

    def read(body: bytes) -> dict[str, Any]:
        return _read(schema, body)

    return decoder_of(kind, read, (ValueError, EOFError, IndexError, KeyError, TypeError))


def _read(schema: Any, body: bytes) -> dict[str, Any]:
    start = SINGLE_OBJECT_BYTES if body.startswith(SINGLE_OBJECT) else 0
    file = io.BytesIO(body)
    file.seek(start)
    value = _avro.schemaless_reader(file, schema)
    if file.tell() != len(body):
        raise ValueError(f"the record ends at byte {file.tell()} of {len(body)}")
    return value


def _kind(schema: Any, named: Mapping[str, Any]) -> T.DataType:
    """Return the Spark type of an Avro type."""
    if isinstance(schema, list):
        kinds = [one for one in cast("list[Any]", schema) if one != "null"]
        if len(kinds) != 1:
            raise PipelineError(f"decode.schema: a union of {kinds} has no Spark type")
        return _kind(kinds[0], named)
    if isinstance(schema, str):
        if schema in named:
            return _kind(named[schema], named)
        if schema not in _PLAIN:
            raise PipelineError(f"decode.schema: unknown type {schema!r}")
        return _PLAIN[schema]
    return _kind_of_mapping(schema, named)


def _kind_of_mapping(schema: dict[str, Any], named: Mapping[str, Any]) -> T.DataType:
    logical, kind = schema.get("logicalType"), schema["type"]
    if logical == "decimal":
        return T.DecimalType(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "record":
        known = {**named, schema["name"]: schema}
        return T.StructType(
            [T.StructField(one["name"], _kind(one["type"], known)) for one in schema["fields"]]
        )
    if kind == "array":
        return T.ArrayType(_kind(schema["items"], named))
    if kind == "map":
        return T.MapType(T.StringType(), _kind(schema["values"], named))
    return _kind(kind, named)
