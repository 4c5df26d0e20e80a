"""Spark imports every `pyspark_*` module when it looks for a source: here `rocketmq-store`."""

from tianzhou.spark.store_source import RocketMQStore as DefaultSource

__all__ = ["DefaultSource"]
