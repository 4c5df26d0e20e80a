"""The rows of a pipeline: topics are read, their messages decoded, then transformed."""

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from pyspark import cloudpickle
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tianzhou.spark import plan
from tianzhou.spark.errors import SourceError
from tianzhou.spark.option_values import read_duration_ms
from tianzhou.spark.options import ReadOptions, read_options_of
from tianzhou.spark.pipelines import decode
from tianzhou.spark.pipelines.decode import Decoder
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.model import Decode, Pipeline, Transform, Watermark, Window
from tianzhou.spark.pipelines.pipeline_directory import PipelineDirectory
from tianzhou.spark.pipelines.pipeline_file import as_text
from tianzhou.spark.tables.columns import merged
from tianzhou.spark.tables.errors import TableError
from tianzhou.spark.topics import Topics, translated_errors

FORMAT: Final = "rocketmq"
EVENT_TIME: Final = "eventTime"
STORED: Final = "storeTimestamp"
_RAW: Final = "_raw"
MESSAGES: Final = "messages"
"""The view that the SQL of a pipeline reads from."""


# Reading


def checked_options(pipeline: Pipeline) -> dict[str, str]:
    """Return the source's options. Raises PipelineError if the NameServer is missing."""
    options = as_text(pipeline.source)
    if "nameserver" not in options:
        raise PipelineError(
            "source.nameserver is missing; set it in the file, pass --nameserver host:port, or set "
            "TIANZHOU_NAMESERVER"
        )
    return options


def check_source(options: Mapping[str, str]) -> None:
    """Check that the topics can be read before a query is started. Raises PipelineError."""
    try:
        read = read_options_of(options, is_stream=True)
        with translated_errors(read), read.cluster.connect() as brokers:
            Topics(brokers, read).queues()
    except SourceError as error:
        raise PipelineError(f"source: {error}") from error


