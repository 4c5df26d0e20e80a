"""Spark sessions that can read topics and store directories as tables."""

import os
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import SparkSession

from tianzhou.spark.runtime.interpreters import provide_java, provide_python
from tianzhou.spark.source import RocketMQ
from tianzhou.spark.store_source import RocketMQStore

_SOURCES: Final = (RocketMQ, RocketMQStore)
_SETTINGS: Final = {
    # Without it Spark rejects tables with the option `pushdown`; other tables ignore it.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_SETTINGS: Final = {
    # 200 shuffle partitions suit clusters; on one machine their overhead dominates.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


_WORKER_VARIABLES: Final = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""Placeholders: Spark sets its own values before it starts a process."""


def session(
    name: str = "tianzhou",
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session with Java, the data sources and suitable settings.

    `name` is the application's name. `master` defaults to what `spark-submit` set, else `local[*]`.
    `remote` is the address of a Spark Connect server, such as `sc://host:15002`. `config` overrides
    any setting. Raises PySparkRuntimeError if no Java 17 or newer is found.

        spark = tianzhou.spark.session("orders", config={"spark.sql.session.timeZone": "UTC"})
    """
    builder = SparkSession.Builder().appName(name)
    settings = dict(_SETTINGS)
    if remote is not None:
        builder = builder.remote(remote)
    else:
        provide_java()
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ
        if master is None and not submitted:
            master = "local[*]"
        is_local = master is not None and master.startswith("local")
        provide_python(is_local=is_local)
        if master is not None:
            builder = builder.master(master)
            settings |= _LOCAL_SETTINGS if is_local else {}
    for key, value in (settings | dict(config or {})).items():
        builder = builder.config(key, value)
    # Spark discovers the sources itself, because workers run in the current environment.
    return _prepared(builder.getOrCreate())


def register(spark: SparkSession) -> SparkSession:
    """Register the sources `rocketmq` and `rocketmq-store` with an existing session and return it.

    Needed for sessions not created by `session()` whose workers do not discover the sources, or
    that start several streams at once.

        spark = tianzhou.spark.register(SparkSession.builder.getOrCreate())
    """
    for source in _SOURCES:
        spark.dataSource.register(source)
    return _prepared(spark)


def _prepared(spark: SparkSession) -> SparkSession:
    _declare_variables(spark, *(source.name() for source in _SOURCES))
    return spark


def _declare_variables(spark: SparkSession, *sources: str) -> None:
    """Declare environment variables of the Python processes that Spark starts for these sources.

    Spark keeps one map of these variables per source, shared by all streams of the source and not
    locked. Every stream that starts puts four variables into the map while jobs of other streams
    serialize it. If two streams start at the same time, the map counts an entry twice, and the
    session can submit no more jobs: "Task serialization failed: Illegal size 5 of collection,
    expected 6". If the variables exist before the first stream starts, Spark only replaces their
    values, which is safe.

    Does nothing with Spark Connect, where the Java session cannot be reached.
    """
    java_session: Any = getattr(spark, "_jsparkSession", None)
    if java_session is None:
        return
    known = java_session.sessionState().dataSourceManager()
    for source in sources:
        if known.dataSourceExists(source):
            variables = known.lookupDataSource(source).dataSourceCls().envVars()
            for name, value in _WORKER_VARIABLES.items():
                variables.putIfAbsent(name, value)
