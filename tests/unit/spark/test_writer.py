"""Rows of a DataFrame as messages."""

from datetime import UTC, datetime

import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from tianzhou.base.limits import BODY_BYTES_MAX
from tianzhou.spark.arrow import Batch, pa
from tianzhou.spark.errors import SourceError
from tianzhou.spark.writer import Row, check_schema, rows_of


def schema(**fields: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])  # pyright: ignore[reportArgumentType] # types of Spark


def batch(**columns: list[object]) -> Batch:
    kinds = {
        "keys": pa.list_(pa.string()),
        "properties": pa.map_(pa.string(), pa.string()),
        "deliverAt": pa.timestamp("us", "UTC"),
        "body": pa.binary(),
        "delayLevel": pa.int32(),
    }
    arrays = [pa.array(values, kinds.get(name, pa.string())) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def test_rows_of_maps_every_column_to_the_message() -> None:
    made = batch(
        body=[b"x"],
        topic=["paid"],
        tags=["north"],
        keys=[["k1", "k2"]],
        properties=[[("city", "大连")]],
        shardingKey=["T1"],
        delayLevel=[3],
    )
    text = "city\x01大连\x02TAGS\x01north\x02KEYS\x01k1 k2\x02__SHARDINGKEY\x01T1\x02DELAY\x013\x02"
    assert list(rows_of(made, "orders")) == [Row("paid", b"x", text.encode(), "T1", True)]


def test_rows_of_needs_only_a_body() -> None:
    assert list(rows_of(batch(value=["text"]), "orders")) == [
        Row("orders", b"text", b"", None, False)
    ]


def test_rows_of_maps_delivery_times_to_properties() -> None:
    noon = datetime(2026, 11, 15, 12, tzinfo=UTC)
    made = batch(body=[b"x", b"y"], deliverAt=[noon, None])
    late, now = rows_of(made, "orders")
    assert late.properties == b"TIMER_DELIVER_MS\x01%d\x02" % (noon.timestamp() * 1000)
    assert (late.is_delayed, now.is_delayed) == (True, False)


WRONG_ROWS = [
    ({"body": [None]}, "empty body"),
    ({"body": [b""]}, "empty body"),
    ({"body": [bytes(BODY_BYTES_MAX + 1)]}, f"at most {BODY_BYTES_MAX}"),
    ({"body": [b"x"], "tags": ["a||b"]}, r"tag 'a\|\|b'"),
    ({"body": [b"x"], "keys": [["a b"]]}, "key 'a b'"),
    ({"body": [b"x"], "properties": [[("TAGS", "x")]]}, "property 'TAGS' is reserved"),
    ({"body": [b"x"], "properties": [[("a\x01", "x")]]}, "not a valid message"),
]


@pytest.mark.parametrize(("columns", "said"), WRONG_ROWS)
def test_rows_of_rejects_invalid_rows(columns: dict[str, list[object]], said: str) -> None:
    with pytest.raises(SourceError, match=said):
        list(rows_of(batch(**columns), "orders"))


def test_rows_of_rejects_a_row_without_a_topic() -> None:
    with pytest.raises(SourceError, match="a row has no topic"):
        list(rows_of(batch(body=[b"x"], topic=[None]), None))


def test_check_schema_rejects_unknown_columns_and_types() -> None:
    check_schema(schema(body=BinaryType()), topic="orders")
    check_schema(schema(Value=StringType(), topic=StringType()), topic=None)
    for fields, said in (
        ({"body": IntegerType()}, "column body is int; it must be binary or string"),
        ({"body": BinaryType(), "price": IntegerType()}, "column 'price' cannot be written"),
        ({"tags": StringType()}, "exactly one of the columns body and value"),
        ({"body": BinaryType(), "value": BinaryType()}, "exactly one of the columns"),
    ):
        with pytest.raises(SourceError, match=said):
            check_schema(schema(**fields), topic="orders")
    with pytest.raises(SourceError, match="no topic to write to"):
        check_schema(schema(body=BinaryType()), topic=None)
    with pytest.raises(SourceError, match="drop the column topic"):
        check_schema(schema(body=BinaryType(), topic=StringType()), topic="t", idempotent=True)
