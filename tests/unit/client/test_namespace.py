"""Names with a namespace, as the Java client builds them, and the objects that contain names."""

from typing import Any

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.client.core.namespace import Namespace, without_namespace
from tianzhou.client.core.send_request import SendResult, SendStatus
from tianzhou.client.options import ClientOptions
from tianzhou.record.message import Message
from tianzhou.wire.queues import MessageQueue

NAMES = Namespace("MQ_INST_1")
PAIRS = [
    ("orders", "MQ_INST_1%orders"),
    ("%RETRY%stock", "%RETRY%MQ_INST_1%stock"),
    ("%DLQ%stock", "%DLQ%MQ_INST_1%stock"),
    ("a%b", "MQ_INST_1%a%b"),
    # Names of the system belong to the cluster.
    ("TBW102", "TBW102"),
    ("SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX"),
    ("BenchmarkTest", "BenchmarkTest"),
    ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
    ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC"),
    ("rmq_sys_wheel_timer", "rmq_sys_wheel_timer"),
    ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
    ("DefaultCluster_REPLY_TOPIC", "DefaultCluster_REPLY_TOPIC"),
    ("%LMQ%device-1", "%LMQ%device-1"),
]
QUEUE = MessageQueue(topic="orders", broker_name="b", queue_id=1)
FULL = MessageQueue(topic="MQ_INST_1%orders", broker_name="b", queue_id=1)


@pytest.mark.parametrize(("plain", "full"), PAIRS)
def test_namespace_is_added_and_removed_as_in_java(plain: str, full: str) -> None:
    assert NAMES.full(plain) == full
    assert NAMES.full(full) == full, "a name that has the namespace stays as it is"
    assert NAMES.plain(full) == plain
    assert Namespace().full(plain) == Namespace().plain(plain) == plain


@pytest.mark.parametrize(
    ("full", "plain"),
    [
        ("MQ_INST_1%orders", "orders"),
        ("%RETRY%MQ_INST_1%stock", "%RETRY%stock"),
        ("orders", "orders"),
        ("%RETRY%stock", "%RETRY%stock"),
        ("%orders", "%orders"),
    ],
)
def test_without_namespace_needs_no_name(full: str, plain: str) -> None:
    assert without_namespace(full) == plain


def test_names_of_another_namespace_are_left_alone() -> None:
    assert NAMES.plain("MQ_INST_2%orders") == "MQ_INST_2%orders"
    assert NAMES.plain("%RETRY%MQ_INST_2%stock") == "%RETRY%MQ_INST_2%stock"


def test_queues_and_offsets_are_converted() -> None:
    assert (NAMES.full_queue(QUEUE), NAMES.plain_queue(FULL)) == (FULL, QUEUE)
    assert NAMES.full_queue(None) is None
    assert NAMES.full_offsets({QUEUE: 3}) == {FULL: 3}
    assert NAMES.full_offsets(None) is None
    assert Namespace().full_queue(QUEUE) is QUEUE


def test_message_gets_the_namespace_and_keeps_everything_else() -> None:
    message = Message("orders", b"x", tags="t", keys="k", properties={"a": "b"}, sharding_key="s")
    full = NAMES.full_message(message)
    assert (full.topic, message.topic) == ("MQ_INST_1%orders", "orders")
    assert full.encoded_properties == message.encoded_properties
    assert (full.body, full.tags, full.sharding_key) == (b"x", "t", "s")
    assert Namespace().full_message(message) is message
    with pytest.raises(UsageError, match="at most 127"):
        NAMES.full_message(Message("t" * 120, b"x"))


def test_selector_sees_and_returns_plain_names() -> None:
    seen: list[object] = []

    def select(queues: Any, message: Message) -> MessageQueue:
        seen.extend([*queues, message.topic])
        return queues[0]

    selector = NAMES.full_selector(select)
    assert selector is not None
    assert selector([FULL], NAMES.full_message(Message("orders", b"x"))) == FULL
    assert seen == [QUEUE, "orders"]
    assert NAMES.full_selector(None) is None


def test_result_shows_the_plain_queue() -> None:
    result = SendResult(
        status=SendStatus.SEND_OK, message_id="1", offset_id="2", queue=FULL, queue_offset=3
    )
    assert NAMES.plain_result(result).queue == QUEUE
    assert NAMES.full_result(NAMES.plain_result(result)) == result


@pytest.mark.parametrize("wrong", ["a%b", "a b", "名", "a@b"])
def test_invalid_namespace_is_rejected(wrong: str) -> None:
    with pytest.raises(UsageError, match="invalid namespace"):
        ClientOptions(namespace=wrong)
