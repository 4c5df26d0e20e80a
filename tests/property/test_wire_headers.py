"""Headers: round trips in both forms; damage raises one exception type or is harmless."""

import contextlib
import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.base.errors import RemoteProtocolError
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers import (
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    SendMessageV2Request,
)
from tianzhou.wire.codec import (
    ExtFields,
    Header,
    HeaderReader,
    Language,
    decode_header,
    decode_json,
    encode_header,
    encode_json,
)
from tianzhou.wire.errors import HeaderFieldError
from tianzhou.wire.frame import SerialiseType

int32 = st.integers(-(2**31), 2**31 - 1)
int16 = st.integers(-(2**15), 2**15 - 1)
# Half of a surrogate pair has no UTF-8 form.
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
ext = st.dictionaries(text, text, max_size=6)
forms = st.sampled_from(SerialiseType)
# The binary form uses these numbers for POP requests.
WRAPPED = {((code + 2**15) & 0xFFFF) - 2**15 for code in RequestCode if code > 32767}


@st.composite
def headers(draw: st.DrawFn) -> Header:
    form = draw(forms)
    binary = form is SerialiseType.BINARY
    flag = draw(int32)
    code = draw(int16 if binary else int32)
    if binary and not flag & 1:
        code = draw(st.sampled_from(RequestCode)) if code in WRAPPED else code
    return Header(
        code=int(code),
        opaque=draw(int32),
        flag=flag,
        language=draw(st.sampled_from(Language)),
        version=draw(int16 if binary else int32),
        remark=draw(st.none() | text.filter(bool)),
        ext=draw(ext),
        serialise_type=form,
    )


@given(headers())
def test_header_round_trip(header: Header) -> None:
    data = encode_header(header)
    assert decode_header(data, header.serialise_type) == header
    assert decode_header(memoryview(bytearray(data)), header.serialise_type) == header


@given(headers())
def test_json_header_is_standard_and_sorted(header: Header) -> None:
    plain = json.loads(encode_json(header))
    assert list(plain) == sorted(plain)
    assert plain["extFields"] == header.ext


@given(headers(), st.data())
def test_truncated_header_raises_one_error_type(header: Header, data: st.DataObject) -> None:
    whole = encode_header(header)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(RemoteProtocolError):
        decode_header(whole[:cut], header.serialise_type)


@given(headers(), st.data())
def test_damaged_header_decodes_or_raises_one_error_type(
    header: Header, data: st.DataObject
) -> None:
    damaged = bytearray(encode_header(header))
    for _ in range(data.draw(st.integers(1, 3))):
        bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
        damaged[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(RemoteProtocolError):
        decoded = decode_header(damaged, header.serialise_type)
        assert all(type(value) is str for value in decoded.ext.values())
        # A decoded header can be encoded again, to the same bytes.
        assert decode_header(encode_header(decoded), header.serialise_type) == decoded


@given(st.binary(max_size=200), forms)
def test_header_of_any_bytes_decodes_or_raises_one_error_type(
    noise: bytes, form: SerialiseType
) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode_header(noise, form)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(
            ["code", "opaque", "flag", "language", "version", "remark", "extFields", "x"]
        ),
        json_values | st.dictionaries(st.text(max_size=5), json_values, max_size=4) | int32,
    )
)
def test_header_of_any_json_decodes_or_raises_one_error_type(value: dict[str, object]) -> None:
    with contextlib.suppress(RemoteProtocolError):
        header = decode_json(json.dumps(value).encode())
        assert all(type(item) is str for item in header.ext.values())


ALL_CLASSES = sorted(
    {*REQUEST_HEADERS.values(), *RESPONSE_HEADERS.values()}, key=lambda kind: kind.__name__
)


@given(st.sampled_from(ALL_CLASSES), st.data())
def test_typed_fields_round_trip(kind: type[ExtFields], data: st.DataObject) -> None:
    values = {
        field.encode_name: data.draw(text | st.integers(-(2**63), 2**63 - 1).map(str))
        for field in msgspec.structs.fields(kind)
        if data.draw(st.booleans())
    }
    with contextlib.suppress(HeaderFieldError):
        header = kind.from_ext(values)
        assert kind.from_ext(header.to_ext()) == header


@given(st.dictionaries(st.sampled_from("abcdefghijklmn"), text | st.integers(0, 9).map(str)))
def test_typed_reader_equals_the_reference(values: dict[str, str]) -> None:
    header = Header(code=310, opaque=1, ext={**dict.fromkeys("abcdefgh", "1"), **values})
    data = encode_json(header)
    reader = HeaderReader(SendMessageV2Request)
    try:
        expected = SendMessageV2Request.from_ext(decode_json(data).ext)
    except HeaderFieldError as error:
        with pytest.raises(HeaderFieldError, match=f"^{re.escape(str(error))}$"):
            reader.read(data)
    else:
        assert reader.read(data).ext == expected
