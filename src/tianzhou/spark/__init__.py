"""Spark: topics and store directories as tables, through PySpark."""
