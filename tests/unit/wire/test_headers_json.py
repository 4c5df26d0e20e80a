"""JSON headers: `wire/headers_json.py`."""

import pytest

from tianzhou.wire._generated_headers import SendMessageRequest, SendMessageV2Request
from tianzhou.wire.errors import CannotEncode, HeaderError, HeaderFieldError
from tianzhou.wire.header import Header, Language, SerialiseType
from tianzhou.wire.headers_json import HeaderReader, decode_json, encode_json


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
