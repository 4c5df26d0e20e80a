"""Headers in their two forms, JSON and binary, and frames around them.

JSON is written as Java writes it: compact, keys in alphabetical order, `extFields` always an
object, because some Java paths fail on its absence, and all its values strings, because C++ reads
other types as zero.

The reader tolerates what real peers send: numbers and booleans among the fields, the language as
an ordinal, unknown keys, and nearly everything left out. These remain errors: no code, no opaque
number, values nested in fields, anything that is not JSON.

The send header is read far more often than all others. For it there is `HeaderReader`, which
decodes into one typed object without a dictionary in between.

The binary form:

    OFFSET  SIZE  NAME         MEANING
    0       2     code         signed; codes above 32767 lose their upper bits
    2       1     language     ordinal
    3       2     version      signed
    5       4     opaque       signed
    9       4     flag
    13      4     remark_size  0: no remark
    17      ...   remark       UTF-8
    ...     4     ext_size     bytes of all fields together
    ...     ...   ext          each: 2 key size, key, 4 value size, value; UTF-8

Each length is compared with the bytes that are left before it is used, and the fields must end
exactly where the header does.
"""

import enum
import re
import struct
from collections.abc import Mapping
from typing import Annotated, Any, Final, Generic, Self, TypeVar, cast

import msgspec

from tianzhou.base.kinds import Bytes
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.errors import CannotEncode, HeaderError, HeaderFieldError
from tianzhou.wire.frame import FrameBatch, SerialiseType, frame_prefix

RESPONSE_FLAG: Final = 1
ONEWAY_FLAG: Final = 2

VERSION: Final = 479
"""The version that servers report: RocketMQ 5.3.3. Clients check it before they use SQL filters or
new requests; it makes no client expect a feature that is missing here."""


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


Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_JAVA_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,64}")
_VALUE_CHARACTERS_MAX = 64
"""Enough of a wrong value to recognise it; it is untrusted and may go into a log."""


