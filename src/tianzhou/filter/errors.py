"""What can be wrong with a subscription."""

from tianzhou.base.errors import TianzhouError, UsageError


class FilterError(UsageError):
    """A filter that cannot be used. `at` is the index of the character where this shows."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(f"character {at + 1}: {reason}")
        self.at = at
        self.reason = reason


class NotComparable(TianzhouError):
    """A property holds text that cannot be compared as its expression asks.

    It stops the evaluation for this message, which is then not delivered.
    """
