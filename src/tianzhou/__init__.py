"""Tianzhou (天舟): a RocketMQ-compatible message queue in Python, with topics as Spark tables."""

__version__ = "0.1.0"
