"""Errors in the bytes of a connection.

There are two families. After a `RemoteProtocolError` the position in the stream is lost, or the
peer does not speak our protocol: close the connection. The others concern one request: respond to
it with an error and keep the connection.
"""

from tianzhou.base.errors import LocalProtocolError, ProtocolError, RemoteProtocolError


class FrameError(RemoteProtocolError):
    """The first eight bytes of a frame announce something impossible."""


class HeaderError(RemoteProtocolError):
    """The header of a frame cannot be read."""


class HeaderFieldError(ProtocolError):
    """One field of a header is missing or has a value of the wrong type.

    The frame itself was valid: respond with INVALID_PARAMETER and continue.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class BodyError(ProtocolError):
    """A body, or a configuration file, is not the JSON it should be."""


class TooLargeToSend(LocalProtocolError):
    """A frame, or a part of one, would be longer than peers accept."""


class CannotEncode(LocalProtocolError):
    """A header holds a value that has no form on the wire."""


class TooManyPending(LocalProtocolError):
    """The limit of pending requests on one connection is reached."""
