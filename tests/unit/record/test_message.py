import doctest
import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.base.limits import BODY_BYTES_MAX
from tianzhou.record import flags, message, names
from tianzhou.record.compression import DecompressionError, compress
from tianzhou.record.crc import crc31
from tianzhou.record.errors import RecordDamaged
from tianzhou.record.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from tianzhou.record.message import Message, MessageView, decode_all

V4 = bytes.fromhex("0A000007 00002A9F")
V6 = bytes.fromhex("FD000000000000000000000000000002 00002A9F")
PROPERTIES = b"TAGS\x01beijing\x02KEYS\x01T1 T2\x02UNIQ_KEY\x01U1\x02"


def record(
    *,
    body: bytes = b"hello",
    topic: bytes = b"orders",
    properties: bytes = PROPERTIES,
    sys_flag: int = 0,
    magic: int = MAGIC_V1,
) -> bytes:
    """Written field by field, so that it depends on nothing it is used to test."""
    head = struct.pack(">iiiqqi", crc31(body), 3, 7, 41, 4096, sys_flag)
    born = V6 if sys_flag & flags.BORN_HOST_V6 else V4
    store = V6 if sys_flag & flags.STORE_HOST_V6 else V4
    hosts = struct.pack(">q", 1_700_000_000_001) + born + struct.pack(">q", 1_700_000_000_002)
    rest = store + struct.pack(">iqi", 2, 1024, len(body)) + body
    rest += struct.pack(">B" if magic == MAGIC_V1 else ">h", len(topic)) + topic
    rest += struct.pack(">h", len(properties)) + properties
    return struct.pack(">ii", 8 + len(head + hosts + rest), magic) + head + hosts + rest


HOSTS = pytest.mark.parametrize("hosts", [0x00, 0x10, 0x20, 0x30])


@HOSTS
@pytest.mark.parametrize("magic", [MAGIC_V1, MAGIC_V2])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_decode_returns_every_field(hosts: int, magic: int, kind: type[bytes]) -> None:
    data = record(sys_flag=hosts | flags.TRANSACTION_COMMIT, magic=magic)
    view = MessageView(kind(b"before" + data + b"after"), 6)
    assert view.total_size == len(data)
    assert (view.topic, view.queue_id, view.queue_offset) == ("orders", 3, 41)
    assert (view.physical_offset, view.flag) == (4096, 7)
    assert view.sys_flag == hosts | flags.TRANSACTION_COMMIT
    assert view.born_timestamp == 1_700_000_000_001
    assert view.store_timestamp == 1_700_000_000_002
    assert view.born_host == ("fd00::2" if hosts & 0x10 else "10.0.0.7", 10911)
    assert view.store_host == ("fd00::2" if hosts & 0x20 else "10.0.0.7", 10911)
    assert (view.reconsume_times, view.prepared_offset) == (2, 1024)
    assert view.stored_body == view.body == b"hello"
    assert view.stored_properties == PROPERTIES
    assert view.properties == {"TAGS": "beijing", "KEYS": "T1 T2", "UNIQ_KEY": "U1"}
    assert (view.tags, view.keys, view.unique_id) == ("beijing", ("T1", "T2"), "U1")
    assert view.offset_id == ((V6 if hosts & 0x20 else V4).hex().upper() + "0000000000001000")
    assert view.message_id == "U1"
    assert repr(view) == "<MessageView U1 of orders queue 3 offset 41>"
    view.verify()


def test_decode_of_a_minimal_message_works() -> None:
    data = record(body=b"", topic=b"", properties=b"")
    assert len(data) == RECORD_BYTES_MIN
    view = MessageView(data)
    assert (view.body, view.topic, view.properties) == (b"", "", {})
    assert (view.tags, view.keys, view.unique_id) == (None, (), None)
    assert view.message_id == view.offset_id
    view.verify()


def test_decode_of_a_long_topic_needs_the_second_version() -> None:
    topic = b"t" * 300
    assert MessageView(record(topic=topic, magic=MAGIC_V2)).topic == topic.decode()
    with pytest.raises(RecordDamaged, match="a topic of -128 bytes"):
        MessageView(record(topic=topic[:128]))


def test_view_hides_the_checksum_property() -> None:
    view = MessageView(record(properties=b"A\x01x\x02__CRC32#\x010123456789\x02"))
    assert view.properties == {"A": "x"}


def test_view_replaces_invalid_utf8() -> None:
    view = MessageView(record(topic=b"\xff", properties=b"TAGS\x01\xfe\x02"))
    assert (view.topic, view.tags) == ("\ufffd", "\ufffd")


