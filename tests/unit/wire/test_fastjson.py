"""JSON as fastjson writes it: `wire/fastjson.py`."""

import msgspec
import pytest

from tianzhou.wire.errors import BodyError, CannotEncode
from tianzhou.wire.fastjson import (
    DEPTH_MAX,
    BodyReader,
    Json,
    encode,
    escape_non_ascii,
    object_map,
    parse,
    to_standard,
)

HABITS: list[tuple[bytes, Json]] = [
    (b'{0:"a",1:"b"}', {"0": "a", "1": "b"}),
    (b"{-1:{2:3}}", {"-1": {"2": 3}}),
    (b'{{"q":0,"t":"T"}:5}', {'{"q":0,"t":"T"}': 5}),
    (b'{ {"q" : 0, 1:[true]} : {}, "x":null}\n', {'{"q":0,"1":[true]}': {}, "x": None}),
    (b'{{"s":"a\\"b"}:1}', {'{"s":"a\\"b"}': 1}),
    (b'{0:"}:{,\\\\\\""}', {"0": '}:{,\\"'}),
    (b'{\n\t"a":1.5e3,\r\n\t2:false\n}', {"a": 1500.0, "2": False}),
    ('{0:"é天"}'.encode(), {"0": "é天"}),
    (b'{"plain":[1,{}]}', {"plain": [1, {}]}),
    (b"[]", []),
    (b' "x" ', "x"),
]


@pytest.mark.parametrize(("text", "value"), HABITS)
def test_parse_accepts_the_fastjson_dialect(text: bytes, value: Json) -> None:
    assert parse(text) == value
    assert msgspec.json.decode(to_standard(text)) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "ends at byte 0 where a value"),
        (b"  ", "ends at byte 2"),
        (b"{", "ends at byte 1 where a key or }"),
        (b"[1", "ends at byte 2 where a comma"),
        (b"[1,]", "b']' at byte 3 where a value"),
        (b"[1 2]", "b'2' at byte 3 where a comma"),
        (b"[1}", "b'}' at byte 2"),
        (b"[,1]", "b',' at byte 1 where a value or ]"),
        (b'{"a" 1}', "b'1' at byte 5 where a colon"),
        (b'{"a":1,}', "b'}' at byte 7 where a key"),
        (b'{"a"::1}', "b':' at byte 5 where a value"),
        (b"{a:1}", "at byte 1 where a key"),
        (b"{null:1}", "b'null' at byte 1 where a key"),
        (b"{1.5:1}", "b'1.5' at byte 1 where a key"),
        (b"{[1]:1}", "at byte 1 where a key"),
        (b"{0:1}}", "more text after the end of the JSON at byte 5"),
        (b'{0:"open}', "at byte 3 where a value"),
        (b"}", "b'}' at byte 0"),
        (b"{{{1:2}:3}:4}", "object key inside an object key at byte 2"),
        (b'{{"a":"\xff"}:1}', "object key that ends at byte 9: invalid"),
        (b'{0:"\xff"}', "JSON of 9 bytes"),
        (b'{0:"\\q"}', "invalid escape"),
        (b"{0:" + b"[" * 100, f"more than {DEPTH_MAX} levels of nesting at byte 66"),
    ],
)
def test_parse_error_has_the_position(text: bytes, message: str) -> None:
    with pytest.raises(BodyError) as caught:
        parse(text)
    assert message in str(caught.value)


class Point(msgspec.Struct, kw_only=True, frozen=True):
    x: int
    y: int = 7
    inner: dict[int, list[str]] = {}


def test_body_reader_accepts_nulls_bare_keys_and_numbers_as_text() -> None:
    text = b'{"x":"3","y":null,"inner":{1:["a"]}}'
    assert BodyReader(Point).read(text) == Point(x=3, inner={1: ["a"]})


def test_body_reader_error_has_the_path() -> None:
    with pytest.raises(BodyError, match=r"Point: .*\$\.x"):
        BodyReader(Point).read(b'{"x":[]}')
    with pytest.raises(BodyError, match="Point"):
        BodyReader(Point).read(b"[]")


def test_parse_and_body_reader_limit_nesting() -> None:
    deep = b'{"x":' + b"[" * 500 + b"]" * 500 + b"}"
    with pytest.raises(BodyError, match="levels of nesting"):
        BodyReader(Point).read(deep)
    with pytest.raises(BodyError):
        parse(b"[" * 100_000)


def test_object_map_round_trips() -> None:
    text = encode({"t": object_map([({"q": 0}, 5), ({"q": 1}, {"a": True})])})
    assert text == b'{"t":{{"q":0}:5,{"q":1}:{"a":true}}}'
    assert parse(text) == {"t": {'{"q":0}': 5, '{"q":1}': {"a": True}}}


def test_escape_non_ascii_uses_json_escapes() -> None:
    text = encode({"a": "é天😀", "b": 1})
    assert escape_non_ascii(text) == b'{"a":"\\u00e9\\u5929\\ud83d\\ude00","b":1}'
    assert parse(escape_non_ascii(text)) == parse(text)
    assert escape_non_ascii(b"{}") == b"{}"


def test_encode_rejects_a_lone_surrogate() -> None:
    with pytest.raises(CannotEncode):
        encode({"a": "\ud800"})
