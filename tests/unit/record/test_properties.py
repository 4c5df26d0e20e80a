import pytest

from tianzhou.base.errors import UsageError
from tianzhou.base.limits import PROPERTIES_BYTES_MAX
from tianzhou.record import names
from tianzhou.record.properties import (
    decode,
    encode,
    find,
    keys_of,
    with_trailing_separator,
    without,
)

ORDER = b"KEYS\x01T1 T2\x02TAGS\x01beijing\x02UNIQ_KEY\x017F00\x02"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_find_returns_the_value_of_a_name(kind: type[bytes]) -> None:
    assert find(kind(ORDER), b"KEYS") == b"T1 T2"
    assert find(kind(ORDER), b"TAGS") == b"beijing"
    assert find(kind(ORDER), b"UNIQ_KEY") == b"7F00"
    assert find(kind(ORDER), b"WAIT") is None


def test_find_does_not_need_the_last_separator() -> None:
    assert find(b"A\x01x\x02B\x01y", b"B") == b"y"


def test_find_ignores_the_end_of_a_longer_name() -> None:
    assert find(b"MY_TAGS\x01x\x02", b"TAGS") is None
    assert find(b"TAGS\x01a\x02MY_TAGS\x01b\x02", b"TAGS") == b"a"


def test_find_ignores_text_inside_a_value() -> None:
    assert find(b"A\x01TAGS\x01x\x02", b"TAGS") is None
    assert find(b"TAGS\x01a\x02A\x01TAGS\x01x\x02", b"TAGS") == b"a"


def test_find_returns_the_last_value_that_is_not_empty() -> None:
    assert find(b"A\x01x\x02A\x01y\x02", b"A") == b"y"
    assert find(b"A\x01x\x02A\x01\x02", b"A") == b"x"
    assert find(b"A\x01\x02", b"A") is None


@pytest.mark.parametrize("name", [b"", b"A\x01b", b"\x02A", b"x\x02A"])
def test_find_of_a_name_with_a_separator_is_none(name: bytes) -> None:
    assert find(b"A\x01b\x01c\x02\x01empty\x02x\x02A\x01y\x02", name) is None


def test_decode_skips_entries_without_name_or_value() -> None:
    assert decode(b"\x01x\x02A\x01\x02lonely\x02\x02B\x01y=\x01z\x02C\x01c") == {
        "B": "y=\x01z",
        "C": "c",
    }
    assert decode(b"") == {}


def test_decode_replaces_invalid_utf8() -> None:
    assert decode(b"A\x01\xff\x02") == {"A": "\ufffd"}


def test_encode_joins_names_and_values() -> None:
    assert encode({"KEYS": "T1 T2", "城市": "北京"}) == "KEYS\x01T1 T2\x02城市\x01北京\x02".encode()
    assert encode({}) == b""


@pytest.mark.parametrize(
    ("name", "value"),
    [("", "x"), ("A", ""), ("A\x01", "x"), ("A", "\x02"), ("A\x02", "x"), ("A", "\x01")],
)
def test_encode_rejects_names_and_values_that_cannot_be_decoded(name: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        encode({name: value})
    assert repr(name or value) in str(caught.value)


def test_encode_rejects_a_lone_surrogate() -> None:
    with pytest.raises(UsageError, match=r"'A' = '.ud800' is not valid text"):
        encode({"A": "\ud800"})


def test_encode_rejects_properties_over_the_limit() -> None:
    longest = "x" * (PROPERTIES_BYTES_MAX - 3)
    assert len(encode({"A": longest})) == PROPERTIES_BYTES_MAX
    with pytest.raises(UsageError, match="32768 bytes"):
        encode({"A": longest + "x"})


def test_without_removes_every_property_of_that_name() -> None:
    assert without(ORDER, b"TAGS") == b"KEYS\x01T1 T2\x02UNIQ_KEY\x017F00\x02"
    assert without(b"A\x01x\x02WAIT\x01true", b"WAIT") == b"A\x01x"
    assert without(b"WAIT\x01a\x02MY_WAIT\x01b\x02WAIT\x01c\x02", b"WAIT") == b"MY_WAIT\x01b\x02"
    assert without(memoryview(ORDER), b"KEY") == ORDER, "UNIQ_KEY only ends with it"
    assert without(ORDER, b"WAIT") == ORDER


def test_with_trailing_separator_adds_it_only_if_missing() -> None:
    assert with_trailing_separator(b"") == b""
    assert with_trailing_separator(b"A\x01x") == b"A\x01x\x02"
    assert with_trailing_separator(memoryview(b"A\x01x\x02")) == b"A\x01x\x02"


def test_keys_of_returns_the_unique_id_and_the_keys() -> None:
    assert keys_of(ORDER) == [b"7F00", b"T1", b"T2"]
    assert keys_of(memoryview(b"KEYS\x01  a  b\tc \x02")) == [b"a", b"b\tc"]
    assert keys_of(b"UNIQ_KEY\x01u\x02") == [b"u"]
    assert keys_of(b"") == []


def test_is_reserved_of_system_property_names_is_true() -> None:
    assert {b"KEYS", b"TAGS", b"__CRC32#", b"1ST_POP_TIME", b"PGROUP"} <= names.RESERVED
    assert names.is_reserved("TAGS")
    assert names.is_reserved(b"__RMQ.TRANSIENT.x")
    assert not names.is_reserved("tags")
    assert not names.is_reserved("\ud800")