def stream(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return the messages as a stream that starts at `earliest` by default."""
    chosen = {"startingOffsets": "earliest"} if "startingTimestamp" not in options else {}
    return spark.readStream.format(FORMAT).options(**{**chosen, **options}).load()


# Decoding


def decoder(spark: SparkSession, pipeline: Pipeline, place: PipelineDirectory) -> Decoder:
    """Return the decoder of a pipeline. Raises PipelineError."""
    how = pipeline.decode
    match how.format:
        case "raw":
            return decode.raw()
        case "text":
            return decode.text()
        case "json":
            return _json(spark, pipeline, place)
        case "avro":
            return decode.avro_of(place.directory / how.schema, how.framing)
        case "protobuf":
            return _protobuf(how, place.directory)


def _protobuf(how: Decode, directory: Path) -> Decoder:
    assert how.descriptor is not None, "the file was checked"
    assert how.message is not None, "the file was checked"
    return decode.protobuf_of(directory / how.descriptor, how.message, how.framing)


def _json(spark: SparkSession, pipeline: Pipeline, place: PipelineDirectory) -> Decoder:
    from tianzhou.spark.pipelines.decode_json import inferred, json_of, parsed_schema

    how = pipeline.decode
    rules: Any = {"charset": how.charset, "rounding": how.rounding, "framing": how.framing}
    if how.schema != "infer":
        return json_of(parsed_schema(how.schema), **rules)
    found = inferred(
        samples(spark, checked_options(pipeline), how.sample),
        spark,
        charset=how.charset,
        framing=how.framing,
    )
    known = place.schema()
    try:
        schema = found if known is None else merged(known, found)
    except TableError as error:
        raise PipelineError(
            f"decode.schema is `infer`, and the topic has changed: {error}"
        ) from error
    place.keep_schema(schema)
    return json_of(schema, **rules)


def samples(spark: SparkSession, given: Mapping[str, str], count: int) -> DataFrame:
    """Return messages from both ends of the topics."""
    named = {key: value for key, value in given.items() if key.lower() not in _STREAM_ONLY}
    first, last = _ends(read_options_of({**named, "columns": "body"}, is_stream=False), count)
    frames = [_between(spark, named, *span) for span in (first, last)]
    return frames[0].union(frames[1])


def _between(
    spark: SparkSession, named: Mapping[str, str], start: plan.OffsetJson, end: plan.OffsetJson
) -> DataFrame:
    # Each frame needs its own reader: options belong to the reader until it loads.
    reader = spark.read.format(FORMAT).options(**named)
    reader = reader.option("startingOffsets", json.dumps(start))
    return reader.option("endingOffsets", json.dumps(end)).load().select("body")


_STREAM_ONLY = {
    "startingoffsets",
    "startingtimestamp",
    "maxoffsetspertrigger",
    "minoffsetspertrigger",
    "maxtriggerdelay",
    "columns",
}

_Span = tuple[plan.OffsetJson, plan.OffsetJson]


def _ends(options: ReadOptions, count: int) -> tuple[_Span, _Span]:
    """Return the offsets of the first and the last messages of the topics, without overlap."""
    with translated_errors(options), options.cluster.connect() as brokers:
        topics = Topics(brokers, options)
        queues = topics.queues()
        earliest, latest = topics.earliest(queues), topics.latest(queues)
    each = max(1, count // max(1, len(queues)))
    head = {queue: min(earliest[queue] + each, latest[queue]) for queue in queues}
    tail = {queue: max(latest[queue] - each, head[queue]) for queue in queues}
    as_json = plan.to_json
    return (as_json(earliest), as_json(head)), (as_json(tail), as_json(latest))


# Transforming


def transformed(rows: DataFrame, steps: Transform, directory: Path) -> DataFrame:
    """Apply the steps. Raises PipelineError with Spark's message, before data is read."""
    spark = rows.sparkSession
    if (watermark := steps.watermark) is not None:
        rows = _analyzed("watermark", lambda: with_event_time(rows, watermark))
    if (window := steps.window) is not None:
        rows = _analyzed("window", lambda: windowed(rows, window))
    if (sql := steps.sql) is not None:
        rows = _analyzed("sql", lambda: selected(spark, rows, sql))
    if steps.python is not None:
        rows = _called(function_of(steps.python, directory), rows, steps.python)
    return rows


def check_event_times(marked: DataFrame, watermark: Watermark | None) -> DataFrame:
    """Mark events from too far in the future as bad: one of them moves the watermark so far that
    every later event is late, and an aggregate writes nothing any more."""
    if watermark is None or watermark.max_future is None:
        return marked
    if STORED not in marked.columns:
        raise PipelineError(
            f"transform.watermark: maxFuture compares with {STORED}, which source.columns leaves "
            "out; add the column, or set maxFuture: null"
        )
    return _analyzed("watermark", lambda: _future_marked(marked, watermark))


def _future_marked(marked: DataFrame, watermark: Watermark) -> DataFrame:
    assert watermark.max_future is not None
    limit_ms = read_duration_ms(watermark.max_future)
    event = F.expr(watermark.column).cast("timestamp")
    ahead_ms = F.unix_millis(event) - F.unix_millis(F.col(STORED))
    said = F.concat(
        F.lit("the event time "),
        event.cast("string"),
        F.lit(f" is more than {watermark.max_future} after the message was stored"),
    )
    reason = F.coalesce(F.col(decode.REASON), F.when(ahead_ms > limit_ms, said))
    # The expression reads the decoded body; a bad row keeps its bytes.
    decoded = marked.withColumn(_RAW, F.col("body")).withColumn("body", F.col(decode.VALUE))
    return decoded.withColumn(decode.REASON, reason).withColumn("body", F.col(_RAW)).drop(_RAW)


def with_event_time(rows: DataFrame, watermark: Watermark) -> DataFrame:
    return rows.withColumn(EVENT_TIME, F.expr(watermark.column).cast("timestamp")).withWatermark(
        EVENT_TIME, watermark.delay
    )


def windowed(rows: DataFrame, window: Window) -> DataFrame:
    """Return the columns `window` (start, end), those of groupBy, and those of select."""
    when = F.window(EVENT_TIME, window.size, window.slide)
    keys = [F.expr(expression).alias(name) for name, expression in window.group_by.items()]
    values = [F.expr(expression).alias(name) for name, expression in window.select.items()]
    if not values:
        raise PipelineError("transform.window.select: name at least one column")
    return rows.groupBy(when, *keys).agg(*values)


def selected(spark: SparkSession, rows: DataFrame, sql: str) -> DataFrame:
    rows.createOrReplaceTempView(MESSAGES)
    return spark.sql(sql)


def function_of(place: str, directory: Path) -> Callable[[DataFrame], DataFrame]:
    """Import `file.py:function`, relative to the pipeline's file, or `package.module:function`."""
    module, _, name = place.rpartition(":")
    if not module or not name.isidentifier():
        raise PipelineError(
            f"transform.python is {place!r}; it must be file.py:function or package.module:function"
        )
    try:
        found = getattr(_imported(module, directory), name)
    except (ImportError, OSError) as error:
        raise PipelineError(f"transform.python: {module} cannot be loaded: {error}") from error
    except AttributeError as error:
        raise PipelineError(f"transform.python: {module} has no function {name!r}") from error
    if not callable(found):
        raise PipelineError(f"transform.python: {place} is not a function")
    return cast("Callable[[DataFrame], DataFrame]", found)


def _imported(module: str, directory: Path) -> object:
    if not module.endswith(".py"):
        return importlib.import_module(module)
    file = (directory / module).resolve()
    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist")
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    # Several pipelines in one process may have files with the same name.
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) != str(file):
        del sys.modules[file.stem]
        sys.path.remove(str(file.parent))
        sys.path.insert(0, str(file.parent))
        importlib.invalidate_caches()
    found = importlib.import_module(file.stem)
    # Workers do not have the file, so its functions are pickled by value.
    by_value: Any = vars(cloudpickle)["register_pickle_by_value"]
    by_value(found)
    return found


def _called(function: Callable[[DataFrame], DataFrame], rows: DataFrame, place: str) -> DataFrame:
    found = cast("object", _analyzed(f"python: {place}", lambda: function(rows)))
    if not isinstance(found, DataFrame):
        raise PipelineError(
            f"transform.python: {place} returned {type(found).__name__}; it must be a DataFrame"
        )
    return found


def _analyzed(step: str, make: Callable[[], DataFrame]) -> DataFrame:
    try:
        return make()
    except (AnalysisException, ParseException) as error:
        raise PipelineError(f"transform.{step}: {_first_lines(error)}") from error


def _first_lines(error: Exception) -> str:
    """Return Spark's message without the plan that follows it."""
    text = str(error).partition("\n\nJVM stacktrace")[0].partition(";\n'")[0]
    return text.strip()
