"""Copies of a log: master and slaves, and what counts as confirmed."""
