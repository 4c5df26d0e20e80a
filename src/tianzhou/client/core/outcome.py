"""The outcome of a delivered message."""

import enum
from typing import Final

from tianzhou.base.errors import UsageError


class ConsumeResult(enum.Enum):
    """The result of a listener call. Returning None is a success, an exception is a failure."""

    SUCCESS = enum.auto()
    LATER = enum.auto()
    """Redeliver all messages of this call later."""


GROWING: Final = 0
"""The delay level with which the broker chooses a delay that grows each time."""

DEAD: Final = -1
"""The delay level that makes the message a dead letter now."""

DELAY_LEVEL_MAX: Final = 18
"""Two hours, by default."""


def checked_delay_level(level: int) -> int:
    if not DEAD <= level <= DELAY_LEVEL_MAX:
        raise UsageError(
            f"delay level {level}: 1 to {DELAY_LEVEL_MAX}, {GROWING} to let it grow,"
            f" {DEAD} for a dead letter"
        )
    return level
