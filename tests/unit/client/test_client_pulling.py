"""The header of a pull, the meaning of an answer, and the records in it."""

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import queue_key
from tianzhou.client.core.pulling import (
    SLAVE_PAUSE_S,
    PullAnswer,
    PullFrom,
    PullPlan,
    PullRetry,
    PullStatus,
    is_usable,
    read_answer,
    records_of,
    retry_after,
)
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.core.subscription import subscribe
from tianzhou.client.errors import GroupNotExist
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


def test_pull_plan_without_suspending_clears_the_flag() -> None:
    assert plan().ext(40, suspend=False)["sysFlag"] == "4"


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


# Where to pull from


def advice(broker_id: int, status: PullStatus = PullStatus.FOUND, *, until: int = 50) -> PullAnswer:
    return PullAnswer(status, until, 0, 100, broker_id)


def test_reader_follows_the_advice_of_the_master_and_of_the_slave() -> None:
    at_master = PullFrom()
    at_slave = at_master.after_answer(advice(1), at=0, now_s=5.0)
    assert at_slave.broker_id == 1
    assert at_slave.after_answer(advice(1), at=1, now_s=5.0) is at_slave
    assert at_slave.after_answer(advice(0), at=1, now_s=5.0).broker_id == 0
    assert at_master.after_answer(advice(0), at=0, now_s=5.0) is at_master


def test_reader_leaves_a_slave_that_failed_for_a_while() -> None:
    back = PullFrom(1).after_failure((0, 1, 2), now_s=100.0)
    assert back.broker_id == 0
    early, late = 100.0 + SLAVE_PAUSE_S - 0.1, 100.0 + SLAVE_PAUSE_S
    assert back.after_answer(advice(1), at=0, now_s=early).broker_id == 0
    assert back.after_answer(advice(1), at=0, now_s=late).broker_id == 1


def test_reader_tries_all_replicas_in_turn_while_each_of_them_fails() -> None:
    source, asked = PullFrom(), list[int]()
    for _ in range(8):
        asked.append(source.broker_id)
        source = source.after_failure((0, 1, 3), now_s=0.0)
    assert asked == [0, 1, 0, 3, 0, 0, 1, 0]


def test_reader_of_an_only_master_stays_there() -> None:
    assert PullFrom().after_failure((0,), now_s=0.0) == PullFrom()
    assert PullFrom().after_failure((), now_s=0.0) == PullFrom()


def test_reader_at_the_only_slave_follows_its_advice_to_stay() -> None:
    assert PullFrom().after_answer(advice(1), at=1, now_s=0.0).broker_id == 1


@pytest.mark.parametrize(
    ("answer", "count", "usable"),
    [
        (advice(1), 10, True),
        (advice(1), 9, False),
        (advice(1), None, True),
        (advice(1, until=40), None, False),
        (advice(1, PullStatus.NO_MATCHED), None, True),
        (advice(1, PullStatus.NO_MATCHED), 0, False),
        (advice(1, PullStatus.NO_MATCHED, until=40), None, False),
        (advice(1, PullStatus.NO_MATCHED, until=40), 0, False),
        (advice(1, PullStatus.NO_NEW, until=40), None, False),
        (advice(1, PullStatus.OFFSET_ILLEGAL, until=60), None, False),
    ],
    ids=[
        "messages",
        "one is missing",
        "filtered",
        "no progress",
        "none matched",
        "all are missing",
        "none matched, no progress",
        "being deleted",
        "the end",
        "another offset",
    ],
)
def test_only_messages_of_a_slave_are_usable(
    answer: PullAnswer, count: int | None, *, usable: bool
) -> None:
    assert is_usable(answer, at=1, asked=40, count=count) is usable
    assert is_usable(answer, at=0, asked=40, count=count)


def test_end_of_a_slave_is_not_the_end_of_the_queue() -> None:
    end = advice(1, PullStatus.NO_NEW, until=40)
    assert not is_usable(end, at=1, asked=40, count=None)
    assert is_usable(end, at=0, asked=40, count=None)


def test_gap_in_the_messages_of_a_slave_is_not_a_loss() -> None:
    assert not is_usable(advice(1), at=1, asked=40, count=9)
    assert is_usable(advice(1), at=0, asked=40, count=9)


def test_rejection_by_a_slave_is_not_final() -> None:
    error = GroupNotExist("h:1", 26, "unknown")
    assert retry_after(error) is PullRetry.NEVER
    assert retry_after(error, at=1) is PullRetry.OTHER_REPLICA


def test_plan_takes_all_without_a_filter() -> None:
    assert not plan().takes_all
