"""Expressions over message properties: text, tokens, tree, closures.

A subset of SQL with its own rules about missing values; docs/filters.md has them all.
"""

from tianzhou.filter.sql92.expression import Expression, compile_sql

__all__ = ["Expression", "compile_sql"]
