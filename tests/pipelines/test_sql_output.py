"""The output of `tianzhou sql`: a table for people; CSV, JSON and Parquet for programs."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from pipelines.conftest import Place
from tianzhou.admin.commands.spark_session import spark_errors
from tianzhou.admin.commands.sql import show
from tianzhou.spark.tables.query import query_once


@pytest.fixture
def found(place: Place) -> DataFrame:
    """Every kind of value: structs, lists, bytes, decimals, numbers, times, null."""
    topic = place.topic("orders")
    place.send(topic, [{"n": n, "city": "北京, 海淀"} for n in range(3)], keys=["T1", "T2"])
    select = (
        "SELECT body, keys, rawBody, CAST(body.n AS DECIMAL(5,2)) AS price, body.n AS n, "
        "TIMESTAMP '2026-11-16 08:00:00' AS at, X'FF00' AS raw, NULL AS nothing "
        f"FROM `{topic}` ORDER BY body.n"
    )
    return query_once(place.spark, select, place.cluster())


def wanted(n: int) -> dict[str, Any]:
    body = {"city": "北京, 海淀", "n": n}
    return {
        "body": body,
        "keys": ["T1", "T2"],
        "rawBody": json.dumps({"n": n, "city": body["city"]}),
        "price": f"{n}.00",
        "n": n,
        "at": "2026-11-16T08:00:00",
        "raw": "/wA=",
        "nothing": None,
    }


def test_sql_output_as_json_and_csv(
    found: DataFrame, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    show(found, "json", None, rows_max=1)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [wanted(n) for n in range(3)]
    file = tmp_path / "orders.csv"
    show(found, "csv", file, rows_max=1)
    with file.open(encoding="utf-8", newline="") as text:
        rows = list(csv.DictReader(text))
    assert [json.loads(row["body"]) for row in rows] == [wanted(n)["body"] for n in range(3)]
    assert [(row["n"], row["price"], row["nothing"]) for row in rows][1:] == [
        ("1", "1.00", ""),
        ("2", "2.00", ""),
    ]
    with pytest.raises(FileExistsError):
        show(found, "csv", file, rows_max=1)


def test_sql_output_as_a_table_and_parquet(
    place: Place, found: DataFrame, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    show(found.select("n", "price", "at"), "table", None, rows_max=2)
    printed = capsys.readouterr().out
    assert "1.00  2026-11-16T08:00:00" in printed
    assert "2.00" not in printed
    assert "2 rows; there are more, raise --rows to show them" in printed
    target = tmp_path / "orders.parquet"
    show(found.drop("nothing"), "parquet", target, rows_max=1)
    again = place.spark.read.parquet(str(target))
    assert sorted(again.collect()) == sorted(found.drop("nothing").collect())
    with pytest.raises(Exception, match="already exists") as caught, spark_errors():
        show(found.drop("nothing"), "parquet", target, rows_max=1)
    assert "\n" not in str(caught.value)
