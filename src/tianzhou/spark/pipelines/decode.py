"""Decoding of bodies. Bodies that cannot be decoded are kept, with the reason.

Every decoder adds two columns: the decoded value, and a reason, which is null on success. JSON and
text are decoded by Spark's own functions; Avro and Protobuf by Python, in Arrow batches, because
Spark's decoders for these need JARs.
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
