"""The body of REGISTER_BROKER, plain and compressed, and what a forger may put into it."""

import struct
import zlib

import pytest

from tianzhou.wire import registration
from tianzhou.wire.errors import BodyError
from tianzhou.wire.fastjson import encode
from tianzhou.wire.registration import decode_registration, encode_compressed, encode_registration
from tianzhou.wire.tables import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
)

VERSION_5 = 479
VERSION_4 = 409


def body(*topics: TopicConfig) -> RegisterBrokerBody:
    return RegisterBrokerBody(
        filter_server_list=("h:1",),
        topic_config_serialize_wrapper=TopicConfigTable(
            data_version=DataVersion(counter=3, state_version=2, timestamp=9),
            topic_config_table={topic.topic_name: topic for topic in topics},
        ),
    )


BODY = body(
    TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=4, perm=6),
    TopicConfig(topic_name="%RETRY%g", attributes={"+message.type": "NORMAL"}, perm=4),
)


def number(value: int) -> bytes:
    return struct.pack(">i", value)


def sized(data: bytes) -> bytes:
    return number(len(data)) + data


@pytest.mark.parametrize("version", [VERSION_4, VERSION_5])
def test_registration_round_trips_in_both_forms(version: int) -> None:
    assert decode_registration(encode_registration(BODY), version) == BODY
    assert decode_registration(encode_compressed(BODY, version), version) == BODY


def test_registration_form_is_detected_after_whitespace() -> None:
    assert decode_registration(b"  \n" + encode_registration(BODY)) == BODY


def test_registration_compressed_form_equals_java() -> None:
    config = TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=4, perm=6)
    expected = (
        sized(b'{"counter":3,"stateVersion":2,"timestamp":9}')
        + number(1)
        + sized(b"T 8 4 6 SINGLE_TAG {}")
        + sized(b'["h:1"]')
    )
    assert zlib.decompress(encode_compressed(body(config), VERSION_4)) == expected
    assert zlib.decompress(encode_compressed(body(config), VERSION_5)) == expected + number(0)


def test_registration_of_java_4_without_attributes_is_decoded() -> None:
    data = sized(b'{"counter":1,"timestamp":2}') + number(1) + sized(b"T 8 4 6 SINGLE_TAG")
    found = decode_registration(zlib.compress(data + sized(b"[]")), VERSION_4)
    table = found.topic_config_serialize_wrapper
    assert table.topic_config_table["T"].read_queue_nums == 8
    assert table.data_version == DataVersion(counter=1, timestamp=2)


def test_registration_mappings_of_static_topics_are_skipped() -> None:
    data = sized(b"{}") + number(0) + sized(b"[]") + number(1) + sized(b'{"topic":"T"}')
    assert decode_registration(zlib.compress(data), VERSION_5) == RegisterBrokerBody()


def test_registration_of_the_oldest_brokers_is_the_table_alone() -> None:
    table = BODY.topic_config_serialize_wrapper
    found = decode_registration(encode(table), registration.VERSION_WITH_FILTERS - 1)
    assert found.topic_config_serialize_wrapper == table


def test_registration_without_topics_is_accepted() -> None:
    assert decode_registration(b"") == RegisterBrokerBody()


def test_registration_checksum_is_crc31_of_the_body() -> None:
    assert registration.checksum(b"123456789") == 0xCBF43926 & 0x7FFFFFFF


HEAD = sized(b"{}")
LINE = sized(b"T 8 4 6 SINGLE_TAG {}")
FORGED = {
    "length beyond the end": number(1 << 30),
    "negative length": number(-1),
    "length cut off": b"\0\0",
    "more topics than bytes": HEAD + number(99_999) + LINE,
    "more topics than allowed": HEAD + number((1 << 31) - 1),
    "negative count": HEAD + number(-1),
    "line of too few words": HEAD + number(1) + sized(b"T 8 4"),
    "invalid count": HEAD + number(1) + sized(b"T x 4 6 SINGLE_TAG"),
    "line that is not text": HEAD + number(1) + sized(b"\xff 8 4 6 SINGLE_TAG"),
    "invalid attributes": HEAD + number(1) + sized(b"T 8 4 6 SINGLE_TAG {"),
    "invalid filters": HEAD + number(0) + sized(b"{}"),
    "invalid version": sized(b"[1]"),
    "bytes after the end": HEAD + number(0) + sized(b"[]") + number(0) + b"x",
    "mapping longer than the rest": HEAD + number(0) + sized(b"[]") + number(1) + number(9),
}


@pytest.mark.parametrize("data", FORGED.values(), ids=list(FORGED))
def test_registration_that_is_malformed_is_rejected(data: bytes) -> None:
    with pytest.raises(BodyError):
        decode_registration(zlib.compress(data), VERSION_5)


def test_registration_truncated_at_any_byte_is_rejected() -> None:
    whole = encode_compressed(BODY)
    for end in range(1, len(whole)):
        with pytest.raises(BodyError):
            decode_registration(whole[:end])


def test_registration_that_inflates_too_much_is_rejected() -> None:
    with pytest.raises(BodyError, match="inflates to more than"):
        decode_registration(zlib.compress(bytes(4 * 1024 * 1024), 9))


def test_registration_inflates_up_to_the_limit_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "INFLATED_BYTES_MAX", 64)
    with pytest.raises(BodyError, match="more than 64"):
        decode_registration(encode_compressed(BODY))


def test_registration_with_too_many_topics_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "TOPICS_MAX", 1)
    with pytest.raises(BodyError, match="2 entries"):
        decode_registration(encode_registration(BODY))


@pytest.mark.parametrize("data", [b"[1]", b"\x00\x01", b"{", b'{"filterServerList":3}'])
def test_registration_in_an_unknown_form_is_rejected(data: bytes) -> None:
    with pytest.raises(BodyError):
        decode_registration(data)
