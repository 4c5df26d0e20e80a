"""Sessions in which topics are tables."""

import os
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from tianzhou.spark.runtime import java, python, worker_environment
from tianzhou.spark.source import RocketMQ
from tianzhou.spark.store_source import RocketMQStore

_SOURCES: Final = (RocketMQ, RocketMQStore)
_SETTINGS: Final = {
    # Without it Spark refuses tables with the option `pushdown`; others do not care.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_SETTINGS: Final = {
    # 200 shuffle partitions are for clusters; here each costs more than it gives.
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
    """A session that is ready: Java found or provided, sources known, sensible settings.

    `master` is `local[*]` unless given here or by `spark-submit`; `remote` is the address of a
    Spark Connect server, such as `sc://host:15002`. `config` has the last word.
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
    # Spark finds the sources by itself: its workers run in the environment that we are in.
    return _prepared(builder.getOrCreate())


def register(spark: SparkSession) -> SparkSession:
    """Make `rocketmq` and `rocketmq-store` known to a session of your own whose workers don't find
    them by themselves, or that starts several streams at once; returns it."""
    for source in _SOURCES:
        spark.dataSource.register(source)
    return _prepared(spark)


def _prepared(spark: SparkSession) -> SparkSession:
    worker_environment.declare_variables(spark, *(source.name() for source in _SOURCES))
    return spark
