"""Pipelines: topics to tables and back, declared in a file, run, resumed and watched."""
