"""SQL over topics, for `tianzhou sql`, programs and notebooks.

It is Spark SQL, with two more clauses after the name of a topic:

    orders TIMESTAMP AS OF '2026-11-16T08:00:00Z'
    orders OFFSET BETWEEN 100 AND 200

A topic is a name that exists in the cluster or in the archive, plain or in backquotes. Spark parses
everything else, so the text is only split into tokens: strings, comments and quoted names.
"""

import io
import re
from collections.abc import Collection
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import Final, Literal

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from tianzhou.spark.errors import SourceError
from tianzhou.spark.option_values import read_time_ms
from tianzhou.spark.pipelines.decode_json import inferred
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.reading import samples
from tianzhou.spark.tables.errors import TableError, UnknownTable
from tianzhou.spark.tables.history_table import Cluster, Range, history, topics_of
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
        read = readable(rows, use.topic, cluster, bodies)
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


def readable(rows: DataFrame, topic: str, cluster: Cluster, bodies: Bodies) -> DataFrame:
    """Return the rows with a decoded `body`, and the bytes as `rawBody`."""
    text = F.col("body").cast(StringType())
    raw = rows.withColumn("rawBody", F.col("body"))
    schema = None
    if bodies in ("auto", "json"):
        schema = _json_schema(rows, topic, cluster, must=bodies == "json")
    if schema is not None:
        # `FAILFAST` would fail the query for one invalid message in a million.
        return raw.withColumn("body", F.from_json(text, schema, {"mode": "PERMISSIVE"}))
    if bodies == "text" or (bodies == "auto" and _is_text(rows)):
        return raw.withColumn("body", F.when(F.is_valid_utf8(text), text))
    return raw


def _json_schema(rows: DataFrame, topic: str, cluster: Cluster, *, must: bool) -> StructType | None:
    """Infer the schema of JSON bodies from both ends of the topic, or from the archive."""
    try:
        return inferred(_samples(rows, topic, cluster), rows.sparkSession)
    except PipelineError:
        if must:
            raise
        return None


def _samples(rows: DataFrame, topic: str, cluster: Cluster) -> DataFrame:
    archived = rows.select("body").limit(SAMPLE)
    if not cluster.options.get("nameserver"):
        return archived
    try:
        found = samples(rows.sparkSession, {**cluster.options, "topic": topic}, SAMPLE)
        return found.unionByName(archived)
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


_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<quoted>`(?:[^`]|``)*`)
      | (?P<word>\w+)
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)

_BEFORE_TABLES: Final = {"FROM", "JOIN", ","}
_AFTER_TABLES: Final = {
    "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "JOIN", "INNER", "LEFT", "RIGHT", "FULL",
    "CROSS", "SEMI", "ANTI", "NATURAL", "ON", "USING", "UNION", "EXCEPT", "INTERSECT", "MINUS",
    "WINDOW", "LATERAL", "TABLESAMPLE", "PIVOT", "UNPIVOT", "CLUSTER", "DISTRIBUTE", "SORT",
    "OFFSET", "FROM", "QUALIFY",
}  # fmt: skip
"""Words after a table that are not its alias."""


@dataclass(frozen=True, slots=True)
class TopicUse:
    """A topic in a query, the selected rows, and the view that replaces them."""

    topic: str
    wanted: Range
    view: str


@dataclass(slots=True)
class _Token:
    kind: str
    text: str

    def is_word(self, word: str) -> bool:
        return self.kind == "word" and self.text.upper() == word


def read_sql(text: str, topics: Collection[str]) -> tuple[str, list[TopicUse]]:
    """Return Spark SQL with views in place of topics, and the topics. Raises TableError."""
    tokens = [_Token(str(m.lastgroup), m[0]) for m in _TOKEN.finditer(text)]
    uses: dict[tuple[str, Range], TopicUse] = {}
    out: list[str] = []
    at = 0
    before = _Token("sign", "")
    while at < len(tokens):
        token = tokens[at]
        topic = _topic(token, topics) if before.text.upper() in _BEFORE_TABLES else None
        before = token if token.kind != "space" else before
        if topic is None:
            out.append(token.text)
            at += 1
            continue
        wanted, at = _range(tokens, at + 1)
        new = TopicUse(topic, wanted, _view(topic, wanted, len(uses)))
        use = uses.setdefault((topic, wanted), new)
        out.append(f"`{use.view}`" if _has_name(tokens, at) else f"`{use.view}` AS `{topic}`")
    return "".join(out), list(uses.values())


def _topic(token: _Token, topics: Collection[str]) -> str | None:
    if token.kind == "word" and token.text in topics:
        return token.text
    if token.kind == "quoted":
        name = token.text[1:-1].replace("``", "`")
        return name if name in topics else None
    return None


def _has_name(tokens: list[_Token], at: int) -> bool:
    """Return whether the table has an alias; without one the alias is the topic's name."""
    behind = next((token for token in tokens[at:] if token.kind != "space"), None)
    if behind is None or behind.kind == "sign":
        return False
    return behind.kind == "quoted" or behind.text.upper() not in _AFTER_TABLES


def _view(topic: str, wanted: Range, rank: int) -> str:
    return topic if wanted == Range() else f"{topic} {rank}"


def _range(tokens: list[_Token], at: int) -> tuple[Range, int]:
    """Parse the clause after a topic's name; also return where the rest of the text starts."""
    ahead = [(n, token) for n, token in enumerate(tokens[at:], at) if token.kind != "space"][:6]
    words = [token for _, token in ahead]
    if _are(words, "TIMESTAMP", "AS", "OF"):
        value = words[3] if len(words) > 3 else _Token("sign", "the end")
        if value.kind not in ("string", "word"):
            raise TableError(f"TIMESTAMP AS OF needs a time in quotes, not {value.text}")
        return Range(as_of_ms=_time(value)), ahead[3][0] + 1
    if _are(words, "OFFSET", "BETWEEN"):
        if len(words) < 5 or not (words[2].text + words[4].text).isdigit():
            raise TableError("OFFSET BETWEEN needs two whole numbers joined by AND")
        if not words[3].is_word("AND"):
            raise TableError(f"OFFSET BETWEEN needs AND, not {words[3].text}")
        first, last = int(words[2].text), int(words[4].text)
        return Range(first_offset=first, last_offset=last), ahead[4][0] + 1
    return Range(), at


def _are(tokens: list[_Token], *words: str) -> bool:
    found = tokens[: len(words)]
    return len(found) == len(words) and all(map(_Token.is_word, found, words))


def _time(value: _Token) -> int:
    text = value.text.strip("'\"")
    try:
        return read_time_ms(text)
    except ValueError as error:
        raise TableError(f"TIMESTAMP AS OF {value.text}: it {error}") from error
