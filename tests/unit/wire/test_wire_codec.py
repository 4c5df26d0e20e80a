"""Headers, JSON and binary, and frames around them: `wire/codec.py`."""

import struct

import pytest

from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers import SendMessageRequest, SendMessageV2Request
from tianzhou.wire.codec import (
    Header,
    HeaderReader,
    Language,
    decode_binary,
    decode_header,
    decode_headers,
    decode_json,
    encode_binary,
    encode_command,
    encode_head,
    encode_json,
    response_to,
)
from tianzhou.wire.errors import CannotEncode, HeaderError, HeaderFieldError
from tianzhou.wire.frame import FrameBuffer, SerialiseType

# JSON


def test_json_header_is_encoded_like_java() -> None:
    header = Header(
        code=105, opaque=7, language=Language.JAVA, version=479, ext={"topic": "T"}, remark="é"
    )
    assert encode_json(header).decode() == (
        '{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,'
        '"remark":"é","serializeTypeCurrentRPC":"JSON","version":479}'
    )


def test_json_header_has_fields_always_and_a_remark_if_set() -> None:
    text = encode_json(Header(code=0, opaque=1, flag=1))
    assert b'"extFields":{}' in text
    assert b"remark" not in text


def test_json_header_with_missing_members_uses_defaults() -> None:
    assert decode_json(b'{"code":34,"opaque":5}') == Header(
        code=34, opaque=5, flag=0, language=Language.OTHER, version=0
    )


def test_json_header_treats_null_as_absent() -> None:
    text = (
        b'{"code":34,"opaque":5,"flag":null,"language":null,"version":null,"remark":null,'
        b'"extFields":null,"new":{"deep":[1]}}'
    )
    assert decode_json(text) == decode_json(b'{"code":34,"opaque":5}')


def test_json_header_converts_scalar_fields_to_text() -> None:
    text = (
        b'{"code":1,"opaque":1,"extFields":{"s":"x","i":4,"big":12345678901234567890123,'
        b'"t":true,"f":false,"n":null,"d":1.50,"e":1e5,"neg":-7}}'
    )
    assert decode_json(text).ext == {
        "s": "x",
        "i": "4",
        "big": "12345678901234567890123",
        "t": "true",
        "f": "false",
        "d": "1.50",
        "e": "1e5",
        "neg": "-7",
    }


@pytest.mark.parametrize(
    ("said", "language"),
    [
        (b'"JAVA"', Language.JAVA),
        (b'"CPP"', Language.CPP),
        (b'"COBOL"', Language.OTHER),
        (b"9", Language.GO),
        (b"99", Language.OTHER),
        (b"-1", Language.OTHER),
    ],
)
def test_json_header_accepts_language_as_name_or_ordinal(said: bytes, language: Language) -> None:
    assert decode_json(b'{"code":1,"opaque":1,"language":' + said + b"}").language is language


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"{}",
        b'{"code":1}',
        b'{"opaque":1}',
        b'{"code":1,"opaque":1}x',
        b'{"code":1,"opaque":2147483648}',
        b'{"code":1.5,"opaque":1}',
        b'{"code":NaN,"opaque":1}',
        b'{"code":1,"opaque":1,"remark":5}',
        b'{"code":1,"opaque":1,"remark":"\xff"}',
        b'{"code":1,"opaque":1,"remark":"\\ud800"}',
        b'{"code":1,"opaque":1,"extFields":[]}',
        b'{"code":1,"opaque":1,"extFields":{"a":{}}}',
        b'{"code":1,"opaque":1,"extFields":{"a":[1]}}',
        b'{"code":1,"opaque":1,"extFields":{"\xc3":"x"}}',
        b'{"code":1,"opaque":1,"extFields":{"a":' + b"9" * 5000 + b"}}",
        b'{"code":1,"opaque":1,"x":' + b"[" * 50_000,
        b'{"code":1,"opaque":1,"extFields":{"a":' + b'{"a":' * 50_000,
    ],
    ids=lambda text: text[:40].decode("latin-1"),
)
def test_json_header_that_is_invalid_is_rejected(text: bytes) -> None:
    with pytest.raises(HeaderError):
        decode_json(text)


