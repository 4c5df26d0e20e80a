"""What the doctor says: a sentence about something, and the command that mends it."""

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    PROBLEM = "problem"
    """Something does not work."""
    WARNING = "warning"
    """It works, and may not for long, or not as one thinks."""
    FINE = "fine"


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    about: str
    """NameServer, broker, topic or group, with its name."""
    said: str
    mend: str = ""
    """A command, or what else is to be done."""


def problem(about: str, said: str, mend: str) -> Finding:
    return Finding(Level.PROBLEM, about, said, mend)


def warning(about: str, said: str, mend: str) -> Finding:
    return Finding(Level.WARNING, about, said, mend)


def fine(about: str, said: str) -> Finding:
    return Finding(Level.FINE, about, said)
