"""The columns of the tables, with Spark's types, and which of them a query asks for.

Spark does not tell Python sources which columns a query uses. A reader is told in two ways: by a
narrower schema (`spark.read.schema("queueId int, body binary")`) or by the option `columns`.
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
"""A store directory knows where its records are."""


def table_schema(columns: dict[str, DataType], asked: Sequence[str]) -> StructType:
    """All columns, or those that the option names, in its order."""
    by_name = {name.lower(): name for name in columns}
    unknown = [name for name in asked if name.lower() not in by_name]
    if unknown:
        raise SourceError(
            "UNKNOWN_COLUMN",
            f"option columns names {', '.join(map(repr, unknown))}; there are {', '.join(columns)}",
        )
    chosen = [by_name[name.lower()] for name in asked] or list(columns)
    return StructType([StructField(name, columns[name]) for name in chosen])


def arrow_schema(columns: dict[str, DataType], asked: StructType) -> "Schema":
    """What batches must look like for the schema that a query was planned with."""
    by_name = {name.lower(): name for name in columns}
    for field in asked.fields:
        name = by_name.get(field.name.lower())
        if name is None:
            raise SourceError(
                "SCHEMA_MISMATCH",
                f"the schema asks for column {field.name!r}; there are {', '.join(columns)}",
            )
        if field.dataType.simpleString() != columns[name].simpleString():
            raise SourceError(
                "SCHEMA_MISMATCH",
                f"column {name} is {columns[name].simpleString()}; the schema says "
                f"{field.dataType.simpleString()}: read it as it is, and cast it in the query",
            )
    # The same call that Spark compares our batches with. It has no annotations.
    to_arrow_schema: Any = vars(spark_arrow)["to_arrow_schema"]
    return to_arrow_schema(asked, timezone="UTC")
