"""Avro and Protobuf bodies, decoded in Python, one Arrow batch at a time."""

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.pandas import types as spark_arrow
from pyspark.sql.types import StringType, StructField, StructType

from tianzhou.spark.arrow import Batch, pa
from tianzhou.spark.pipelines.decode import REASON, VALUE, Decoder

Read = Callable[[bytes], dict[str, Any]]
"""Returns the fields of a body, or raises one of the decoder's errors."""


def decoder_of(schema: StructType, read: Read, errors: tuple[type[Exception], ...]) -> Decoder:
    """Return a decoder that calls `read`, which must be picklable: it runs in the workers."""

    def mark(rows: DataFrame) -> DataFrame:
        added = [StructField(VALUE, schema), StructField(REASON, StringType())]
        out = StructType([*rows.schema.fields, *added])
        frame: Any = rows  # `mapInArrow` has no annotations
        return frame.mapInArrow(_marking(schema, read, errors), out)

    return Decoder(mark)


def _marking(
    schema: StructType, read: Read, errors: tuple[type[Exception], ...]
) -> Callable[[Iterator[Batch]], Iterator[Batch]]:
    def marked(batches: Iterator[Batch]) -> Iterator[Batch]:
        # Spark's own type conversion; the call has no annotations.
        to_arrow_type: Any = vars(spark_arrow)["to_arrow_type"]
        kind = to_arrow_type(schema, timezone="UTC")
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
