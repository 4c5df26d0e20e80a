"""Headers in either form, and frames around them."""

from tianzhou.base.kinds import Bytes
from tianzhou.wire.errors import HeaderError
from tianzhou.wire.frame import FrameBatch, frame_prefix
from tianzhou.wire.header import Header, SerialiseType
from tianzhou.wire.headers_binary import decode_binary, encode_binary
from tianzhou.wire.headers_json import decode_json, encode_json


def decode_header(data: Bytes, serialise_type: int) -> Header:
    if serialise_type == SerialiseType.JSON:
        return decode_json(data)
    if serialise_type == SerialiseType.BINARY:
        return decode_binary(data)
    raise HeaderError(f"serialise type {serialise_type} of a header is not known")


def decode_headers(batch: FrameBatch) -> list[Header]:
    return [
        decode_header(batch.header(index), batch.serialise_types[index])
        for index in range(batch.count)
    ]


def encode_header(header: Header) -> bytes:
    """In the form that the header says it has."""
    if header.serialise_type is SerialiseType.JSON:
        return encode_json(header)
    return encode_binary(header)


def encode_head(header: Header, body_size: int = 0) -> bytes:
    """All of a frame that goes before its body, so that the body is sent from where it is."""
    data = encode_header(header)
    prefix = frame_prefix(
        serialise_type=header.serialise_type, header_size=len(data), body_size=body_size
    )
    return prefix + data


def encode_command(header: Header, body: Bytes = b"") -> bytes:
    """One whole frame. Copies the body."""
    return b"".join((encode_head(header, len(body)), body))
