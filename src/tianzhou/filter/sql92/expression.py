"""A compiled expression that is evaluated against messages."""

from collections.abc import Callable
from typing import Final

from tianzhou.filter.errors import NotComparable
from tianzhou.filter.limits import FIND_BYTES_MAX, FINDS_MAX
from tianzhou.filter.sql92.closures import Closures
from tianzhou.filter.sql92.parser import parse
from tianzhou.filter.sql92.tree import Node, property_names
from tianzhou.record.properties import NAME_END, VALUE_END, find


class Expression:
    """A compiled expression. It never changes and can be shared."""

    __slots__ = ("_by_bytes", "_by_table", "_splits", "names", "text", "tree")

    def __init__(self, text: str, tree: Node) -> None:
        self.text: Final = text
        self.tree: Final = tree
        named = property_names(tree)
        self.names: Final = frozenset(named)
        self._splits: Final = len(named) > FINDS_MAX
        self._by_bytes: Final = Closures(_finder).condition(tree)
        self._by_table: Final = Closures(_table_getter).condition(tree)

    def matches(self, properties: bytes) -> bool:
        """Whether a message with this property string is to be delivered. Never raises.

        >>> compile_sql("price > 5 AND sort = 'fig'").matches(b"price\\x017\\x02sort\\x01fig\\x02")
        True
        """
        try:
            if self._splits or len(properties) > FIND_BYTES_MAX:
                return self._by_table(_table(properties)) is True
            return self._by_bytes(properties) is True
        except NotComparable:
            return False

    def evaluate(self, lookup: Callable[[str], str | None]) -> bool | None:
        """True, False, or None for null. Raises NotComparable where `matches` says False."""
        values = ((name, lookup(name)) for name in self.names)
        return self._by_table(
            {name.encode(): value.encode() for name, value in values if value is not None}
        )


def compile_sql(text: str) -> Expression:
    """Compile an expression. Raises FilterError if the text is invalid or too long."""
    return Expression(text, parse(text))


def _finder(name: str) -> Callable[[bytes], bytes | None]:
    wanted = name.encode()
    return lambda properties: find(properties, wanted)


def _table_getter(name: str) -> Callable[[dict[bytes, bytes]], bytes | None]:
    wanted = name.encode()
    return lambda table: table.get(wanted)


def _table(properties: bytes) -> dict[bytes, bytes]:
    """All properties, split by the rules of `tianzhou.record.properties`."""
    table: dict[bytes, bytes] = {}
    for piece in properties.split(VALUE_END):
        name, _, value = piece.partition(NAME_END)
        if name and value:
            table[name] = value
    return table
