"""Spark sessions that can read topics and store directories as tables."""

import os
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from tianzhou.spark.runtime import java, python, worker_environment
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
        java.provide()
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ
        if master is None and not submitted:
            master = "local[*]"
        is_local = master is not None and master.startswith("local")
        python.provide(is_local=is_local)
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
    worker_environment.declare_variables(spark, *(source.name() for source in _SOURCES))
    return spark
