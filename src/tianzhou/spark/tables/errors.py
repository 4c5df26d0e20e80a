"""Errors of tables."""

from tianzhou.base.errors import TianzhouError


class TableError(TianzhouError):
    """A table cannot accept rows or is invalid. The message says why and what to do."""


class UnknownTable(TableError):
    """A SELECT names a table that is neither a topic nor a view."""
