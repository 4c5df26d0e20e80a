"""Binary headers: `wire/headers_binary.py`."""

import struct

import pytest

from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.errors import CannotEncode, HeaderError
from tianzhou.wire.header import Header, Language, SerialiseType
from tianzhou.wire.headers_binary import decode_binary, encode_binary


def binary(
    *,
    code: int = 34,
    opaque: int = 1,
    flag: int = 0,
    remark: str | None = None,
    name: str = "",
    value: str = "",
) -> Header:
    return Header(
        code=code,
        opaque=opaque,
        flag=flag,
        remark=remark,
        ext={name: value} if name else {},
        serialise_type=SerialiseType.BINARY,
    )


def raw(tail: bytes, remark_size: int = 0) -> bytes:
    return struct.pack(">hBhiii", 34, 0, 479, 1, 0, remark_size) + tail


def test_binary_header_has_the_documented_bytes() -> None:
    header = Header(
        code=34,
        opaque=0x01020304,
        flag=2,
        language=Language.GO,
        version=317,
        remark="no",
        ext={"k": "vé"},
        serialise_type=SerialiseType.BINARY,
    )
    assert encode_binary(header) == (
        b"\x00\x22\x09\x01\x3d\x01\x02\x03\x04\x00\x00\x00\x02"
        b"\x00\x00\x00\x02no"
        b"\x00\x00\x00\x0a\x00\x01k\x00\x00\x00\x03v\xc3\xa9"
    )
    assert decode_binary(encode_binary(header)) == header


def test_binary_header_decodes_an_empty_remark_as_none() -> None:
    header = decode_binary(encode_binary(binary(remark="")))
    assert header.remark is None


@pytest.mark.parametrize("code", [code for code in RequestCode if code > 32767])
def test_binary_header_round_trips_pop_codes(code: RequestCode) -> None:
    assert decode_binary(encode_binary(binary(code=code))).code == code


def test_binary_header_wraps_pop_codes_like_java() -> None:
    assert encode_binary(binary(code=200050))[:2] == (3442).to_bytes(2, "big")
    assert encode_binary(binary(code=200151))[:2] == (3543).to_bytes(2, "big")


def test_binary_header_does_not_unwrap_response_codes() -> None:
    assert decode_binary(encode_binary(binary(code=3442, flag=1))).code == 3442


def test_binary_header_decodes_an_unknown_language_as_other() -> None:
    data = bytearray(encode_binary(binary()))
    data[2] = 200
    assert decode_binary(data).language is Language.OTHER


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes"),
        (raw(b""), "17 bytes"),
        (raw(struct.pack(">i", 0), remark_size=-1), "remark of -1 bytes"),
        (raw(struct.pack(">i", 0), remark_size=2**31 - 1), "remark of 2147483647 bytes"),
        (raw(struct.pack(">i", 0), remark_size=4), "fields size at 21"),
        (raw(struct.pack(">i", 1)), "fields of 1 bytes at 21 in a header of 21"),
        (raw(struct.pack(">i", -1)), "fields of -1 bytes"),
        (raw(struct.pack(">i", 0) + b"x"), "fields of 0 bytes at 21 in a header of 22"),
        (raw(struct.pack(">i", 1) + b"x"), "field name size at 21"),
        (raw(struct.pack(">ih", 2, -1)), "field name of -1 bytes"),
        (raw(struct.pack(">ih", 2, 5)), "field name of 5 bytes"),
        (raw(struct.pack(">ih", 3, 1) + b"k"), "field value size at 24"),
        (raw(struct.pack(">ih", 7, 1) + b"k" + struct.pack(">i", 1)), "field value of 1 bytes"),
        (raw(struct.pack(">ih", 7, 1) + b"k" + struct.pack(">i", -9)), "field value of -9 bytes"),
        (raw(b"\xff\xff" + struct.pack(">i", 0), remark_size=2), "remark of 2 bytes at 17: inv"),
        (raw(struct.pack(">ih", 7, 1) + b"\xff" + struct.pack(">i", 0)), "field name of 1 bytes"),
    ],
)
def test_binary_header_with_wrong_lengths_is_rejected(data: bytes, message: str) -> None:
    with pytest.raises(HeaderError, match=message):
        decode_binary(data)


@pytest.mark.parametrize(
    "header",
    [
        binary(code=40_000),
        binary(code=40_000, flag=1),
        binary(opaque=2**31),
        binary(remark="\ud800"),
        binary(name="k", value="\ud800"),
        binary(name="k" * 32768, value="v"),
    ],
    ids=["code", "response code", "opaque", "remark", "value", "name"],
)
def test_binary_header_that_cannot_be_encoded_is_rejected(header: Header) -> None:
    with pytest.raises(CannotEncode):
        encode_binary(header)
