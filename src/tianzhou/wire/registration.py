"""The registration of a broker with a NameServer: the body of REGISTER_BROKER, in both forms.

Plain, it is JSON. Compressed, it is one zlib stream with these fields in it:

    i32 n, n bytes                     the data version as JSON
    i32 count, count x (i32 n, n)      topics, each a line of words:
                                       name readQueues writeQueues perm filterType attributes
    i32 n, n bytes                     the list of filter servers as JSON
    i32 count, count x (i32 n, n)      static topic mappings, from version 5.0.0 on

The line has no room for the order flag and the system flag, so those are lost in this form, with
Java too. Attributes exist from 5.0.0 on. Mappings of static topics are skipped.

The first byte of a body tells its form, not the header: one path of Java 5 sends
`compressed=false` with a compressed body. A length inside the stream is limited by the bytes that
are left, and the decompressed size is limited too: a kilobyte of zeros must not fill our memory.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tianzhou.base.kinds import Bytes
from tianzhou.wire.codec import VERSION
from tianzhou.wire.errors import BodyError
from tianzhou.wire.fastjson import BodyReader, encode
from tianzhou.wire.nameserver_bodies import MissingBroker
from tianzhou.wire.tables import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    decode_data_version,
    decode_register_broker,
    decode_topic_table,
)

INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Half a million topics, more than any cluster has."""
RATIO_MAX: Final = 200
"""Lists of topics shrink to a twentieth; what shrinks more is made to hurt."""
TOPICS_MAX: Final = 100_000
"""Topics of one broker."""

ADDRESS_BY_DIAL: Final = "tzAddressByDial"
"""Header field, a Tianzhou extension: `true` if the address that the broker registers was not
configured. Other NameServers ignore it."""

EPOCH: Final = "tzEpoch"
"""Header field of Tianzhou only. In a request: the epoch of this master, which wants to know if
there is a later one. In the response: the later epoch."""
FREE_ID: Final = "tzFreeId"
"""In such a response: an id that no member of the group has."""
EPOCH_TOKEN: Final = "tzEpochToken"
"""In a request: chosen at random when this master was appointed, to distinguish two masters with
the same epoch. Raft groups send none: their terms are already unique."""
EPOCH_SEEN: Final = "tzEpochSeen"
"""In the response: the highest epoch that a master of this name ever registered with, if it is
higher than that of the request. The next master uses a higher one."""
EPOCH_MAX: Final = 2**53 - 1
"""Every JSON parser reads integers up to here exactly. At one promotion a second they last 285
million years; `EPOCH_STEP_MAX` prevents larger steps."""
MASTER_GREETS: Final = "tzMasterGreets"
"""In the response to a slave: `true` if the master registered with an epoch, as Tianzhou's brokers
do."""

NAME_TAKEN: Final = "tzNameTaken"
"""In a refusal: the address of the live broker that has the name and id."""
MISSING: Final = "tzMissing"
"""In the response to a broker: missing brokers as JSON, with names and times."""
MISSING_MAX: Final = 32
"""Brokers in that field: a header has at most 64 KiB."""

REFUSED_BROKERS: Final = "REFUSED_BROKERS"
"""The namespace, ours alone, in which a name server lists brokers that it did not let register.
It is read-only."""

VERSION_WITH_FILTERS: Final = 37
"""V3_0_11. Before it the body is the table of topics alone."""
VERSION_WITH_MAPPINGS: Final = 413
"""V5_0_0."""

_LEVEL: Final = 9
_SLICE: Final = 4096
_CRC_MASK: Final = 0x7FFF_FFFF
_INT: Final = struct.Struct(">i")
_LINE_WORDS: Final = 5
_ATTRIBUTES: Final = BodyReader(dict[str, str])
_SINCE: Final = BodyReader(dict[str, int])
_FILTERS: Final = BodyReader(tuple[str, ...])


def missing_field(missing: Iterable[MissingBroker]) -> dict[str, str]:
    """Return the field that lists missing brokers; absent if no broker is missing."""
    since: dict[str, int] = {}
    for row in missing:
        if row.name in since or len(since) < MISSING_MAX:
            since[row.name] = min(since.get(row.name, row.since_ms), row.since_ms)
    return {MISSING: encode(since).decode()} if since else {}


def read_missing(ext: Mapping[str, str]) -> dict[str, int]:
    """The time since which each broker has been missing, by name. Raises BodyError."""
    return _SINCE.read(ext[MISSING].encode()) if MISSING in ext else {}


def checksum(body: Bytes) -> int:
    """The field `bodyCrc32`, over the body as it is sent. 0 means that it is not checked."""
    return zlib.crc32(body) & _CRC_MASK


def encode_registration(body: RegisterBrokerBody) -> bytes:
    return encode(body)