class ExtFields(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The typed fields of one kind of header. Subclasses are generated from spec/requests.toml."""

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Unknown fields are ignored: every peer adds some of its own."""
        try:
            # Not strict: each value is text and is read as its field's type.
            return msgspec.convert(ext, cls, strict=False)
        except msgspec.ValidationError as error:
            plain = _with_plain_integers(cls, ext)
            if plain == ext:
                raise _explain(cls, ext, error) from None
        try:
            return msgspec.convert(plain, cls, strict=False)
        except msgspec.ValidationError as error:
            raise _explain(cls, ext, error) from None

    def to_ext(self) -> dict[str, str]:
        """All fields that have a value, as Java does: what is absent is None there."""
        ext: dict[str, str] = {}
        for name, wire_name in zip(
            self.__struct_fields__, self.__struct_encode_fields__, strict=True
        ):
            value: str | int | bool | None = getattr(self, name)
            if value is None:
                continue
            ext[wire_name] = _to_text(value)
        return ext


def _to_text(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _with_plain_integers(cls: type[ExtFields], ext: Mapping[str, str]) -> dict[str, str]:
    """The fields, with integers that only Java accepts (`007`, `+7`) rewritten for msgspec. Text
    fields are never changed."""
    plain = dict(ext)
    for field in msgspec.structs.fields(cls):
        value = plain.get(field.encode_name, "")
        if _JAVA_INTEGER.fullmatch(value):
            try:
                msgspec.convert(value, field.type, strict=False)
            except msgspec.ValidationError:
                plain[field.encode_name] = str(int(value))
    return plain


def _explain(
    cls: type[ExtFields], ext: Mapping[str, str], error: msgspec.ValidationError
) -> HeaderFieldError:
    for field in msgspec.structs.fields(cls):
        wire_name = field.encode_name
        if wire_name not in ext:
            if field.required:
                return HeaderFieldError(
                    wire_name, f"{cls.__name__} needs the field {wire_name}, which is missing"
                )
            continue
        value: object = ext[wire_name]
        try:
            msgspec.convert(value, field.type, strict=False)
        except msgspec.ValidationError as reason:
            shown = repr(value)[:_VALUE_CHARACTERS_MAX]
            return HeaderFieldError(
                wire_name, f"{cls.__name__}: field {wire_name} is {shown}: {reason}"
            )
    return HeaderFieldError("", f"{cls.__name__}: {error}")


Fields = TypeVar("Fields", bound=ExtFields)

# Peers send the name or the ordinal, or nothing, or a language younger than we are.
_LANGUAGES: Final[dict[str | int | None, Language]] = {
    said: language for language in Language for said in (language.name, language.value)
}
_OTHER: Final = Language.OTHER

# JSON

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
        language=_LANGUAGES.get(received.language, _OTHER),
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


# Binary

# Name and struct code of the fixed part: docs/formats/frame.md is tested against this.
BINARY_FIELDS: Final = (
    ("code", "h"),
    ("language", "B"),
    ("version", "h"),
    ("opaque", "i"),
    ("flag", "i"),
    ("remark_size", "i"),
)
BINARY_HEAD: Final = struct.Struct(">" + "".join(code for _, code in BINARY_FIELDS))
_SIZE: Final = struct.Struct(">i")
_KEY_SIZE: Final = struct.Struct(">h")
_KEY_BYTES_MAX: Final = 32767

# The code field is too narrow for the pop requests. No request has one of the numbers that they
# turn into, so these can be turned back.
_WRAPPED: Final[dict[int, int]] = {
    ((code + 32768) & 0xFFFF) - 32768: int(code) for code in RequestCode
}
_UNWRAPPED: Final = {code: wrapped for wrapped, code in _WRAPPED.items() if wrapped != code}

assert BINARY_HEAD.size == 17
assert len(_WRAPPED) == len(RequestCode), "two request codes look the same in 16 bits"


def decode_binary(data: Bytes) -> Header:
    view = memoryview(data)
    if len(view) < BINARY_HEAD.size + _SIZE.size:
        raise HeaderError(f"binary header of {len(view)} bytes; at least 21 are needed")
    head: tuple[int, int, int, int, int, int] = BINARY_HEAD.unpack_from(view)
    code, language, version, opaque, flag, remark_size = head
    remark, at = _text(view, BINARY_HEAD.size, remark_size, "remark")
    ext_size, at = _size(view, at, "fields")
    if at + ext_size != len(view):
        raise HeaderError(f"fields of {ext_size} bytes at {at} in a header of {len(view)}")
    if not flag & RESPONSE_FLAG:
        code = _WRAPPED.get(code, code)
    return Header(
        code=code,
        opaque=opaque,
        flag=flag,
        language=_LANGUAGES.get(language, _OTHER),
        version=version,
        remark=remark or None,
        ext=_decode_ext(view, at),
        serialise_type=SerialiseType.BINARY,
    )


def _decode_ext(view: memoryview, at: int) -> dict[str, str]:
    ext: dict[str, str] = {}
    while at < len(view):
        if at + _KEY_SIZE.size > len(view):
            raise HeaderError(f"field name size at {at} in a header of {len(view)} bytes")
        (key_size,) = _KEY_SIZE.unpack_from(view, at)
        key, at = _text(view, at + _KEY_SIZE.size, key_size, "field name")
        value_size, at = _size(view, at, "field value")
        ext[key], at = _text(view, at, value_size, "field value")
    return ext


def _size(view: memoryview, at: int, what: str) -> tuple[int, int]:
    if at + _SIZE.size > len(view):
        raise HeaderError(f"{what} size at {at} in a header of {len(view)} bytes")
    return _SIZE.unpack_from(view, at)[0], at + _SIZE.size


def _text(view: memoryview, at: int, size: int, what: str) -> tuple[str, int]:
    if not 0 <= size <= len(view) - at:
        raise HeaderError(f"{what} of {size} bytes at {at} in a header of {len(view)} bytes")
    try:
        return str(view[at : at + size], "utf-8"), at + size
    except UnicodeDecodeError as error:
        raise HeaderError(f"{what} of {size} bytes at {at}: {error.reason}") from None


def encode_binary(header: Header) -> bytes:
    code = header.code
    if not header.is_response:
        code = _UNWRAPPED.get(code, code)
    try:
        remark = (header.remark or "").encode()
        ext = b"".join(map(_encode_field, header.ext.keys(), header.ext.values()))
        head = BINARY_HEAD.pack(
            code, header.language, header.version, header.opaque, header.flag, len(remark)
        )
    except (struct.error, UnicodeEncodeError) as error:
        raise CannotEncode(
            f"code {header.code}, version {header.version}, request {header.opaque}: {error}"
        ) from None
    return b"".join((head, remark, _SIZE.pack(len(ext)), ext))


def _encode_field(key: str, value: str) -> bytes:
    key_bytes, value_bytes = key.encode(), value.encode()
    if len(key_bytes) > _KEY_BYTES_MAX:
        raise CannotEncode(f"field name of {len(key_bytes)} bytes; {_KEY_BYTES_MAX} are allowed")
    return b"".join(
        (_KEY_SIZE.pack(len(key_bytes)), key_bytes, _SIZE.pack(len(value_bytes)), value_bytes)
    )


# Either, and frames


def decode_header(data: Bytes, serialise_type: int) -> Header:
    if serialise_type == SerialiseType.JSON:
        return decode_json(data)
    if serialise_type == SerialiseType.BINARY:
        return decode_binary(data)
    raise HeaderError(f"serialise type {serialise_type} of a header is not known")


def decode_headers(batch: FrameBatch) -> list[Header]:
    return [
        decode_header(batch.header(index), batch.serialise_types[index])
        for index in range(batch.count)
    ]


def encode_header(header: Header) -> bytes:
    """In the form that the header says it has."""
    if header.serialise_type is SerialiseType.JSON:
        return encode_json(header)
    return encode_binary(header)


def encode_head(header: Header, body_size: int = 0) -> bytes:
    """All of a frame that goes before its body, so that the body is sent from where it is."""
    data = encode_header(header)
    prefix = frame_prefix(
        serialise_type=header.serialise_type, header_size=len(data), body_size=body_size
    )
    return prefix + data


def encode_command(header: Header, body: Bytes = b"") -> bytes:
    """One whole frame. Copies the body."""
    return b"".join((encode_head(header, len(body)), body))
