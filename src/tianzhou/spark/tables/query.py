"""SQL over topics, for `tianzhou sql`, programs and notebooks."""

import io
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Literal

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from tianzhou.spark.errors import SourceError
from tianzhou.spark.pipelines.decode_json import inferred
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.reading import samples
from tianzhou.spark.tables.errors import TableError, UnknownTable
from tianzhou.spark.tables.history_table import Cluster, history, topics_of
from tianzhou.spark.tables.sql_text import read_sql
from tianzhou.spark.topics import is_of_brokers
from tianzhou.wire.names import RETRY_PREFIX

Bodies = Literal["auto", "json", "text", "raw"]
SAMPLE = 500


def query(spark: SparkSession, sql: str, cluster: Cluster, *, bodies: Bodies = "auto") -> DataFrame:
    """Return the result of a SELECT over topics, live and archived. Raises TableError.

    `bodies` sets the type of the column `body`: a struct with the JSON fields, text, or bytes;
    `auto` decides by a sample of messages. For a body that is not JSON, `body` is null; the bytes
    are in `rawBody`.
    """
    text, uses = read_sql(sql, topics_of(cluster))
    for use in uses:
        rows = history(spark, use.topic, cluster, use.wanted)
        read = readable(spark, rows, use.topic, cluster, bodies)
        read.createOrReplaceTempView(f"`{use.view}`")
    try:
        return spark.sql(text)
    except PySparkException as error:
        if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
            raise UnknownTable(
                f"{str(error).splitlines()[0]} "
                f"Topics here: {', '.join(_shown(topics_of(cluster))) or 'none'}"
            ) from error
        raise TableError(_sentence(error)) from error


def query_once(
    spark: SparkSession, sql: str, cluster: Cluster, *, bodies: Bodies = "auto"
) -> DataFrame:
    """Like `query`, for a result that is computed once: filters are pushed down to the broker.

    Spark keeps pushed filters with the table (see `NarrowedReader`). This is correct as long as
    the table is read once: no second action, and no second use in the same SELECT.
    """
    narrowed = replace(cluster, options={**cluster.options, "pushdown": "true"})
    found = query(spark, sql, narrowed, bodies=bodies)
    return found if _scans_of_topics(found) <= 1 else query(spark, sql, cluster, bodies=bodies)


def _scans_of_topics(found: DataFrame) -> int:
    """Count the scans of topics in the optimized plan."""
    text = io.StringIO()
    with redirect_stdout(text):
        found.explain(extended=True)
    plan = text.getvalue().partition("== Optimized Logical Plan ==")[2]
    plan, mark, _ = plan.partition("== Physical Plan ==")
    assert mark, text.getvalue()
    return plan.count("RelationV2[")


def readable(
    spark: SparkSession, rows: DataFrame, topic: str, cluster: Cluster, bodies: Bodies
) -> DataFrame:
    """Return the rows with a decoded `body`, and the bytes as `rawBody`."""
    text = F.col("body").cast(StringType())
    raw = rows.withColumn("rawBody", F.col("body"))
    schema = None
    if bodies in ("auto", "json"):
        schema = _json_schema(spark, rows, topic, cluster, must=bodies == "json")
    if schema is not None:
        # `FAILFAST` would fail the query for one invalid message in a million.
        return raw.withColumn("body", F.from_json(text, schema, {"mode": "PERMISSIVE"}))
    if bodies == "text" or (bodies == "auto" and _is_text(rows)):
        return raw.withColumn("body", F.when(F.is_valid_utf8(text), text))
    return raw


def _json_schema(
    spark: SparkSession, rows: DataFrame, topic: str, cluster: Cluster, *, must: bool
) -> StructType | None:
    """Infer the schema of JSON bodies from both ends of the topic, or from the archive."""
    try:
        return inferred(_samples(spark, rows, topic, cluster), spark)
    except PipelineError:
        if must:
            raise
        return None


def _samples(spark: SparkSession, rows: DataFrame, topic: str, cluster: Cluster) -> DataFrame:
    archived = rows.select("body").limit(SAMPLE)
    if not cluster.options.get("nameserver"):
        return archived
    try:
        return samples(spark, {**cluster.options, "topic": topic}, SAMPLE).unionByName(archived)
    except SourceError as error:
        if error.condition != "UNKNOWN_TOPIC":
            raise
        return archived  # only the archive has the topic


def _is_text(rows: DataFrame) -> bool:
    some = rows.select("body").limit(SAMPLE)
    return some.where(~F.is_valid_utf8(F.col("body").cast(StringType()))).isEmpty()


def _sentence(error: PySparkException) -> str:
    """Return Spark's message on one line, without plan and stack trace."""
    said = str(error).partition("\n\nJVM stacktrace")[0].partition(";\n'")[0]
    return " ".join(said.split())


def _shown(topics: set[str]) -> list[str]:
    """Return topic names without internal topics."""
    return sorted(
        name for name in topics if not is_of_brokers(name) and not name.startswith(RETRY_PREFIX)
    )[:30]
