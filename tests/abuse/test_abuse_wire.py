"""Invalid frames and headers: the connection is closed, and no other is affected."""

import struct

import pytest
from live import Live
from raw_client import RawClient, frame, request

PORTS = ("broker", "nameserver")


def connect(live: Live, port: str) -> RawClient:
    return live.to_broker() if port == "broker" else live.to_nameserver()


def is_closed_after(live: Live, port: str, data: bytes) -> bool:
    with connect(live, port) as client:
        client.send(data)
        return client.is_hung_up(5)


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("size", [0, 1, 3, 4, -1, -(2**31), 2**31 - 1, 16 * 1024 * 1024 + 1])
def test_s01_invalid_frame_size_closes_the_connection(live: Live, port: str, size: int) -> None:
    before = live.rss_bytes()
    for _ in range(20):
        assert is_closed_after(live, port, struct.pack(">i", size))
    assert live.rss_bytes() - before < 5 * 2**20


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize(
    "second_word",
    [17, 0, 0xFFFFFF, 2 << 24 | 10, 0xFF << 24 | 10, 256 * 1024 + 1],
    ids=["past-the-frame", "none", "16-mib", "type-2", "type-255", "past-the-limit"],
)
def test_s02_invalid_header_size_or_type_closes_the_connection(
    live: Live, port: str, second_word: int
) -> None:
    size = 2**20 if second_word == 256 * 1024 + 1 else 20
    assert is_closed_after(live, port, struct.pack(">iI", size, second_word) + bytes(16))


HOSTILE_JSON = {
    "list": b"[]",
    "number": b"310",
    "nothing": b" ",
    "half": b'{"code":310,"opaque":1',
    "no-code": b'{"opaque":1}',
    "no-opaque": b'{"code":34}',
    "nested-fields": b'{"code":310,"opaque":1,"extFields":{"a":{"b":1}}}',
    "fields-list": b'{"code":310,"opaque":1,"extFields":[1]}',
    "deep": b'{"code":310,"opaque":1,"extFields":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001,
    "deep-list": b"[" * 100_000,
    "nan": b'{"code":NaN,"opaque":1}',
    "infinity": b'{"code":310,"opaque":Infinity}',
    "fraction": b'{"code":310.5,"opaque":1}',
    "huge-opaque": b'{"code":310,"opaque":' + b"9" * 40 + b"}",
    "digits-opaque": b'{"code":310,"opaque":' + b"9" * 4_301 + b"}",
    "digits-field": b'{"code":310,"opaque":1,"extFields":{"e":' + b"9" * 5_000 + b"}}",
    "surrogate": b'{"code":310,"opaque":1,"extFields":{"b":"\\ud800"}}',
    "surrogate-key": b'{"code":310,"opaque":1,"extFields":{"\\udfff":"b"}}',
    "not-utf-8": b'{"code":310,"opaque":1,"extFields":{"b":"\xff\xfe"}}',
    "overlong-utf-8": b'{"code":310,"opaque":1,"extFields":{"b":"\xc0\xaf"}}',
    "not-json": b"\x00" * 40,
}


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("name", HOSTILE_JSON)
def test_s03_unreadable_json_header_closes_the_connection(live: Live, port: str, name: str) -> None:
    assert is_closed_after(live, port, frame(HOSTILE_JSON[name]))


READABLE_JSON = {
    "twice": (b'{"code":9,"code":31999,"opaque":1,"opaque":7,"extFields":{}}', 3),
    "digits-text": (b'{"code":31999,"opaque":7,"extFields":{"e":"' + b"9" * 5_000 + b'"}}', 3),
    "numbers-as-text": (b'{"code":"31999","opaque":"7"}', 3),
    "null-fields": (b'{"code":31999,"opaque":7,"extFields":null,"remark":null}', 3),
    "unknown-keys": (b'{"code":31999,"opaque":7,"x":[{"y":[]}],"z":1e400}', 3),
}


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("name", READABLE_JSON)
def test_s03_odd_json_header_with_an_opaque_gets_a_response(
    live: Live, port: str, name: str
) -> None:
    header, code = READABLE_JSON[name]
    with connect(live, port) as client:
        response = client.ask_bytes(frame(header))
    assert (response.header.opaque, response.code) == (7, code)


def binary(remark_size: int, ext_size: int, ext: bytes, remark: bytes = b"") -> bytes:
    head = struct.pack(">hBhiii", 310, 0, 400, 7, 0, remark_size)
    return head + remark + struct.pack(">i", ext_size) + ext


def field(key_size: int, key: bytes, value_size: int, value: bytes) -> bytes:
    return struct.pack(">h", key_size) + key + struct.pack(">i", value_size) + value


HOSTILE_BINARY = {
    "too-short": b"\x00" * 20,
    "remark-negative": binary(-1, 0, b""),
    "remark-overlong": binary(2**31 - 1, 0, b""),
    "fields-negative": binary(0, -1, b""),
    "fields-overlong": binary(0, 2**31 - 1, b""),
    "trailing": binary(0, 0, b"xx"),
    "key-negative": binary(0, 8, field(-1, b"ab", 0, b"")),
    "key-overlong": binary(0, 8, field(32_767, b"ab", 0, b"")),
    "value-negative": binary(0, 8, field(2, b"ab", -1, b"")),
    "value-overlong": binary(0, 8, field(2, b"ab", 2**31 - 1, b"")),
    "half-a-field": binary(0, 3, b"\x00\x01a"),
    "not-utf-8": binary(0, 9, field(1, b"b", 2, b"\xff\xfe")),
}


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("name", HOSTILE_BINARY)
def test_s04_binary_header_with_wrong_lengths_closes_the_connection(
    live: Live, port: str, name: str
) -> None:
    assert is_closed_after(live, port, frame(HOSTILE_BINARY[name], kind=1))


def test_s04_valid_frames_before_an_invalid_one_get_responses(live: Live) -> None:
    opaque, good = request(31_999, binary=True)
    with live.to_broker() as client:
        client.send(good + frame(HOSTILE_BINARY["trailing"], kind=1) + good)
        assert client.receive().header.opaque == opaque
        assert client.is_hung_up()


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("binary_header", [False, True])
@pytest.mark.parametrize("code", [0, -1, 31_999])
def test_s09_unknown_request_code_gets_an_error_response(
    live: Live, port: str, binary_header: bool, code: int
) -> None:
    with connect(live, port) as client:
        response = client.ask(code, binary=binary_header)
    assert response.code == 3
    assert str(code) in response.remark


@pytest.mark.parametrize("port", PORTS)
def test_s09_response_without_a_request_is_ignored(live: Live, port: str) -> None:
    with connect(live, port) as client:
        for _ in range(1_000):
            client.send(request(0, flag=1)[1])
        assert client.ask(31_999).code == 3
