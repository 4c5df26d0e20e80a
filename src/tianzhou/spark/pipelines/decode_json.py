"""JSON bodies, parsed by Spark, with a given or an inferred schema."""

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.column import Column
from pyspark.sql.types import StringType, StructField, StructType

from tianzhou.spark.pipelines.decode import NOT_TEXT, REASON, VALUE, Decoder
from tianzhou.spark.pipelines.errors import PipelineError

_CORRUPT: Final = "_corrupt"


def json_of(schema: StructType) -> Decoder:
    """Return a decoder for a schema. Fields that are NOT NULL must be present."""
    if any(field.name == _CORRUPT for field in schema.fields):
        raise PipelineError(f"decode.schema: a column must not be named {_CORRUPT}")

    def mark(rows: DataFrame) -> DataFrame:
        text = F.col("body").cast(StringType())
        # Spark fills an extra field for rows that do not match the schema.
        with_corrupt = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        parsed = rows.withColumn(VALUE, F.from_json(text, with_corrupt, options))
        fields = [F.col(f"{VALUE}.`{field.name}`").alias(field.name) for field in schema.fields]
        return parsed.withColumn(REASON, _reason(text, schema)).withColumn(VALUE, F.struct(*fields))

    return Decoder(mark)


def _reason(text: Column, schema: StructType) -> Column:
    """Return the reason of a mismatch, or null. Only mismatching rows are examined in detail."""
    value, corrupt = F.col(VALUE), F.col(f"{VALUE}.{_CORRUPT}")
    required = [value.getField(field.name) for field in schema.fields if not field.nullable]
    # Spark would treat the first element of an array as the object.
    suspicious = value.isNull() | corrupt.isNotNull() | ~F.ltrim(text).startswith("{")
    for field in required:
        suspicious = suspicious | field.isNull()
    variant = F.try_parse_json(text)
    misfits = F.array_join(F.array_compact(F.array(*_misfits(variant, schema))), ", ")
    mismatch = F.concat(F.lit("the body does not match the schema: "), misfits)
    return F.when(
        suspicious,
        F.when(~F.is_valid_utf8(text), NOT_TEXT)
        .when(variant.isNull(), "the body is not JSON")
        .when(~F.schema_of_variant(variant).startswith("OBJECT"), "the body is not a JSON object")
        .otherwise(mismatch),
    )


def _misfits(variant: Column, schema: StructType) -> list[Column]:
    value = F.col(VALUE)
    found: list[Column] = []
    for field in schema.fields:
        is_null = value.getField(field.name).isNull()
        is_there = F.try_variant_get(variant, _path(field.name), "variant").isNotNull()
        kind = field.dataType.simpleString()
        missing = F.lit(None) if field.nullable else F.lit(f"{field.name} is missing")
        found.append(
            F.when(is_null & is_there, f"{field.name} is not of type {kind}").when(is_null, missing)
        )
    return found


def _path(name: str) -> str:
    quoted = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"$['{quoted}']"


def parsed_schema(text: str) -> StructType:
    """Parse columns as in CREATE TABLE. Raises PipelineError."""
    from pyspark.errors import ParseException
    from pyspark.sql.types import DataType

    try:
        found = DataType.fromDDL(text)
    except ParseException as error:
        raise PipelineError(
            f"decode.schema is {text!r}; it must be columns as in CREATE TABLE, such as "
            f"`city STRING, amount DECIMAL(18,2) NOT NULL`: {error.getCondition()}"
        ) from error
    if not isinstance(found, StructType) or not found.fields:
        raise PipelineError(f"decode.schema is {text!r}; it must be columns, not one type")
    return found


def inferred(samples: DataFrame, spark: SparkSession) -> StructType:
    """Infer the columns of JSON bodies. Raises PipelineError if there is no JSON object."""
    texts = samples.select(F.col("body").cast(StringType()).alias("value"))
    objects = texts.where(F.is_valid_utf8("value") & F.ltrim("value").startswith("{"))
    objects = objects.where(F.try_parse_json("value").isNotNull())
    schema = spark.read.json(objects).schema
    if not schema.fields:
        raise PipelineError(
            "decode.schema is `infer`, but the topic has no JSON object to infer it from; send one "
            "first, or declare the columns"
        )
    return schema
