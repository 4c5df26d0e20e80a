"""The root of the exception tree. Packages add their own branches in their `errors.py`."""

import enum
from typing import ClassVar


class Retry(enum.Enum):
    """What a caller may do after an error. Retry loops read this instead of listing classes.

    NEVER means that the same call fails again.

        except TianzhouError as error:
            if error.retry is Retry.NEVER:
                raise
    """

    NEVER = enum.auto()
    SAME_BROKER = enum.auto()
    OTHER_BROKER = enum.auto()
    AFTER_ROUTE_REFRESH = enum.auto()


class TianzhouError(Exception):
    """Root of all operational errors. Bugs in Tianzhou itself are assertions."""

    retry: ClassVar[Retry] = Retry.NEVER


class UsageError(TianzhouError):
    """An argument or call is invalid; the message says why."""


class ProtocolError(TianzhouError):
    """Bytes on a connection violate the remoting protocol."""


class LocalProtocolError(ProtocolError):
    """This side was about to send something that the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol does not allow; close the connection."""
