"""The columns of the tables, with Spark's types, and the selection of columns.

Spark does not tell Python sources which columns a query uses. Users select columns in two ways:
with a narrower schema (`spark.read.schema("queueId int, body binary")`) or the option `columns`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.pandas import types as spark_arrow
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tianzhou.spark.errors import SourceError

if TYPE_CHECKING:
    from tianzhou.spark.arrow import Schema

TOPIC: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "brokerName": StringType(),
    "queueId": IntegerType(),
    "queueOffset": LongType(),
    "msgId": StringType(),
    "tags": StringType(),
    "keys": ArrayType(StringType()),
    "body": BinaryType(),
    "properties": MapType(StringType(), StringType()),
    "bornTimestamp": TimestampType(),
    "storeTimestamp": TimestampType(),
    "bornHost": StringType(),
    "reconsumeTimes": IntegerType(),
    "sysFlag": IntegerType(),
    "transactionId": StringType(),
}
STORE: Final = TOPIC | {"physicalOffset": LongType()}
"""Rows of a store directory also have their position in the commit log."""


def table_schema(columns: dict[str, DataType], asked: Sequence[str]) -> StructType:
    """Return all columns, or those of the option in its order. Raises SourceError."""
    by_name = {name.lower(): name for name in columns}
    unknown = [name for name in asked if name.lower() not in by_name]
    if unknown:
        raise SourceError(
            "UNKNOWN_COLUMN",
            f"option columns has {', '.join(map(repr, unknown))}; columns are {', '.join(columns)}",
        )
    chosen = [by_name[name.lower()] for name in asked] or list(columns)
    return StructType([StructField(name, columns[name]) for name in chosen])


def arrow_schema(columns: dict[str, DataType], asked: StructType) -> "Schema":
    """Return the Arrow schema for the schema of a query. Raises SourceError."""
    by_name = {name.lower(): name for name in columns}
    for field in asked.fields:
        name = by_name.get(field.name.lower())
        if name is None:
            raise SourceError(
                "SCHEMA_MISMATCH",
                f"the schema has a column {field.name!r}; columns are {', '.join(columns)}",
            )
        if field.dataType.simpleString() != columns[name].simpleString():
            raise SourceError(
                "SCHEMA_MISMATCH",
                f"column {name} is {columns[name].simpleString()}; the schema says "
                f"{field.dataType.simpleString()}: correct the schema and cast in the query",
            )
    # Spark checks batches against the result of this call. The call has no annotations.
    to_arrow_schema: Any = vars(spark_arrow)["to_arrow_schema"]
    return to_arrow_schema(asked, timezone="UTC")
