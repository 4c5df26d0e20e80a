"""JSON bodies, parsed by Spark, with a given or an inferred schema.

A body must be one whole JSON object. Spark's own parser reads the first value of a body and ignores
what follows, and accepts single quotes and repeated names; so a body counts only if the strict
parser for VARIANT reads it too, between a bracket and a nonce that no body can contain.
"""

import codecs
import uuid
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.column import Column
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from tianzhou.spark.pipelines.decode import (
    CONFLUENT,
    CONFLUENT_BYTES,
    NO_PREFIX,
    REASON,
    VALUE,
    Decoder,
)
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.model import Framing

_CORRUPT: Final = "_corrupt"
_TEXT: Final = "_text"
_STRICT: Final = "_strict"
_DIGITS_MAX: Final = 38
UTF_8: Final = "utf-8"


def json_of(
    schema: StructType, *, charset: str = UTF_8, rounding: bool = False, framing: Framing = "none"
) -> Decoder:
    """Return a decoder for a schema. Fields that are NOT NULL must be present. A number with more
    digits than its DECIMAL column holds is rejected, unless `rounding` is set."""
    if any(field.name == _CORRUPT for field in schema.fields):
        raise PipelineError(f"decode.schema: a column must not be named {_CORRUPT}")
    nonce = uuid.uuid4().hex
    # Decimals are read with all their digits first, to see whether a column loses some.
    read = StructType([*_widened(schema).fields, StructField(_CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}

    def mark(rows: DataFrame) -> DataFrame:
        rows = rows.withColumn(_TEXT, _text_of(_unframed(framing), charset))
        whole = F.concat(F.lit("["), F.col(_TEXT), F.lit(f',"{nonce}"]'))
        rows = rows.withColumn(_STRICT, F.try_parse_json(whole))
        rows = rows.withColumn(VALUE, F.from_json(F.col(_TEXT), read, options))
        exact = F.struct(*map(_exact, schema.fields))
        rounded = _rounded(schema, rounding=rounding)
        reason = _reason(schema, nonce=nonce, charset=charset, framing=framing, rounded=rounded)
        marked = rows.withColumn(REASON, reason).withColumn(VALUE, exact)
        return marked.drop(_TEXT, _STRICT)

    return Decoder(mark)


def _unframed(framing: Framing) -> Column:
    """The body without the prefix of a schema registry: null if it should have one and has none."""
    body = F.col("body")
    if framing == "none":
        return body
    has_prefix = F.substring(body, 1, 1) == F.lit(CONFLUENT)
    return F.when(has_prefix, F.expr(f"substring(body, {CONFLUENT_BYTES + 1})"))


def _text_of(body: Column, charset: str) -> Column:
    """A body as text: null if it is not valid in the charset."""
    if codecs.lookup(charset).name == UTF_8:
        text = body.cast(StringType())
        return F.when(F.is_valid_utf8(text), text)

    def decoded(body: bytes | None) -> str | None:
        if body is None:
            return None
        try:
            return bytes(body).decode(charset)
        except UnicodeDecodeError:
            return None

    return F.udf(decoded, StringType(), useArrow=False)(body)


def _widened(schema: StructType) -> StructType:
    """The schema with decimals that hold as many digits behind the point as possible."""
    found = _mapped(schema, _wide)
    assert isinstance(found, StructType)
    return found


def _wide(kind: DecimalType) -> DecimalType:
    return DecimalType(_DIGITS_MAX, _DIGITS_MAX - (kind.precision - kind.scale))


def _mapped(kind: DataType, change: Callable[[DecimalType], DecimalType]) -> DataType:
    """A type with changed decimals, in which everything may be null, as Spark reads JSON."""
    match kind:
        case StructType():
            return StructType(
                [StructField(one.name, _mapped(one.dataType, change)) for one in kind.fields]
            )
        case ArrayType():
            return ArrayType(_mapped(kind.elementType, change))
        case MapType():
            return MapType(kind.keyType, _mapped(kind.valueType, change))
        case DecimalType():
            return change(kind)
        case _:
            return kind


def _exact(field: StructField) -> Column:
    """The value of a column in its own type."""
    value = F.col(f"{VALUE}.`{field.name}`")
    kind = _mapped(field.dataType, lambda same: same)
    return (value if _mapped(field.dataType, _wide) == kind else value.try_cast(kind)).alias(
        field.name
    )


def _rounded(schema: StructType, *, rounding: bool) -> list[tuple[str, Column]]:
    """For each column with decimals, whether a number does not fit it without rounding."""
    found: list[tuple[str, Column]] = []
    for field in schema.fields:
        wide = _mapped(field.dataType, _wide)
        if rounding or wide == _mapped(field.dataType, lambda same: same):
            continue
        value = F.col(f"{VALUE}.`{field.name}`").alias(field.name)
        back = _exact(field).cast(wide).alias(field.name)
        # Compared as text, because maps cannot be compared.
        there, again = (F.to_json(F.struct(one)) for one in (value, back))
        found.append((field.name, value.isNotNull() & ~there.eqNullSafe(again)))
    return found


def _reason(
    schema: StructType,
    *,
    nonce: str,
    charset: str,
    framing: Framing,
    rounded: list[tuple[str, Column]],
) -> Column:
    """Return the reason of a mismatch, or null. Only mismatching rows are examined in detail."""
    text, value, strict = F.col(_TEXT), F.col(VALUE), F.col(_STRICT)
    corrupt = F.col(f"{VALUE}.{_CORRUPT}")
    follows = F.try_variant_get(strict, "$[1]", "string").eqNullSafe(F.lit(nonce))
    is_object = F.ltrim(text).startswith("{")
    required = [value.getField(field.name) for field in schema.fields if not field.nullable]
    suspicious = value.isNull() | corrupt.isNotNull() | text.isNull() | ~is_object | ~follows
    suspicious = suspicious | strict.isNull()
    for field in required:
        suspicious = suspicious | field.isNull()
    for _, is_rounded in rounded:
        suspicious = suspicious | is_rounded
    variant = F.try_variant_get(strict, "$[0]", "variant")
    misfits = F.array_join(F.array_compact(F.array(*_misfits(variant, schema, rounded))), ", ")
    mismatch = F.concat(F.lit("the body does not match the schema: "), misfits)
    name = "UTF-8" if codecs.lookup(charset).name == UTF_8 else charset.upper()
    return F.when(
        F.coalesce(suspicious, F.lit(True)),
        F.when(_unframed(framing).isNull(), NO_PREFIX)
        .when(text.isNull(), f"the body is not {name} text")
        .when(strict.isNull() & F.try_parse_json(text).isNotNull(), _MORE)
        .when(strict.isNull() & corrupt.isNull(), _NOT_STRICT)
        .when(strict.isNull(), "the body is not JSON")
        .when(~follows, _MORE)
        .when(~is_object, "the body is not a JSON object")
        .otherwise(mismatch),
    )


_MORE: Final = "the body has more than one JSON value, or text after it"
_NOT_STRICT: Final = "the body is not strict JSON: it repeats a name, or has single quotes"


def _misfits(
    variant: Column, schema: StructType, rounded: list[tuple[str, Column]]
) -> list[Column]:
    value, loses_digits = F.col(VALUE), dict(rounded)
    found: list[Column] = []
    for field in schema.fields:
        is_null = value.getField(field.name).isNull()
        is_there = F.try_variant_get(variant, _path(field.name), "variant").isNotNull()
        kind = field.dataType.simpleString()
        missing = F.lit(None) if field.nullable else F.lit(f"{field.name} is missing")
        reason = F.when(is_null & is_there, f"{field.name} is not of type {kind}").when(
            is_null, missing
        )
        if field.name in loses_digits:
            text = f"{field.name} has more digits than {kind} holds"
            reason = reason.when(loses_digits[field.name], text)
        found.append(reason)
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


def inferred(
    samples: DataFrame, spark: SparkSession, *, charset: str = UTF_8, framing: Framing = "none"
) -> StructType:
    """Infer the columns of JSON bodies. Raises PipelineError if there is no JSON object."""
    texts = samples.select(_text_of(_unframed(framing), charset).alias("value"))
    objects = texts.where(F.ltrim("value").startswith("{"))
    objects = objects.where(F.try_parse_json("value").isNotNull())
    schema = spark.read.json(objects).schema
    if not schema.fields:
        raise PipelineError(
            "decode.schema is `infer`, but the topic has no JSON object to infer it from; send one "
            "first, or declare the columns"
        )
    return schema
