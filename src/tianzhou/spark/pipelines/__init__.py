"""Pipelines between topics and tables: declared in a file, run, resumed and monitored."""