def test_view_decompresses_the_body() -> None:
    sys_flag = flags.COMPRESSED | flags.COMPRESSION_ZSTD
    stored = compress(b"hello" * 100, sys_flag)
    view = MessageView(record(body=stored, sys_flag=sys_flag))
    assert view.stored_body == stored
    assert view.body == b"hello" * 100
    assert view.body is view.body, "expanded once"
    view.verify()
    with pytest.raises(DecompressionError):
        _ = MessageView(record(body=b"plain", sys_flag=sys_flag)).body


def test_verify_compares_the_body_with_its_checksum() -> None:
    data = bytearray(record())
    data[data.index(b"hello")] ^= 1
    with pytest.raises(RecordDamaged, match="physical offset 4096: checksum"):
        MessageView(data).verify()


def changed(at: int, code: str, value: int, data: bytes | None = None) -> bytes:
    buffer = bytearray(record() if data is None else data)
    struct.pack_into(code, buffer, at, value)
    return bytes(buffer)


SIZE = len(record())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes at byte 0 are too few"),
        (record()[: RECORD_BYTES_MIN - 1], "90 bytes at byte 0 are too few"),
        (record()[:-1], f"has {SIZE} bytes; {SIZE - 1} are here"),
        (changed(4, ">i", MAGIC_BLANK), "magic 0xcbd43194"),
        (changed(4, ">i", 0), "magic 0x0"),
        (changed(0, ">i", 0), "with 0 bytes claims a head"),
        (changed(0, ">i", -1), "with -1 bytes claims a head"),
        (changed(0, ">i", 90), "with 90 bytes claims a head"),
        (changed(0, ">i", 114, record(sys_flag=0x30)), "with 114 bytes claims a head"),
        (changed(84, ">i", -1), "a body of -1"),
        (changed(84, ">i", SIZE), f"a body of {SIZE}"),
        (changed(93, ">B", 255), "a topic of -1"),
        (changed(93, ">B", 127), "a topic of 127"),
        (changed(100, ">h", -1), "properties of -1"),
        (changed(100, ">h", 1), "properties of 1 bytes"),
    ],
)
def test_decode_with_inconsistent_lengths_is_rejected(data: bytes, message: str) -> None:
    with pytest.raises(RecordDamaged, match=message):
        MessageView(data)


def test_decode_at_an_offset_outside_the_buffer_is_rejected() -> None:
    for start in (-1, SIZE, SIZE + 1):
        with pytest.raises(RecordDamaged, match="too few"):
            MessageView(record(), start)


def test_decode_all_returns_every_record_and_rejects_the_rest() -> None:
    data = record(topic=b"a") + record(topic=b"b", sys_flag=0x30) + record(topic=b"c")
    assert [view.topic for view in decode_all(memoryview(data))] == ["a", "b", "c"]
    assert list(decode_all(b"")) == []
    views = decode_all(data + b"x")
    assert [next(views).topic for _ in range(3)] == ["a", "b", "c"]
    with pytest.raises(RecordDamaged, match=f"1 bytes at byte {len(data)}"):
        next(views)


def test_message_with_every_argument_encodes_all_properties() -> None:
    message = Message(
        "orders",
        bytearray(b"body"),
        tags="beijing",
        keys=["T1", "T2"],
        flag=-1,
        properties={"amount": "50"},
        wait_store_ok=False,
        delay_level=3,
    )
    assert message.body == b"body"
    assert message.keys == ("T1", "T2")
    assert message.encode_properties({names.UNIQ_KEY: "U1"}) == (
        b"amount\x0150\x02TAGS\x01beijing\x02KEYS\x01T1 T2\x02DELAY\x013\x02"
        b"WAIT\x01false\x02UNIQ_KEY\x01U1\x02"
    )
    assert "orders" in repr(message)
    assert "body" not in repr(message)


def test_message_docstring_example_works() -> None:
    assert doctest.testmod(message) == (0, 2)


def test_message_with_defaults_has_no_properties() -> None:
    message = Message("orders", b"body", keys="T1")
    assert message.keys == ("T1",)
    assert Message("orders", b"body", keys=["T1"]) == message
    assert Message("orders", b"body").encode_properties() == b""


