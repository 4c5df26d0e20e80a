"""The header of a frame as a value, whichever of its two forms it has on the wire."""

import enum
from typing import Final

import msgspec

RESPONSE_FLAG: Final = 1
ONEWAY_FLAG: Final = 2

VERSION: Final = 479
"""The version that servers report: RocketMQ 5.3.3. Clients check it before they use SQL filters or
new requests; it makes no client expect a feature that is missing here."""


class SerialiseType(enum.IntEnum):
    """Which form the header has; the top byte of the header size."""

    JSON = 0
    BINARY = 1


class Language(enum.IntEnum):
    """The programming language of a peer."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """`code` is a request code, or a response code when `is_response`."""

    code: int
    opaque: int
    flag: int = 0
    language: Language = Language.PYTHON
    version: int = VERSION
    remark: str | None = None
    ext: dict[str, str] = {}
    serialise_type: SerialiseType = SerialiseType.JSON

    @property
    def is_response(self) -> bool:
        return self.flag & RESPONSE_FLAG != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & ONEWAY_FLAG != 0


def response_to(
    request: Header, code: int, *, remark: str | None = None, ext: dict[str, str] | None = None
) -> Header:
    """A response header with the opaque number and the serialisation of the request."""
    assert not request.is_oneway, "a one-way request gets no answer, not even an error"
    return Header(
        code=code,
        opaque=request.opaque,
        flag=RESPONSE_FLAG,
        remark=remark,
        ext=ext or {},
        serialise_type=request.serialise_type,
    )
