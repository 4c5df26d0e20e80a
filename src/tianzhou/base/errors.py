"""The root of the exception tree. Packages add their own branches in their `errors.py`."""

import enum
from typing import ClassVar


class Retry(enum.Enum):
    """What a caller may do next. Retry loops read this; they never list classes."""

    NEVER = enum.auto()
    SAME_BROKER = enum.auto()
    OTHER_BROKER = enum.auto()
    AFTER_ROUTE_REFRESH = enum.auto()


class TianzhouError(Exception):
    """Everything that can go wrong while operating. Mistakes in our own code are assertions."""

    retry: ClassVar[Retry] = Retry.NEVER


class UsageError(TianzhouError):
    """The caller broke the contract; the message says how."""


class ProtocolError(TianzhouError):
    """Bytes on a connection break the remoting protocol."""


class LocalProtocolError(ProtocolError):
    """We were about to say something illegal."""


class RemoteProtocolError(ProtocolError):
    """The peer said something illegal; the connection must be closed."""