def test_message_copies_the_properties_it_is_given() -> None:
    properties = {"amount": "50"}
    message = Message("orders", b"body", properties=properties)
    properties["TAGS"] = "changed later"
    assert message.properties == {"amount": "50"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topic": ""}, "topic ''"),
        ({"topic": "a b"}, "topic 'a b'"),
        ({"topic": "订单"}, "topic '订单'"),
        ({"topic": "a\n"}, "topic 'a.n'"),
        ({"topic": "t" * 128}, "has 128 bytes; at most 127"),
        ({"body": "text"}, "body 'text' is text"),
        ({"body": None}, "body None is of type NoneType"),
        ({"body": {"a": 1}}, "body {'a': 1} is of type dict; encode it"),
        ({"body": b""}, "body is empty"),
        ({"body": bytes(BODY_BYTES_MAX + 1)}, "body has 4194305 bytes"),
        ({"tags": ""}, "tag ''"),
        ({"tags": "a || b"}, "tag 'a || b'"),
        ({"tags": " a"}, "tag ' a'"),
        ({"tags": ["a"]}, r"tag \['a'\] is not text; a message has one"),
        ({"tags": "a\x02b"}, "'TAGS' = 'a.x02b'"),
        ({"keys": "a b"}, "key 'a b'"),
        ({"keys": ["a", ""]}, "key ''"),
        ({"keys": [7]}, "key 7 is not text"),
        ({"flag": 1 << 31}, "flag 2147483648"),
        ({"delay_level": -1}, "delay_level -1"),
        ({"properties": {"TAGS": "x"}}, "property 'TAGS' = 'x' is reserved"),
        ({"properties": {"A": "\x01"}}, "'A' = '.x01'"),
        ({"properties": {"A": "\ud800"}}, "not valid text"),
        ({"properties": {"A": 7}}, "'A' = 7 is not text"),
        ({"sharding_key": 7}, "'__SHARDINGKEY' = 7 is not text"),
        ({"properties": {"A": "x" * 32767}}, "32770 bytes"),
    ],
)
def test_message_with_invalid_arguments_is_rejected(
    arguments: dict[str, Any], message: str
) -> None:
    right: dict[str, Any] = {"topic": "orders", "body": b"body"}
    with pytest.raises(UsageError) as caught:
        Message(**{**right, **arguments})
    assert caught.match(message.replace("|", "[|]"))


def test_message_delivery_time_and_ordering_key_become_properties() -> None:
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    timed = Message("t", b"x", deliver_at=noon, sharding_key="order-7")
    assert timed.encode_properties() == (
        b"TIMER_DELIVER_MS\x011893499200000\x02__SHARDINGKEY\x01order-7\x02"
    )
    later = Message("t", b"x", delay=timedelta(seconds=1.5))
    assert later.encode_properties({names.UNIQ_KEY: "U"}) == (
        b"TIMER_DELAY_MS\x011500\x02UNIQ_KEY\x01U\x02"
    )
    assert timed.is_delayed
    assert later.is_delayed
    assert not Message("t", b"x").is_delayed


def test_message_with_invalid_delivery_times_is_rejected() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        Message("t", b"x", delay_level=3, delay=timedelta(seconds=1))
    with pytest.raises(UsageError, match="no time zone"):
        Message("t", b"x", deliver_at=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(UsageError, match="less than a millisecond"):
        Message("t", b"x", delay=timedelta(0))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keys": 5}, "keys 5 is of type int; it must be text, or a list of texts such as"),
        ({"keys": ["T1", 5]}, "key 5 is not text"),
        ({"delay": 5}, r"delay 5 is of type int; it must be a timedelta such as timedelta\("),
        ({"deliver_at": 5}, "deliver_at 5 is of type int; it must be a datetime with a time zone"),
        ({"deliver_at": "now"}, "deliver_at 'now' is of type str"),
        ({"delay_level": "3"}, "delay_level '3' is of type str; it must be a whole number"),
        ({"flag": "x"}, "flag 'x' is of type str; it must be a whole number"),
        ({"properties": 5}, "properties 5 is of type int; it must be a mapping"),
        ({"properties": {"a": 1}}, "a"),
        ({"tags": 5}, "tag 5 is not text"),
        ({"sharding_key": 5}, "5"),
        ({"topic": 5}, "topic 5 is of type int; it must be text"),
    ],
)
def test_message_with_an_argument_of_a_wrong_type_names_it(
    given: dict[str, Any], said: str
) -> None:
    arguments: dict[str, Any] = {"topic": "orders", "body": b"x", **given}
    with pytest.raises(UsageError, match=said):
        Message(**arguments)


def test_message_repr_shows_what_was_given() -> None:
    assert repr(Message("orders", b"two apples")) == "Message('orders', 10 bytes)"
    order = Message("orders", b"x", tags="fruit", keys="T1", delay=timedelta(seconds=5))
    assert repr(order) == (
        "Message('orders', 1 bytes, tags='fruit', keys=('T1',), "
        "delay=datetime.timedelta(seconds=5))"
    )


def test_view_separates_user_and_system_properties() -> None:
    message = Message("orders", b"x", tags="fruit", keys="T1", properties={"region": "north"})
    view = MessageView(record(properties=message.encode_properties()))
    assert view.user_properties == {"region": "north"}
    assert view.system_properties == {"TAGS": "fruit", "KEYS": "T1"}
    assert view.properties == {**view.user_properties, **view.system_properties}
