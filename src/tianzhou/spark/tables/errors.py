"""What a table refuses."""

from tianzhou.base.errors import TianzhouError


class TableError(TianzhouError):
    """A table can't take these rows, or is none; the message says why and what to do."""


class UnknownTable(TableError):
    """A SELECT names a table that is neither a topic nor a view."""
