"""Messages as users see them: before they are sent, and after they are read.

In between a message is bytes (`layout.py`). Users create a `Message`; its arguments are checked at
once, so that a mistake is reported where it was made. `MessageView` wraps a record; the record is
checked just enough to locate its parts, and each part is decoded on access.

This is one file because both classes describe the same fields, and a new field needs both.
"""

import dataclasses
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import index
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import Bytes, PhysicalOffset, QueueId, QueueOffset
from tianzhou.base.limits import BODY_BYTES_MAX, PROPERTIES_BYTES_MAX
from tianzhou.record import compression, flags, ids, layout, names
from tianzhou.record import properties as properties_
from tianzhou.record.crc import crc31
from tianzhou.record.errors import RecordDamaged
from tianzhou.record.light_queues import checked_names, joined, offsets_of

_INT32_MIN: Final = -(1 << 31)
_INT32_MAX: Final = (1 << 31) - 1
_MILLISECOND: Final = timedelta(milliseconds=1)

_FIRST: Final = struct.Struct(
    f">ii{layout.AT_SYS_FLAG - 8}xi{layout.AT_BODY_SIZE - layout.AT_SYS_FLAG - 4}xi"
)
"""Total size, magic and system flag: with these the parts of a record can be found. Also the size
of the body, at its position when both hosts are short."""
_LONG_HOSTS: Final = flags.BORN_HOST_V6 | flags.STORE_HOST_V6
_HEAD_BYTES: Final = layout.HEAD.size
_RECORD_BYTES_MIN: Final = layout.RECORD_BYTES_MIN
_MAGIC_V1: Final = layout.MAGIC_V1
_int16: Final = layout.INT16.unpack_from

