"""Light queues: the properties that name them, and the offsets that a broker assigns."""

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import queue_key
from tianzhou.base.limits import QUEUE_OFFSET_MAX
from tianzhou.record import light_queues
from tianzhou.record.chunk import Entry, build, join
from tianzhou.record.light_queues import (
    COUNT_MAX,
    checked_name,
    checked_names,
    offset_in,
    offsets_of,
    room_bytes,
    with_room,
    without_offsets,
)
from tianzhou.record.message import Message, MessageView

NAMES = b"INNER_MULTI_DISPATCH\x01"
OFFSETS = b"INNER_MULTI_QUEUE_OFFSET\x01"


def test_light_queue_offsets_are_those_of_rocketmq() -> None:
    text = NAMES + b"%LMQ%a,%LMQ%b\x02" + OFFSETS + b"12,3\x02"
    assert offsets_of(text) == [(b"%LMQ%a", 12), (b"%LMQ%b", 3)]
    assert offset_in(text, "%LMQ%b") == 3
    assert offset_in(text, "%LMQ%c") is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        NAMES + b"%LMQ%a\x02",
        OFFSETS + b"1\x02",
        NAMES + b"%LMQ%a\x02" + OFFSETS + b"1,2\x02",
        NAMES + b"%LMQ%a\x02" + OFFSETS + b"-1\x02",
        NAMES + b"%LMQ%a\x02" + OFFSETS + b"\xb2\x02",
        NAMES + b"%LMQ%a\x02" + OFFSETS + b"9" * 5000 + b"\x02",
        NAMES + b"%LMQ%a\x02" + OFFSETS + b"%d\x02" % QUEUE_OFFSET_MAX,
        NAMES + b"orders\x02" + OFFSETS + b"1\x02",
        b"A\x01" + NAMES + b"%LMQ%a\x02B\x01" + OFFSETS + b"1\x02",
    ],
)
def test_light_queue_offsets_that_contradict_their_names_are_ignored(text: bytes) -> None:
    assert offsets_of(text) == []


@pytest.mark.parametrize("name", ["", "%LMQ%", "a/b", "../x", "a,b", "a b", "中", "x" * 123, "a\n"])
def test_light_queue_with_an_invalid_name_is_rejected(name: str) -> None:
    with pytest.raises(UsageError):
        checked_name(name)


def test_light_queue_name_may_lack_its_prefix() -> None:
    assert checked_name("alice") == checked_name("%LMQ%alice") == "%LMQ%alice"
    assert checked_names("alice") == ("%LMQ%alice",)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["a", "%LMQ%a"], "%LMQ%a is named twice"),
        ([f"q{n}" for n in range(COUNT_MAX + 1)], "128 light queues, not 129"),
        ([7], "light queue 7 is not text"),
    ],
)
def test_light_queues_of_a_message_are_distinct_and_few(names: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        checked_names(names)


def test_message_names_its_light_queues_in_the_property_of_rocketmq() -> None:
    message = Message("orders", b"x", light_queues=["alice", "%LMQ%bob"])
    assert message.light_queues == ("%LMQ%alice", "%LMQ%bob")
    assert message.encode_properties() == NAMES + b"%LMQ%alice,%LMQ%bob\x02"


def test_message_with_light_queues_of_the_wrong_type_is_rejected() -> None:
    with pytest.raises(UsageError, match="light_queues 7 is of type int; it must be text"):
        Message("orders", b"x", light_queues=7)  # pyright: ignore[reportArgumentType]


def test_room_replaces_offsets_that_a_client_sent() -> None:
    forged = OFFSETS + b"900\x02" + NAMES + b"%LMQ%a\x02A\x01b\x02"
    text = with_room(forged, [b"%LMQ%a"])
    assert offsets_of(text) == [(b"%LMQ%a", 0)]
    assert len(text) == len(without_offsets(forged)) + room_bytes(1)
    assert without_offsets(text) == NAMES + b"%LMQ%a\x02A\x01b\x02"


def test_room_for_fewer_queues_changes_the_names() -> None:
    text = with_room(NAMES + b"%LMQ%a,%LMQ%b", [b"%LMQ%b"])
    assert offsets_of(text) == [(b"%LMQ%b", 0)]


def test_chunk_has_the_place_of_every_offset() -> None:
    key = queue_key("orders", 0)
    plain, light = (
        Entry(key, b"plain"),
        Entry(key, b"light", with_room(b"", [b"%LMQ%a", b"%LMQ%b"])),
    )
    parts = [build(row, store_host=bytes(8), record_crc=True) for row in ([plain, light], [light])]
    chunk = join(parts)
    assert [room.row for room in chunk.rooms] == [1, 2]
    for number, room in enumerate(chunk.rooms):
        room.write(chunk.data, [5 + number, QUEUE_OFFSET_MAX - 1])
    found = [MessageView(chunk.data, start).light_queues for start in chunk.starts]
    ends = QUEUE_OFFSET_MAX - 1
    assert found == [{}, {"%LMQ%a": 5, "%LMQ%b": ends}, {"%LMQ%a": 6, "%LMQ%b": ends}]


def test_chunk_ignores_offsets_that_are_no_room() -> None:
    hidden = b"A\x01" + OFFSETS + b"0" * 18 + b"\x02"
    for text in (NAMES + b"%LMQ%a\x02" + OFFSETS + b"7\x02", NAMES + b"%LMQ%a\x02" + hidden):
        entry = Entry(queue_key("orders", 0), b"x", text)
        assert not build([entry], store_host=bytes(8), record_crc=True).rooms


def test_chunk_has_no_room_in_invisible_records() -> None:
    text = with_room(b"", [b"%LMQ%a"])
    entry = Entry(queue_key("orders", 0), b"x", text, sys_flag=4)
    assert not build([entry], store_host=bytes(8), record_crc=True).rooms


def test_light_queues_are_recognised_by_their_prefix() -> None:
    assert light_queues.is_light("%LMQ%a")
    assert not light_queues.is_light("%RETRY%a")
