"""Bodies into values. What can't be read is kept, with the reason.

Every decoder adds two columns: what `body` becomes, and a reason, null where all is well. JSON and
text are read by Spark's own functions; Avro and Protobuf by Python, in Arrow batches, because
Spark's own readers of these need JARs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

VALUE: Final = "_value"
REASON: Final = "_reason"
NOT_TEXT: Final = "the body is not UTF-8 text"


@dataclass(frozen=True, slots=True)
class Decoder:
    """`mark` adds the two columns."""

    mark: Callable[[DataFrame], DataFrame]
    can_fail: bool = True


def good(marked: DataFrame) -> DataFrame:
    """Rows that could be read, with the value as `body`."""
    return (
        marked.where(F.col(REASON).isNull())
        .withColumn("body", F.col(VALUE))
        .drop(VALUE, REASON)
    )  # fmt: skip


def bad(marked: DataFrame) -> DataFrame:
    """Rows that could not, as they are, and why."""
    return (
        marked.where(F.col(REASON).isNotNull())
        .withColumnRenamed(REASON, "reason")
        .drop(VALUE)
    )  # fmt: skip


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
