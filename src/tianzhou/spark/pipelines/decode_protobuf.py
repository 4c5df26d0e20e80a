"""Protobuf: a message type of a descriptor set written by `protoc`."""

from datetime import UTC
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pyspark.sql import types as T

from tianzhou.spark.pipelines.decode import Decoder
from tianzhou.spark.pipelines.decode_binary import decoder_of
from tianzhou.spark.pipelines.errors import PipelineError

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_LEVELS_MAX: Final = 16
"""A recursive message has no Spark type."""


def protobuf_of(file: Path, name: str) -> Decoder:
    """Return a decoder for a message type. Raises PipelineError if the file or type is invalid."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise PipelineError(f"decode.descriptor: {file} cannot be read: {error}") from error
    schema = _struct(_message_class(data, name, str(file)).DESCRIPTOR, 0)
    found: dict[bytes, Any] = {}

    def read(body: bytes) -> dict[str, Any]:
        # Message classes are built from the descriptor, so each worker builds its own, once.
        if data not in found:
            found[data] = _message_class(data, name, "")
        message = found[data]()
        message.ParseFromString(body)
        return _fields(message)

    decode_error: type[Exception] = import_module("google.protobuf.message").DecodeError
    return decoder_of(schema, read, (decode_error, ValueError))


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
    if level > _LEVELS_MAX:
        raise PipelineError(
            f"decode.message: {descriptor.full_name} is recursive, which tables do not support"
        )
    return T.StructType([T.StructField(one.name, _kind(one, level)) for one in descriptor.fields])


def _kind(field: Any, level: int) -> T.DataType:
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
