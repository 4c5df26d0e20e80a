"""What became of a message that was handed to a user."""

import enum
from typing import Final

from tianzhou.base.errors import UsageError


class ConsumeResult(enum.Enum):
    """What a listener may return. Nothing at all is a success, an exception is a failure."""

    SUCCESS = enum.auto()
    LATER = enum.auto()
    """All messages of this call are to be delivered again later."""


GROWING: Final = 0
"""The delay level that lets the broker choose, longer each time."""

DEAD: Final = -1
"""The delay level of no delay: a dead letter now."""

DELAY_LEVEL_MAX: Final = 18
"""Two hours, by default."""


def checked_delay_level(level: int) -> int:
    if not DEAD <= level <= DELAY_LEVEL_MAX:
        raise UsageError(
            f"delay level {level}: 1 to {DELAY_LEVEL_MAX}, {GROWING} to let it grow,"
            f" {DEAD} for a dead letter"
        )
    return level
