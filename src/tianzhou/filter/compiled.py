"""Compiled expressions, the ones used last. Many groups subscribe with the same text."""

from collections import OrderedDict

from tianzhou.filter.limits import COMPILED_MAX
from tianzhou.filter.sql92.expression import Expression, compile_sql


class Compiled:
    """Owner: one thread. Invariant: len(self) <= count_max.

    Text that does not compile is not kept: whoever sends it again pays again.
    """

    def __init__(self, count_max: int = COMPILED_MAX) -> None:
        assert count_max > 0
        self._count_max = count_max
        self._kept: OrderedDict[str, Expression] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, text: str) -> bool:
        return text in self._kept

    def get(self, text: str) -> Expression:
        """Raises FilterError if the text is no expression."""
        found = self._kept.get(text)
        if found is not None:
            self._kept.move_to_end(text)
            return found
        made = self._kept[text] = compile_sql(text)
        if len(self._kept) > self._count_max:
            self._kept.popitem(last=False)
        return made
