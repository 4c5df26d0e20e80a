"""Headers in JSON.

Written as Java writes them: compact, keys in alphabetical order, `extFields` always an object,
because some Java paths fail on its absence, and all its values strings, because C++ reads other
types as zero.

The reader tolerates what real peers send: numbers and booleans among the fields, the language as
an ordinal, unknown keys, and nearly everything left out. These remain errors: no code, no opaque
number, values nested in fields, anything that is not JSON.

The send header is read far more often than all others. For it there is `HeaderReader`,
which decodes into one typed object without a dictionary in between.
"""

from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from tianzhou.base.kinds import Bytes
from tianzhou.wire.errors import CannotEncode, HeaderError
from tianzhou.wire.fields import ExtFields, Int32
from tianzhou.wire.header import Header, SerialiseType, language_of

Fields = TypeVar("Fields", bound=ExtFields)

# All that msgspec raises for untrusted bytes: bad JSON or types, bad UTF-8, deep nesting.
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)

_NAMES: Final = {
    "ext": "extFields",
    "serialise_type": "serializeTypeCurrentRPC",
}
_TYPE_NAMES: Final = {SerialiseType.JSON: "JSON", SerialiseType.BINARY: "ROCKETMQ"}


class _Received(msgspec.Struct, rename=_NAMES):
    code: Int32
    opaque: Int32
    flag: Int32 | None = 0
    language: str | int | None = None
    version: Int32 | None = 0
    remark: str | None = None
    ext: dict[str, Any] | None = None


class _Sent(msgspec.Struct, rename=_NAMES):
    """The order of these fields is the order on the wire."""

    code: int
    ext: dict[str, str]
    flag: int
    language: str
    opaque: int
    remark: str | msgspec.UnsetType
    serialise_type: str
    version: int


# Fractions keep the peer's spelling: access signatures are computed over the text.
_DECODER: Final = msgspec.json.Decoder(_Received, strict=False, float_hook=str)
_ENCODER: Final = msgspec.json.Encoder()


def decode_json(data: Bytes) -> Header:
    try:
        received = _DECODER.decode(data)
    except _UNREADABLE as error:
        raise HeaderError(f"JSON header of {len(data)} bytes: {error}") from None
    return Header(
        code=received.code,
        opaque=received.opaque,
        flag=received.flag or 0,
        language=language_of(received.language),
        version=received.version or 0,
        remark=received.remark,
        ext=_to_texts(received.ext) if received.ext else {},
        serialise_type=SerialiseType.JSON,
    )


def _to_texts(ext: dict[str, Any]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, value in ext.items():
        if isinstance(value, str):
            texts[name] = value
        elif isinstance(value, bool):
            texts[name] = "true" if value else "false"
        elif isinstance(value, int):
            texts[name] = str(value)
        elif value is not None:
            raise HeaderError(f"header field {name[:64]!r} is a {type(value).__name__}, not text")
    return texts


def encode_json(header: Header) -> bytes:
    sent = _Sent(
        code=header.code,
        ext=header.ext,
        flag=header.flag,
        language=header.language.name,
        opaque=header.opaque,
        remark=msgspec.UNSET if header.remark is None else header.remark,
        serialise_type=_TYPE_NAMES[header.serialise_type],
        version=header.version,
    )
    try:
        return _ENCODER.encode(sent)
    except UnicodeEncodeError as error:
        raise CannotEncode(f"header of request {header.opaque}: {error}") from None


class TypedHeader(msgspec.Struct, Generic[Fields], frozen=True, gc=False, rename=_NAMES):
    """A header whose fields already have their types. It has no remark: requests have none."""

    code: Int32
    opaque: Int32
    ext: Fields
    flag: Int32 = 0
    version: Int32 = 0
    language: str | int | None = None


class HeaderReader(Generic[Fields]):
    """Reads headers of one kind. Make it once; it compiles a decoder.

    `decode` is the bare fast path for hot loops; on any exception call `read` with the same bytes.
    """

    def __init__(self, kind: type[Fields]) -> None:
        self._kind = kind
        # The type is put together at run time, which a type checker can't follow.
        shape = cast("type[TypedHeader[Fields]]", TypedHeader[kind])  # type: ignore[valid-type]
        self.decode: Final = msgspec.json.Decoder(shape, strict=False).decode

    def read(self, data: Bytes) -> TypedHeader[Fields]:
        try:
            return self.decode(data)
        except _UNREADABLE:
            return self._read_slowly(data)

    def _read_slowly(self, data: Bytes) -> TypedHeader[Fields]:
        """For peers that are sloppy beyond what msgspec forgives, and for a good message."""
        header = decode_json(data)
        return TypedHeader(
            code=header.code,
            opaque=header.opaque,
            ext=self._kind.from_ext(header.ext),
            flag=header.flag,
            version=header.version,
            language=header.language.name,
        )
