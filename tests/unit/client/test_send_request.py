"""What goes into a frame, what its answer means, and which batches leave, and when."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.base.errors import UsageError
from tianzhou.base.limits import PROPERTIES_BYTES_MAX
from tianzhou.client.core.send_request import (
    Batch,
    Compression,
    Kind,
    MessageEncoder,
    OpenBatches,
    SendFields,
    SendRequest,
    SendResult,
    SendStatus,
    batch_request,
    check_batchable,
    outcome_of,
    size_in_batch,
)
from tianzhou.client.errors import BadAnswer, RemoteError
from tianzhou.client.options import Batching, ProducerOptions
from tianzhou.record.batch import decode_batch
from tianzhou.record.compression import decompress
from tianzhou.record.message import Message
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_send import SendMessageV2Request
from tianzhou.wire.codec import RESPONSE_FLAG, Header
from tianzhou.wire.queues import MessageQueue

QUEUE = MessageQueue(topic="t", broker_name="b", queue_id=3)
FIELDS = SendFields("makers", "TBW102", 4)


ADDRESS = "10.0.0.1:10911"
PLAIN = MessageEncoder(Compression.NONE, 0)


def results_of(response: Header, request: SendRequest, queue: MessageQueue) -> list[SendResult]:
    """The results of a request that was stored."""
    outcome = outcome_of(response, request, queue, ADDRESS)
    assert isinstance(outcome, list)
    return outcome


def answer(code: int = 0, **ext: str) -> Header:
    return Header(code=code, opaque=1, flag=RESPONSE_FLAG, ext=ext)


def test_send_request_has_the_fields_of_the_protocol() -> None:
    request = PLAIN.request(Message("t", b"x", tags="a", flag=9), "ID1", sys_flag=4)
    fields = SendMessageV2Request.from_ext(FIELDS.ext(request, QUEUE, 1_700_000_000_000))
    assert fields == SendMessageV2Request(
        producer_group="makers",
        topic="t",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=3,
        sys_flag=4,
        born_timestamp_ms=1_700_000_000_000,
        flag=9,
        properties="TAGS\x01a\x02UNIQ_KEY\x01ID1\x02",
        broker_name="b",
    )


def test_batch_request_has_an_id_for_each_message() -> None:
    messages = [Message("t", b"1", tags="a"), Message("t", b"22", flag=5)]
    request = batch_request(messages, ["ID1", "ID2"])
    assert request.code == RequestCode.SEND_BATCH_MESSAGE
    assert request.properties == ""
    assert decode_batch(bytes(request.body)) == [
        (0, b"1", b"TAGS\x01a\x02UNIQ_KEY\x01ID1\x02"),
        (5, b"22", b"UNIQ_KEY\x01ID2\x02"),
    ]
    assert SendMessageV2Request.from_ext(FIELDS.ext(request, QUEUE, 0)).batch
    impatient = batch_request([Message("t", b"1", wait_store_ok=False)], ["ID1"])
    assert impatient.properties == "WAIT\x01false\x02"


@pytest.mark.parametrize("kind", [Compression.ZLIB, Compression.LZ4, Compression.ZSTD])
def test_send_request_compresses_bodies_from_the_threshold(kind: Compression) -> None:
    small = MessageEncoder(kind, 100).request(Message("t", b"a" * 99), "ID")
    assert (small.body, small.sys_flag) == (b"a" * 99, 0)
    large = MessageEncoder(kind, 100).request(Message("t", b"a" * 100), "ID", sys_flag=4)
    assert large.sys_flag == kind.value | 4
    assert len(large.body) < 100
    assert decompress(large.body, large.sys_flag) == b"a" * 100


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, SendStatus.SEND_OK),
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_results_of_four_response_codes_are_stored(code: int, status: SendStatus) -> None:
    request = PLAIN.request(Message("t", b"x"), "ID1")
    (result,) = (
        results_of(
            answer(
                code,
                msgId="OFF1",
                queueId="3",
                queueOffset="17",
                transactionId="ID1",
                MSG_REGION="r",
                TRACE_ON="true",
                recallHandle="h",
            ),
            request,
            QUEUE,
        )
        or []
    )
    assert (result.status, result.message_id, result.offset_id) == (status, "ID1", "OFF1")
    assert (result.queue, result.queue_offset) == (QUEUE, 17)
    assert (result.transaction_id, result.recall_handle) == ("ID1", "h")
    assert (result.region_id, result.is_traced) == ("r", True)


@pytest.mark.parametrize("code", [1, 2, 13, 14, 16, 17, 29, 31_999])
def test_results_of_other_response_codes_are_none(code: int) -> None:
    request = PLAIN.request(Message("t", b"x"), "ID1")
    error = outcome_of(answer(code), request, QUEUE, ADDRESS)
    assert isinstance(error, RemoteError)
    assert (error.address, error.code) == (ADDRESS, code)


def test_results_of_a_response_without_its_fields_raise() -> None:
    request = PLAIN.request(Message("t", b"x"), "ID1")
    error = outcome_of(answer(), request, QUEUE, ADDRESS)
    assert isinstance(error, BadAnswer)
    assert "queueOffset" in str(error)


def test_results_of_a_batch_are_one_for_each_message() -> None:
    request = batch_request([Message("t", b"%d" % n) for n in range(3)], ["A", "B", "C"])
    results = results_of(answer(msgId="X,Y,Z", queueId="3", queueOffset="5"), request, QUEUE)
    assert [(r.message_id, r.offset_id, r.queue_offset) for r in results] == [
        ("A", "X", 5),
        ("B", "Y", 6),
        ("C", "Z", 7),
    ]
    # A topic whose batches are single records answers with one place.
    results = results_of(answer(msgId="X", queueId="3", queueOffset="5"), request, QUEUE)
    assert [(r.offset_id, r.queue_offset) for r in results] == [("X", 5), ("X", 6), ("X", 7)]


def test_results_of_a_delayed_message_name_the_queue_of_the_response() -> None:
    request = PLAIN.request(Message("t", b"x", delay_level=2), "ID1")
    (result,) = results_of(answer(msgId="X", queueId="1", queueOffset="5"), request, QUEUE)
    assert result.queue.queue_id == 1


def test_check_batchable_rejects_a_retry_topic() -> None:
    with pytest.raises(UsageError, match="takes no batches"):
        check_batchable([Message("%RETRY%g", b"x")])


KIND = Kind("t", None, True)


def open_batches(rules: Batching) -> OpenBatches[Any]:
    return OpenBatches(count_max=rules.count_max, bytes_max=rules.bytes_max)


def test_open_batch_is_returned_at_its_message_limit() -> None:
    gatherer: OpenBatches[int] = open_batches(Batching(count_max=3))
    assert [gatherer.add(KIND, Message("t", b"x"), n) for n in range(2)] == [[], []]
    (full,) = gatherer.add(KIND, Message("t", b"x"), 2)
    assert full.tokens == [0, 1, 2]
    assert gatherer.open_batch(KIND) is None


def test_open_batch_is_returned_before_its_byte_limit() -> None:
    gatherer: OpenBatches[int] = open_batches(Batching(bytes_max=1024))
    large = Message("t", bytes(600))
    assert gatherer.add(KIND, large, 0) == []
    (first,) = gatherer.add(KIND, large, 1)
    assert first.tokens == [0]
    rest = gatherer.take(KIND)
    assert rest is not None
    assert rest.tokens == [1]


def test_open_batches_are_separate_for_each_kind() -> None:
    gatherer: OpenBatches[str] = open_batches(Batching())
    for topic, wait in (("t", True), ("t", False), ("u", True)):
        gatherer.add(Kind(topic, None, wait), Message(topic, b"x", wait_store_ok=wait), topic)
    assert [len(batch.messages) for batch in gatherer.take_all()] == [1, 1, 1]
    assert gatherer.take(KIND) is None


def test_open_batches_reject_large_and_delayed_messages() -> None:
    gatherer: OpenBatches[int] = open_batches(Batching(bytes_max=1024))
    assert gatherer.accepts(Message("t", bytes(100)))
    assert not gatherer.accepts(Message("t", bytes(2000)))
    assert not gatherer.accepts(Message("t", b"x", delay_level=1))
    no_room_for_an_id = Message("t", b"x", properties={"note": "n" * (PROPERTIES_BYTES_MAX - 10)})
    gatherer = open_batches(Batching())
    assert not gatherer.accepts(no_room_for_an_id)


@given(st.lists(st.integers(1, 1500), max_size=60), st.integers(1, 10))
def test_open_batches_return_messages_once_in_order_within_limits(
    sizes: list[int], count_max: int
) -> None:
    rules = Batching(count_max=count_max, bytes_max=2048)
    gatherer: OpenBatches[int] = open_batches(rules)
    left: list[Batch[int]] = []
    for token, size in enumerate(sizes):
        left += gatherer.add(KIND, Message("t", bytes(size)), token)
    left += gatherer.take_all()
    assert [token for batch in left for token in batch.tokens] == list(range(len(sizes)))
    for batch in left:
        assert 1 <= len(batch.messages) <= count_max
        assert batch.size <= rules.bytes_max
        # The estimate is never too small.
        ids = ["0" * 32] * len(batch.messages)
        assert len(batch_request(batch.messages, ids).body) <= batch.size


def test_size_in_batch_includes_properties() -> None:
    assert size_in_batch(Message("t", b"x", keys="k" * 100)) > size_in_batch(Message("t", b"x"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"linger_s": -1.0}, "linger_s is -1"),
        ({"count_max": 0}, "count_max is 0"),
        ({"bytes_max": 10}, "bytes_max is 10"),
    ],
)
def test_batching_with_invalid_limits_is_rejected(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Batching(**wrong)  # pyright: ignore[reportArgumentType] # that is what is tested
    with pytest.raises(UsageError, match="tries_max is 0"):
        ProducerOptions(tries_max=0)
