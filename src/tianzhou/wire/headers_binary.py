"""Headers in the compact binary form.

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

import struct
from typing import Final

from tianzhou.base.kinds import Bytes
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.errors import CannotEncode, HeaderError
from tianzhou.wire.header import RESPONSE_FLAG, Header, SerialiseType, language_of

# Name and struct code of the fixed part: docs/formats/frame.md is tested against this.
FIELDS: Final = (
    ("code", "h"),
    ("language", "B"),
    ("version", "h"),
    ("opaque", "i"),
    ("flag", "i"),
    ("remark_size", "i"),
)
HEAD: Final = struct.Struct(">" + "".join(code for _, code in FIELDS))
_SIZE: Final = struct.Struct(">i")
_KEY_SIZE: Final = struct.Struct(">h")
_KEY_BYTES_MAX: Final = 32767

# The code field is too narrow for the pop requests. No request has one of the numbers that they
# turn into, so these can be turned back.
_WRAPPED: Final[dict[int, int]] = {
    ((code + 32768) & 0xFFFF) - 32768: int(code) for code in RequestCode
}
_UNWRAPPED: Final = {code: wrapped for wrapped, code in _WRAPPED.items() if wrapped != code}

assert HEAD.size == 17
assert len(_WRAPPED) == len(RequestCode), "two request codes look the same in 16 bits"


def decode_binary(data: Bytes) -> Header:
    view = memoryview(data)
    if len(view) < HEAD.size + _SIZE.size:
        raise HeaderError(f"binary header of {len(view)} bytes; at least 21 are needed")
    head: tuple[int, int, int, int, int, int] = HEAD.unpack_from(view)
    code, language, version, opaque, flag, remark_size = head
    remark, at = _text(view, HEAD.size, remark_size, "remark")
    ext_size, at = _size(view, at, "fields")
    if at + ext_size != len(view):
        raise HeaderError(f"fields of {ext_size} bytes at {at} in a header of {len(view)}")
    if not flag & RESPONSE_FLAG:
        code = _WRAPPED.get(code, code)
    return Header(
        code=code,
        opaque=opaque,
        flag=flag,
        language=language_of(language),
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
        head = HEAD.pack(
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
