from hypothesis import given
from hypothesis import strategies as st

from tianzhou.base.errors import UsageError
from tianzhou.record.batch import join_properties
from tianzhou.record.properties import (
    decode,
    encode,
    find,
    keys_of,
    with_trailing_separator,
    without,
)

# Few letters, so that names repeat, share endings and occur inside values.
pieces = st.lists(
    st.sampled_from([b"A", b"B", b"AB", b"\x01", b"\x02", b"KEYS", b"UNIQ_KEY", b" "])
)
strings = st.one_of(pieces.map(b"".join), st.binary())
some_names = st.sampled_from(
    [b"", b"A", b"B", b"AB", b"BA", b"KEYS", b"A\x01B", b"\x02A", b"A\x02B"]
)
plain = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)


def split(properties: bytes) -> dict[bytes, bytes]:
    """The reference algorithm, in bytes."""
    pairs = [piece.split(b"\x01", 1) for piece in properties.split(b"\x02") if b"\x01" in piece]
    return {name: value for name, value in pairs if name and value}


@given(strings, some_names)
def test_find_property_equals_the_reference(properties: bytes, name: bytes) -> None:
    assert find(properties, name) == split(properties).get(name)


@given(strings)
def test_find_property_finds_every_name(properties: bytes) -> None:
    expected = split(properties)
    assert {name: find(properties, name) for name in expected} == expected


@given(strings)
def test_decode_properties_equals_the_reference(properties: bytes) -> None:
    assert decode(properties) == {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, value in split(properties).items()
    }


@given(st.dictionaries(plain, plain))
def test_properties_round_trip(properties: dict[str, str]) -> None:
    encoded = encode(properties)
    assert decode(encoded) == properties
    assert all(find(encoded, name.encode()) == properties[name].encode() for name in properties)


@given(st.dictionaries(st.text(), st.text()))
def test_built_properties_can_be_decoded(properties: dict[str, str]) -> None:
    try:
        encoded = encode(properties)
    except UsageError:
        return
    assert decode(encoded) == properties


@given(strings, st.sampled_from([b"A", b"B", b"AB", b"KEYS"]))
def test_without_removes_only_the_given_property(properties: bytes, name: bytes) -> None:
    left = split(properties)
    left.pop(name, None)
    assert split(without(properties, name)) == left


@given(strings, strings)
def test_joined_properties_contain_both(inner: bytes, outer: bytes) -> None:
    assert split(join_properties(inner, outer)) == split(inner) | split(outer)
    assert split(with_trailing_separator(inner) + outer) == split(inner) | split(outer)


@given(strings)
def test_keys_property_splits_into_its_keys(properties: bytes) -> None:
    found = split(properties)
    expected = [found[b"UNIQ_KEY"]] if b"UNIQ_KEY" in found else []
    expected += [key for key in found.get(b"KEYS", b"").split(b" ") if key]
    assert keys_of(properties) == expected
