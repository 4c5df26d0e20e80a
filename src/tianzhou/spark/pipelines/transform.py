"""Transformation steps between a topic and a sink: functions of DataFrames."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from pyspark import cloudpickle
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.model import Transform, Watermark, Window

EVENT_TIME: Final = "eventTime"
MESSAGES: Final = "messages"
"""The view that the SQL of a pipeline reads from."""


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