def encode_compressed(body: RegisterBrokerBody, version: int = VERSION) -> bytes:
    """For a name server to which we say that we are this version."""
    table = body.topic_config_serialize_wrapper
    lines = [_line(config) for config in table.topic_config_table.values()]
    parts = [
        _sized(encode(table.data_version)),
        _INT.pack(len(lines)),
        *(_sized(line) for line in lines),
        _sized(encode(body.filter_server_list)),
    ]
    if version >= VERSION_WITH_MAPPINGS:
        parts.append(_INT.pack(0))
    return zlib.compress(b"".join(parts), _LEVEL)


def decode_registration(data: Bytes, version: int = VERSION) -> RegisterBrokerBody:
    """The body that a broker of this version sent, in whichever form. BodyError: it is unsound."""
    if not len(data):
        return RegisterBrokerBody()
    if bytes(data[:64]).lstrip()[:1] != b"{":
        return _decode_fields(_inflate(data), version)
    if version < VERSION_WITH_FILTERS:
        found = RegisterBrokerBody(topic_config_serialize_wrapper=decode_topic_table(data))
    else:
        found = decode_register_broker(data)
    _check_count(len(found.topic_config_serialize_wrapper.topic_config_table))
    return found


def _line(config: TopicConfig) -> bytes:
    words = (
        config.topic_name,
        str(config.read_queue_nums),
        str(config.write_queue_nums),
        str(config.perm),
        config.topic_filter_type,
    )
    return " ".join(words).encode() + b" " + encode(config.attributes)


def _sized(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _inflate(data: Bytes) -> bytes:
    stream = zlib.decompressobj()
    found = bytearray()
    for end in range(_SLICE, len(data) + _SLICE, _SLICE):
        # Checked for each slice, so that a decompression bomb is found before it fills memory.
        allowed = min(INFLATED_BYTES_MAX, RATIO_MAX * min(end, len(data)))
        try:
            found += stream.decompress(data[end - _SLICE : end], allowed - len(found) + 1)
        except zlib.error as error:
            raise BodyError(
                f"registration of {len(data)} bytes is not a zlib stream: {error}"
            ) from None
        if len(found) > allowed:
            raise BodyError(f"registration of {len(data)} bytes inflates to more than {allowed}")
    if not stream.eof:
        raise BodyError(f"registration of {len(data)} bytes ends before its zlib stream")
    return bytes(found)


def _decode_fields(data: bytes, version: int) -> RegisterBrokerBody:
    fields = _Fields(data)
    data_version = decode_data_version(fields.piece())
    configs = [_read_line(line) for line in fields.pieces()]
    filters = _FILTERS.read(fields.piece())
    if version >= VERSION_WITH_MAPPINGS and fields.left:
        for _ in fields.pieces():
            pass  # static topics are skipped, but their lengths are checked
    if fields.left:
        raise BodyError(f"{fields.left} bytes after the end of a registration")
    return RegisterBrokerBody(
        filter_server_list=filters,
        topic_config_serialize_wrapper=TopicConfigTable(
            data_version=data_version,
            topic_config_table={config.topic_name: config for config in configs},
        ),
    )


def _read_line(line: bytes) -> TopicConfig:
    try:
        words = line.decode().split(" ", _LINE_WORDS)
        name, readers, writers, perm, filter_type = words[:_LINE_WORDS]
        counts = int(readers), int(writers), int(perm)
    except ValueError:
        raise BodyError(f"topic line {line[:200]!r} of a registration is unreadable") from None
    attributes = words[_LINE_WORDS].encode() if len(words) > _LINE_WORDS else b""
    return TopicConfig(
        topic_name=name,
        read_queue_nums=counts[0],
        write_queue_nums=counts[1],
        perm=counts[2],
        topic_filter_type=filter_type,
        attributes=_ATTRIBUTES.read(attributes) if attributes not in (b"", b"null") else {},
    )


def _check_count(count: int) -> None:
    if not 0 <= count <= TOPICS_MAX:
        raise BodyError(f"{count} entries in a registration; at most {TOPICS_MAX}")


class _Fields:
    """Reads length-prefixed fields, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def piece(self) -> bytes:
        size = self._number()
        if not 0 <= size <= self.left:
            raise BodyError(f"piece of {size} bytes where {self.left} are left in a registration")
        start, self._at = self._at, self._at + size
        return self._data[start : self._at]

    def pieces(self) -> Iterator[bytes]:
        count = self._number()
        _check_count(count)
        # Each has a length at least: a count beyond that would only make us try.
        if count * _INT.size > self.left:
            raise BodyError(f"{count} pieces where {self.left} bytes are left in a registration")
        return (self.piece() for _ in range(count))

    def _number(self) -> int:
        if self.left < _INT.size:
            raise BodyError(f"a registration ends after {len(self._data)} bytes, in a length")
        (number,) = _INT.unpack_from(self._data, self._at)
        self._at += _INT.size
        return number