def test_json_header_error_has_size_and_path() -> None:
    with pytest.raises(HeaderError, match=r"31 bytes.*\$\.opaque"):
        decode_json(b'{"code":1,"opaque":99999999999}')


def test_json_header_with_a_lone_surrogate_is_rejected() -> None:
    with pytest.raises(CannotEncode):
        encode_json(Header(code=1, opaque=1, ext={"a": "\ud800"}))


V2 = (
    b'{"code":310,"extFields":{"a":"g","b":"T","c":"TBW102","d":"4","e":"3","f":"0",'
    b'"g":"1794766945340","h":"0","i":"TAGS\\u0001A","j":"0","k":"false","m":"true"},"flag":0,'
    b'"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":409}'
)


def test_header_reader_decodes_a_send_header_from_a_view() -> None:
    header = HeaderReader(SendMessageV2Request).read(memoryview(V2))
    assert (header.code, header.opaque, header.version) == (310, 7, 409)
    assert header.language == "JAVA"
    assert header.ext == SendMessageV2Request(
        producer_group="g",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=3,
        sys_flag=0,
        born_timestamp_ms=1794766945340,
        flag=0,
        properties="TAGS\x01A",
        batch=True,
    )


def test_header_reader_equals_the_generic_decoder() -> None:
    fast = HeaderReader(SendMessageV2Request).read(V2)
    assert SendMessageV2Request.from_ext(decode_json(V2).ext) == fast.ext


def test_header_reader_falls_back_for_unusual_types() -> None:
    text = (
        b'{"code":10,"opaque":7,"flag":null,"extFields":{"producerGroup":5,"topic":"T",'
        b'"defaultTopic":"D","queueId":1,"sysFlag":0,"bornTimestamp":9,"flag":0,"batch":"1"}}'
    )
    header = HeaderReader(SendMessageRequest).read(text)
    assert header.ext.producer_group == "5"
    assert header.ext.batch is True
    assert header.flag == 0


def test_header_reader_distinguishes_damage_from_a_missing_field() -> None:
    reader = HeaderReader(SendMessageV2Request)
    with pytest.raises(HeaderError):
        reader.read(V2[:-1])
    with pytest.raises(HeaderFieldError, match="needs the field b"):
        reader.read(V2.replace(b'"b":"T",', b""))


def test_json_header_has_the_name_of_the_serialise_type() -> None:
    header = Header(code=1, opaque=1, serialise_type=SerialiseType.BINARY)
    assert b'"serializeTypeCurrentRPC":"ROCKETMQ"' in encode_json(header)


# Binary


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


# Either, and frames


@pytest.mark.parametrize("form", SerialiseType)
def test_command_round_trips_through_a_frame_buffer(form: SerialiseType) -> None:
    header = Header(code=11, opaque=9, ext={"topic": "T"}, serialise_type=form)
    buffer = FrameBuffer()
    data = encode_command(header, b"body")
    buffer.writable()[: len(data)] = data
    buffer.wrote(len(data))
    batch = buffer.take()
    assert decode_headers(batch) == [header]
    assert bytes(batch.body(0)) == b"body"


def test_encode_head_before_the_body_equals_the_command() -> None:
    header = Header(code=0, opaque=9, flag=1)
    assert encode_head(header, 4) + b"body" == encode_command(header, b"body")


def test_decode_header_of_an_unknown_serialise_type_is_rejected() -> None:
    with pytest.raises(HeaderError, match="serialise type 7"):
        decode_header(b"{}", 7)


@pytest.mark.parametrize("form", SerialiseType)
def test_response_to_keeps_opaque_and_serialise_type(form: SerialiseType) -> None:
    request = Header(code=11, opaque=-9, ext={"topic": "T"}, serialise_type=form)
    answer = response_to(request, 17, remark="no such topic")
    assert answer.is_response
    assert not answer.is_oneway
    assert (answer.opaque, answer.serialise_type, answer.ext) == (-9, form, {})


def test_response_to_a_oneway_request_is_an_assertion() -> None:
    with pytest.raises(AssertionError, match="one-way"):
        response_to(Header(code=15, opaque=1, flag=2), 0)
