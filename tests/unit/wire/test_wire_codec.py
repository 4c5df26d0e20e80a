"""Either form of a header, and frames around them: `wire/codec.py`, `wire/header.py`."""

import pytest

from tianzhou.wire.codec import decode_header, decode_headers, encode_command, encode_head
from tianzhou.wire.errors import HeaderError
from tianzhou.wire.frame import FrameBuffer
from tianzhou.wire.header import Header, SerialiseType, response_to


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