_AT_FLAG: Final = layout.position_of("flag")
_AT_BORN_TIMESTAMP: Final = layout.position_of("born_timestamp")
_AT_STORE_HOST: Final = layout.position_of("store_host")
# Counted back from the body, these do not depend on the hosts.
_BEFORE_BODY_RECONSUME_TIMES: Final = layout.HEAD.size - layout.position_of("reconsume_times")
_BEFORE_BODY_PREPARED_OFFSET: Final = layout.HEAD.size - layout.position_of("prepared_offset")


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Message:
    """A message to be sent.

    >>> order = Message("orders", b"{}", tags="beijing", keys=["T1", "T2"])
    >>> order.encode_properties()
    b'TAGS\\x01beijing\\x02KEYS\\x01T1 T2\\x02'
    """

    topic: str
    body: bytes = field(repr=False)
    tags: str | None
    keys: tuple[str, ...]
    flag: int
    properties: Mapping[str, str]
    wait_store_ok: bool
    delay_level: int
    delay: timedelta | None
    deliver_at: datetime | None
    sharding_key: str | None
    light_queues: tuple[str, ...]
    encoded_properties: bytes = field(init=False, repr=False, compare=False)
    """The properties and the fields that are properties, encoded when they were checked."""

    def __init__(
        self,
        topic: str,
        body: Bytes,
        *,
        tags: str | None = None,
        keys: str | Sequence[str] = (),
        flag: int = 0,
        properties: Mapping[str, str] | None = None,
        wait_store_ok: bool = True,
        delay_level: int = 0,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        sharding_key: str | None = None,
        light_queues: str | Sequence[str] = (),
    ) -> None:
        """Create a message; every argument is checked.

        `tags` is the one tag by which consumers filter, `keys` are those by which tools find it.
        With `wait_store_ok` off, the broker responds before the message is flushed or replicated.

        `delay_level` counts from 1 (one second, by default) to 18 (two hours); 0 means no delay.
        `delay` and `deliver_at` are any other time, by the clock of the broker. Messages with the
        same `sharding_key` go to the same queue and stay in order. Consumers of any of the
        `light_queues` get the message too, if light queues are on at the broker; their names may
        have the prefix `%LMQ%`.

        Raises UsageError for an invalid name, a value of the wrong type, a reserved property, or
        more than one kind of delay.
        """
        put = object.__setattr__  # the class is frozen for all other code
        try:
            put(self, "topic", names.checked_topic(topic))
            put(self, "body", _checked_body(body))
            put(self, "tags", tags if tags is None else names.checked_tag(tags))
            several = [keys] if isinstance(keys, str) else keys
            put(self, "keys", tuple(map(names.checked_key, several)))
            put(self, "flag", _checked_range("flag", flag, _INT32_MIN, _INT32_MAX))
            put(self, "properties", dict(properties or {}))
            put(self, "wait_store_ok", wait_store_ok)
            put(self, "delay_level", _checked_range("delay_level", delay_level, 0, _INT32_MAX))
            put(self, "delay", delay if delay is None else _checked_delay(delay))
            timed = deliver_at if deliver_at is None else _checked_deliver_at(deliver_at)
            put(self, "deliver_at", timed)
            put(self, "sharding_key", sharding_key)
            put(self, "light_queues", checked_names(light_queues) if light_queues else ())
        except (TypeError, AttributeError) as error:
            wrong = _wrong_type(
                topic=topic,
                keys=keys,
                flag=flag,
                properties=properties,
                delay_level=delay_level,
                delay=delay,
                deliver_at=deliver_at,
                light_queues=light_queues,
            )
            if wrong is None:
                raise
            raise UsageError(wrong) from error
        if bool(delay_level) + (delay is not None) + (deliver_at is not None) > 1:
            raise UsageError("delay_level, delay and deliver_at exclude each other; give one")
        for name in self.properties:
            _check_property_name(name)
            if names.is_reserved(name):
                raise UsageError(
                    f"property {name!r} = {self.properties[name]!r} is reserved by the protocol;"
                    " tags, keys, delay_level and wait_store_ok are arguments of their own"
                )
        put(self, "encoded_properties", properties_.encode(self._merged()))

    def __repr__(self) -> str:
        """The arguments, with the size of the body instead of the body."""
        shown = [repr(self.topic), f"{len(self.body):,} bytes"]
        for one in dataclasses.fields(self):
            value = getattr(self, one.name)
            if value != _DEFAULTS.get(one.name, value):
                shown.append(f"{one.name}={value!r}")
        return f"Message({', '.join(shown)})"

    @property
    def is_delayed(self) -> bool:
        """Whether the message is to be delivered later than it is sent."""
        return bool(self.delay_level) or self.delay is not None or self.deliver_at is not None

    def encode_properties(self, added: Mapping[bytes, str] | None = None) -> bytes:
        """Return the property string: the user's properties, those of fields, and `added`.

        Names in `added` come from `names` and must not be among the others. Raises UsageError if
        the properties are too long.
        """
        if not added:
            return self.encoded_properties
        more = properties_.encode({name.decode(): value for name, value in added.items()})
        encoded = self.encoded_properties + more
        if len(encoded) > PROPERTIES_BYTES_MAX:
            raise properties_.too_long(encoded)
        return encoded

    def _merged(self) -> dict[str, str]:
        merged = dict(self.properties)
        if self.tags is not None:
            merged[names.TAGS.decode()] = self.tags
        if self.keys:
            merged[names.KEYS.decode()] = " ".join(self.keys)
        if self.delay_level:
            merged[names.DELAY.decode()] = str(self.delay_level)
        if not self.wait_store_ok:  # readers take a missing one for true
            merged[names.WAIT.decode()] = "false"
        if self.delay is not None:
            merged[names.TIMER_DELAY_MS.decode()] = str(self.delay // _MILLISECOND)
        if self.deliver_at is not None:
            merged[names.TIMER_DELIVER_MS.decode()] = str(round(self.deliver_at.timestamp() * 1000))
        if self.sharding_key is not None:
            merged[names.SHARDING_KEY.decode()] = self.sharding_key
        if self.light_queues:
            merged[names.INNER_MULTI_DISPATCH.decode()] = joined(self.light_queues)
        return merged


_DEFAULTS: Final[Mapping[str, object]] = {
    "tags": None,
    "keys": (),
    "flag": 0,
    "properties": {},
    "wait_store_ok": True,
    "delay_level": 0,
    "delay": None,
    "deliver_at": None,
    "sharding_key": None,
    "light_queues": (),
}
_TYPES: Final[Mapping[str, tuple[type | tuple[type, ...], str]]] = {
    "topic": (str, "must be text"),
    "keys": ((str, Sequence), "must be text, or a list of texts such as ['T1', 'T2']"),
    "flag": (int, "must be a whole number"),
    "properties": (Mapping, "must be a mapping of texts to texts"),
    "delay_level": (int, "must be a whole number from 1 to 18"),
    "delay": (timedelta, "must be a timedelta such as timedelta(seconds=5)"),
    "deliver_at": (datetime, "must be a datetime with a time zone"),
    "light_queues": ((str, Sequence), "must be text, or a list of texts such as ['a', 'b']"),
}


def _wrong_type(**given: object) -> str | None:
    """Describe the first argument of the wrong type."""
    for name, value in given.items():
        wanted, must = _TYPES[name]
        if value is not None and not isinstance(value, wanted):
            return f"{name} {repr(value)[:42]} is of type {type(value).__name__}; it {must}"
    return None


def _check_property_name(name: object) -> None:
    if not isinstance(name, str):
        raise UsageError(f"property name {name!r} is not text; write it as str")


def _checked_body(body: Bytes) -> bytes:
    if not _is_bytes(body):
        kind = "text" if isinstance(body, str) else f"of type {type(body).__name__}"
        raise UsageError(f"body {repr(body)[:42]} is {kind}; encode it to bytes first")
    # Java consumers get null for it, and few expect that; their producers refuse it too.
    if not len(body):
        raise UsageError("body is empty; a message needs at least one byte")
    if len(body) > BODY_BYTES_MAX:
        raise UsageError(f"body has {len(body)} bytes; at most {BODY_BYTES_MAX}")
    return bytes(body)


def _is_bytes(body: object) -> bool:
    return isinstance(body, (bytes, bytearray, memoryview))


def _checked_range(name: str, value: int, low: int, high: int) -> int:
    if type(value) is not int:  # 3.5 would be sent as "3.5", which brokers treat as no delay
        value = int(index(value))
    if not low <= value <= high:
        raise UsageError(f"{name} {value} is outside {low} to {high}")
    return value


def _checked_delay(delay: timedelta) -> timedelta:
    if delay < _MILLISECOND:
        raise UsageError(f"delay {delay} is less than a millisecond; leave it out")
    return delay


def _checked_deliver_at(deliver_at: datetime) -> datetime:
    if deliver_at.utcoffset() is None:
        raise UsageError(f"deliver_at {deliver_at.isoformat()} has no time zone; give it one")
    return deliver_at


class MessageView:
    """One stored message, decoded on demand.

    The constructor raises RecordDamaged unless a whole record with consistent lengths starts at
    `start`; after that every field can be read, whatever the bytes are. Bytes that are not UTF-8
    are shown as U+FFFD.

        for message in await admin.messages.by_key("orders", "T1"):
            print(message.message_id, message.keys, message.body)

    Valid until: the buffer changes or is released.
    """

    __slots__ = (
        "_body_at",
        "_buffer",
        "_expanded",
        "_parsed",
        "_properties_at",
        "_start",
        "_topic_at",
        "sys_flag",
        "total_size",
    )

    def __init__(self, buffer: Bytes, start: int = 0) -> None:
        left = len(buffer) - start
        if start < 0 or left < _RECORD_BYTES_MIN:
            raise RecordDamaged(f"{left} bytes at byte {start} are too few for a record")
        total_size, magic, sys_flag, body_size = _FIRST.unpack_from(buffer, start)
        self._buffer = buffer
        self._start = start
        self.total_size: int = total_size
        self.sys_flag: int = sys_flag
        self._expanded: bytes | None = None
        self._parsed: dict[str, str] | None = None
        # The fast path for nearly all records, because a consumer runs this for each message. A
        # record that fails one of these conditions may still be valid: `_find_parts` decides.
        if (
            magic == _MAGIC_V1
            and not sys_flag & _LONG_HOSTS
            and 0 <= body_size <= total_size - _RECORD_BYTES_MIN <= left - _RECORD_BYTES_MIN
        ):
            topic_at: int = start + (_HEAD_BYTES + 1) + body_size
            at: int = topic_at + buffer[topic_at - 1] + 2
            end: int = start + total_size
            if at <= end and buffer[topic_at - 1] < 128 and at + _int16(buffer, at - 2)[0] == end:
                self._body_at = start + _HEAD_BYTES
                self._topic_at, self._properties_at = topic_at, at
                return
        if magic not in (layout.MAGIC_V1, layout.MAGIC_V2):
            raise RecordDamaged(f"no record at byte {start}: magic {magic & 0xFFFFFFFF:#x}")
        if total_size > left:
            raise RecordDamaged(f"record at byte {start} has {total_size} bytes; {left} are here")
        self._body_at = start + layout.HEAD.size + _host_bytes_extra(sys_flag)
        self._topic_at, self._properties_at = self._find_parts(magic == layout.MAGIC_V2)

    def _find_parts(self, is_v2: bool) -> tuple[int, int]:
        """Where the topic and the properties begin, if every length agrees with the total."""
        end = self._start + self.total_size
        width = 2 if is_v2 else 1
        room = end - self._body_at - width - 2
        if room < 0:
            raise self._damaged("a head that alone is longer")
        body_size = self._int32(self._body_at - 4)
        topic_at = self._body_at + body_size + width
        if not 0 <= body_size <= room:
            raise self._damaged(f"a body of {body_size} bytes")
        topic_size = int.from_bytes(self._buffer[topic_at - width : topic_at], "big", signed=True)
        properties_at = topic_at + topic_size + 2
        if not 0 <= topic_size <= room - body_size:
            raise self._damaged(f"a topic of {topic_size} bytes")
        properties_size = layout.INT16.unpack_from(self._buffer, properties_at - 2)[0]
        if properties_at + properties_size != end:
            raise self._damaged(f"properties of {properties_size} bytes")
        return topic_at, properties_at

    def _damaged(self, claim: str) -> RecordDamaged:
        return RecordDamaged(
            f"record at byte {self._start} with {self.total_size} bytes claims {claim}"
        )

    def _int32(self, at: int) -> int:
        return layout.INT32.unpack_from(self._buffer, at)[0]

    def _int64(self, at: int) -> int:
        return layout.INT64.unpack_from(self._buffer, at)[0]

    def _text(self, name: bytes) -> str | None:
        value = properties_.find(self.stored_properties, name)
        return None if value is None else value.decode("utf-8", "replace")

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.message_id} of {self.topic} queue {self.queue_id}"
            f" offset {self.queue_offset}>"
        )

    @property
    def topic(self) -> str:
        """The topic under which the message is stored."""
        topic = bytes(self._buffer[self._topic_at : self._properties_at - 2])
        return topic.decode("utf-8", "replace")

    @property
    def queue_id(self) -> QueueId:
        """The number of its queue on its broker, from 0."""
        return QueueId(self._int32(self._start + layout.AT_QUEUE_ID))

    @property
    def queue_offset(self) -> QueueOffset:
        """Its position in the queue."""
        return QueueOffset(self._int64(self._start + layout.AT_QUEUE_OFFSET))

    @property
    def physical_offset(self) -> PhysicalOffset:
        """Its position in the broker's commit log, in bytes."""
        return PhysicalOffset(self._int64(self._start + layout.AT_PHYSICAL_OFFSET))

    @property
    def flag(self) -> int:
        """The number that the producer passed as `flag`."""
        return self._int32(self._start + _AT_FLAG)

    @property
    def born_timestamp(self) -> int:
        """Milliseconds since 1970, by the clock of the producer."""
        return self._int64(self._start + _AT_BORN_TIMESTAMP)

    @property
    def store_timestamp(self) -> int:
        """Milliseconds since 1970, by the clock of the broker."""
        return self._int64(self._start + layout.AT_STORE_TIMESTAMP + self._born_extra)

    @property
    def born_host(self) -> ids.Host:
        """The address of the producer."""
        at = self._start + layout.AT_BORN_HOST
        return ids.decode_host(self._buffer[at : at + layout.HOST_BYTES_V4 + self._born_extra])

    @property
    def store_host(self) -> ids.Host:
        """The address of the broker that stored it."""
        return ids.decode_host(self._stored_store_host)

    @property
    def reconsume_times(self) -> int:
        """How often the broker has redelivered it."""
        return self._int32(self._body_at - _BEFORE_BODY_RECONSUME_TIMES)

    @property
    def prepared_offset(self) -> PhysicalOffset:
        """Where the half message of a committed transaction is; else 0."""
        return PhysicalOffset(self._int64(self._body_at - _BEFORE_BODY_PREPARED_OFFSET))

    @property
    def stored_body(self) -> bytes:
        """The body as it is stored, perhaps compressed."""
        body_size = self._int32(self._body_at - 4)
        return bytes(self._buffer[self._body_at : self._body_at + body_size])

    @property
    def body(self) -> bytes:
        """The body as its producer gave it. Raises DecompressionError."""
        if not self.sys_flag & flags.COMPRESSED:
            return self.stored_body
        if self._expanded is None:
            self._expanded = compression.decompress(self.stored_body, self.sys_flag)
        return self._expanded

    @property
    def stored_properties(self) -> bytes:
        """The properties as they are stored."""
        return bytes(self._buffer[self._properties_at : self._start + self.total_size])

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, the user's and the system's, less the checksum some brokers add."""
        if self._parsed is None:
            self._parsed = properties_.decode(self.stored_properties)
            self._parsed.pop(names.RECORD_CRC.decode(), None)
        return self._parsed

    @property
    def user_properties(self) -> Mapping[str, str]:
        """The user's properties, as passed to `Message(properties=...)`."""
        return {
            name: value for name, value in self.properties.items() if not names.is_reserved(name)
        }

    @property
    def system_properties(self) -> Mapping[str, str]:
        """The properties that clients and brokers use themselves: tags, keys, ids, delays."""
        return {name: value for name, value in self.properties.items() if names.is_reserved(name)}

    @property
    def tags(self) -> str | None:
        """The tag; None if there is none."""
        return self._text(names.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys by which tools find it."""
        return tuple(key for key in (self._text(names.KEYS) or "").split(" ") if key)

    @property
    def light_queues(self) -> Mapping[str, int]:
        """The light queues that contain it, with its offset in each."""
        found = offsets_of(self.stored_properties)
        return {name.decode("utf-8", "replace"): offset for name, offset in found}

    @property
    def unique_id(self) -> str | None:
        """Given by the producer; a message sent again after a failure keeps it."""
        return self._text(names.UNIQ_KEY)

    @property
    def offset_id(self) -> str:
        """Where the message is stored."""
        return ids.offset_id(self._stored_store_host, self.physical_offset)

    @property
    def message_id(self) -> str:
        """The id users see in send results and logs."""
        return self.unique_id or self.offset_id

    def verify(self) -> None:
        """Compare the body with its checksum. Raises RecordDamaged."""
        expected = self._int32(self._start + layout.AT_BODY_CRC)
        found = crc31(self.stored_body)
        if expected != found:
            raise RecordDamaged(
                f"body of record at byte {self._start}, physical offset {self.physical_offset}:"
                f" checksum {found:#010x}, expected {expected & 0xFFFFFFFF:#010x}"
            )

    @property
    def _born_extra(self) -> int:
        return layout.HOST_BYTES_EXTRA if self.sys_flag & flags.BORN_HOST_V6 else 0

    @property
    def _stored_store_host(self) -> bytes:
        at = self._start + _AT_STORE_HOST + self._born_extra
        is_v6 = self.sys_flag & flags.STORE_HOST_V6
        size = layout.HOST_BYTES_V6 if is_v6 else layout.HOST_BYTES_V4
        return bytes(self._buffer[at : at + size])


def _host_bytes_extra(sys_flag: int) -> int:
    hosts = (sys_flag & flags.BORN_HOST_V6, sys_flag & flags.STORE_HOST_V6)
    return layout.HOST_BYTES_EXTRA * sum(map(bool, hosts))


def decode_all(buffer: Bytes) -> Iterator[MessageView]:
    """The records of a pull response, in order. Raises RecordDamaged at the first invalid one."""
    at = 0
    while at < len(buffer):
        message = MessageView(buffer, at)
        yield message
        at += message.total_size
