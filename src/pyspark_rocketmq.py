"""Spark imports every `pyspark_*` module when it looks for a source: this one is `rocketmq`."""

from tianzhou.spark.source import RocketMQ as DefaultSource

__all__ = ["DefaultSource"]
