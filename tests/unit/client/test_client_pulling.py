"""The header of a pull, the meaning of an answer, and the records in it."""

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import queue_key
from tianzhou.client.core.pulling import (
    PullPlan,
    PullStatus,
    read_answer,
    records_of,
)
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.core.subscription import subscribe
from tianzhou.record import flags
from tianzhou.record.batch import encode_batch
from tianzhou.record.chunk import Entry, build, stamp
from tianzhou.record.compression import compress
from tianzhou.record.errors import RecordDamaged
from tianzhou.record.ids import Host, encode_host
from tianzhou.record.message import MessageView
from tianzhou.wire.codec import Header
from tianzhou.wire.errors import HeaderFieldError
from tianzhou.wire.queues import MessageQueue

QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=3)
HOST = encode_host(Host("10.0.0.1", 10911))
HOST_V6 = encode_host(Host("::1", 10911))


def stored(*entries: Entry, first: int = 10, store_host: bytes = HOST) -> bytes:
    chunk = build(entries, store_host=store_host, record_crc=False)
    stamp(
        chunk,
        0,
        len(chunk),
        queue_offsets=range(first, first + len(chunk)),
        physical_offset=1000,
        store_timestamp=5,
    )
    return bytes(chunk.data)


def entry(body: bytes, properties: bytes = b"", *, sys_flag: int = 0, topic: str = "T") -> Entry:
    return Entry(queue_key(topic, 3), body, properties, sys_flag=sys_flag, born_host=HOST)


def plan(**more: int | bool) -> PullPlan:
    wanted = subscribe("T", "a || b", version=9)
    return PullPlan(
        group="g",
        queue=QUEUE,
        subscription=wanted,
        count_max=32,
        bytes_max=1 << 18,
        suspend_ms=15_000,
        **more,  # pyright: ignore[reportArgumentType] # only `lite` is given
    )


def test_pull_plan_has_the_header_fields_of_a_pull() -> None:
    assert plan().ext(40, commit=30) == {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "3",
        "queueOffset": "40",
        "maxMsgNums": "32",
        "sysFlag": "7",
        "commitOffset": "30",
        "suspendTimeoutMillis": "15000",
        "subscription": "a || b",
        "subVersion": "9",
        "expressionType": "TAG",
        "maxMsgBytes": "262144",
    }


@pytest.mark.parametrize("commit", [None, 0])
def test_pull_plan_without_an_offset_to_commit_clears_the_flag(commit: int | None) -> None:
    assert plan().ext(40, commit)["sysFlag"] == "6"


def test_pull_plan_of_a_lite_pull_sets_its_flag() -> None:
    assert plan(lite=True).ext(40)["sysFlag"] == "22"


FIELDS = {"suggestWhichBrokerId": "1", "nextBeginOffset": "42", "minOffset": "2", "maxOffset": "50"}


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, PullStatus.FOUND),
        (19, PullStatus.NO_NEW),
        (20, PullStatus.NO_MATCHED),
        (21, PullStatus.OFFSET_ILLEGAL),
    ],
)
def test_read_answer_maps_response_codes_to_statuses(code: int, status: PullStatus) -> None:
    answer = read_answer(Header(code=code, opaque=1, flag=1, ext=FIELDS), b"x")
    assert answer is not None
    assert answer.status is status
    assert (answer.next_offset, answer.min_offset, answer.max_offset) == (42, 2, 50)
    assert answer.broker_id == 1
    assert answer.body == (b"x" if status is PullStatus.FOUND else b"")


def test_read_answer_of_a_rejection_is_none() -> None:
    assert read_answer(Header(code=24, opaque=1, flag=1), b"") is None


def test_read_answer_without_an_offset_is_an_error() -> None:
    with pytest.raises(HeaderFieldError, match="nextBeginOffset"):
        read_answer(Header(code=0, opaque=1, flag=1, ext={"suggestWhichBrokerId": "0"}), b"")


def test_records_of_finds_every_record() -> None:
    body = stored(entry(b"one"), entry(b"three"))
    records = records_of(body, asked=10)
    assert records.offsets == [10, 11]
    assert sum(records.sizes) == len(body)
    assert [MessageView(body, start).body for start in records.starts] == [b"one", b"three"]


def test_records_of_an_empty_body_is_empty() -> None:
    assert records_of(b"", asked=0).starts == []


def test_records_of_excludes_another_tag_with_the_same_hash() -> None:
    accepts = subscribe("T", "Aa", version=1).accepts_tag
    body = stored(entry(b"1", b"TAGS\x01Aa\x02"), entry(b"2", b"TAGS\x01BB\x02"), entry(b"3"))
    assert records_of(body, asked=10, accepts_tag=accepts).offsets == [10]


@pytest.mark.parametrize("cut", [1, 50, 91])
def test_records_of_a_torn_response_is_an_error(cut: int) -> None:
    body = stored(entry(b"one"), entry(b"two"))
    with pytest.raises(RecordDamaged, match="does not start a whole record"):
        records_of(body[:-cut], asked=10)


def test_records_of_a_modified_body_is_an_error() -> None:
    body = bytearray(stored(entry(b"one"), entry(b"two")))
    body[body.index(b"two")] ^= 1
    with pytest.raises(RecordDamaged, match="checksum"):
        records_of(bytes(body), asked=10)


@pytest.mark.parametrize("store_host", [HOST, HOST_V6])
@pytest.mark.parametrize("compression", [0, flags.COMPRESSED | flags.COMPRESSION_LZ4])
def test_records_of_an_inner_batch_are_unpacked(store_host: bytes, compression: int) -> None:
    inner = encode_batch(
        [(7, b"one", b"TAGS\x01a"), (8, b"two", b""), (9, b"three", b"K\x01v\x02")]
    )
    sys_flag = flags.NEED_UNWRAP | flags.INNER_BATCH | compression
    outer = b"UNIQ_KEY\x01U\x02INNER_NUM\x013\x02INNER_BASE\x0120\x02"
    batch = entry(compress(inner, compression), outer, sys_flag=sys_flag)
    body = stored(batch, first=20, store_host=store_host)
    body += stored(entry(b"plain"), first=23, store_host=store_host)
    records = records_of(body, asked=20)
    assert records.offsets == [20, 21, 22, 23]
    views = [MessageView(records.buffer, start) for start in records.starts]
    assert [view.body for view in views] == [b"one", b"two", b"three", b"plain"]
    assert [view.flag for view in views] == [7, 8, 9, 0]
    assert [view.tags for view in views] == ["a", None, None, None]
    assert views[2].properties == {"K": "v", "UNIQ_KEY": "U"}
    assert {view.physical_offset for view in views[:3]} == {1000}
    assert not any(view.sys_flag & (flags.NEED_UNWRAP | flags.COMPRESSED) for view in views)
    # The middle of it was asked for: what is before was consumed already.
    assert records_of(body, asked=22).offsets == [22, 23]


def test_received_message_of_a_retry_shows_the_original_topic() -> None:
    body = stored(entry(b"x", b"RETRY_TOPIC\x01orders\x02", topic="%RETRY%g"))
    queue = MessageQueue(topic="%RETRY%g", broker_name="b", queue_id=3)
    message = ReceivedMessage(body, 0, queue)
    assert (message.topic, message.queue.topic) == ("orders", "%RETRY%g")
    message.local_times += 2
    assert message.reconsume_times == 2
    assert message.origin_id == message.offset_id
    with pytest.raises(UsageError, match="commit offsets"):
        message.ack()
