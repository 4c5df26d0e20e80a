"""Parquet tables with exactly-once rows that any other tool can read."""
