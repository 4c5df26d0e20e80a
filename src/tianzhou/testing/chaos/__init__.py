"""Chaos: clusters of real processes that are killed, stopped and cut off, and what must hold."""
