"""One example of every request that only a master or leader may execute.

Each example changes something at a broker that executes it. Tests send all of them to replicas and
prove that nothing changed; they also prove that the list is complete.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tianzhou.record import properties
from tianzhou.record.batch import encode_batch
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode as Code
from tianzhou.wire._generated_headers_send import SendMessageRequest, SendMessageV2Request
from tianzhou.wire.names import DEFAULT_TOPIC

TOPIC: Final = "orders"
GROUP: Final = "readers"
CLIENT: Final = "10.1.1.1@4711"
_UNIQUE: Final = properties.encode({"UNIQ_KEY": "0A" * 16}).decode()


class Known(NamedTuple):
    """What exists at the group under test: TOPIC with messages, GROUP with an offset."""

    broker_name: str
    record_at: int = 0
    """Physical offset of a message in TOPIC."""
    half_at: int = 0
    """Physical offset of an undecided half message, the first of its queue."""
    half_id: str = ""
    """Its offset id."""
    recall_handle: str = ""


class Example(NamedTuple):
    ext: dict[str, str]
    body: bytes = b""


def _send(_: Known) -> Example:
    return Example(_message(TOPIC).to_ext(), b"body")


def _send_v2(_: Known) -> Example:
    # A topic that does not exist yet: a master creates it.
    return Example(_message_v2("created-by-a-send").to_ext(), b"body")


def _batch(_: Known) -> Example:
    body = encode_batch([(0, b"one", b""), (0, b"two", b"")])
    return Example(_message_v2(TOPIC, is_batch=True).to_ext(), body)


def _message(topic: str) -> SendMessageRequest:
    return SendMessageRequest(
        producer_group="producers",
        topic=topic,
        default_topic=DEFAULT_TOPIC,
        queue_id=0,
        sys_flag=0,
        born_timestamp_ms=1_700_000_000_000,
        flag=0,
        properties=_UNIQUE,
    )


def _message_v2(topic: str, *, is_batch: bool = False) -> SendMessageV2Request:
    return SendMessageV2Request(
        producer_group="producers",
        topic=topic,
        default_topic=DEFAULT_TOPIC,
        queue_id=0,
        sys_flag=0,
        born_timestamp_ms=1_700_000_000_000,
        flag=0,
        properties=_UNIQUE,
        batch=is_batch,
    )


def _send_back(known: Known) -> Example:
    ext = {"offset": str(known.record_at), "group": "created-by-a-retry", "delayLevel": "0"}
    return Example(ext)


def _end_transaction(known: Known) -> Example:
    return Example(
        {
            "producerGroup": "producers",
            "tranStateTableOffset": "0",
            "commitLogOffset": str(known.half_at),
            "commitOrRollback": "8",
            "msgId": known.half_id,
        }
    )


def _queues(known: Known) -> Example:
    queue = {"topic": TOPIC, "brokerName": known.broker_name, "queueId": 0}
    asked = {"consumerGroup": GROUP, "clientId": CLIENT, "mqSet": [queue]}
    return Example({}, fastjson.encode(asked))


def _topic(name: str) -> dict[str, object]:
    return {
        "topicName": name,
        "readQueueNums": 2,
        "writeQueueNums": 2,
        "perm": 6,
        "order": False,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
    }


def _create_topic(_: Known) -> Example:
    return Example(
        {
            "topic": "created",
            "defaultTopic": DEFAULT_TOPIC,
            "readQueueNums": "2",
            "writeQueueNums": "2",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
        }
    )


def _body(value: object) -> Callable[[Known], Example]:
    return lambda _: Example({}, fastjson.encode(value))


def _ext(**ext: str) -> Callable[[Known], Example]:
    return lambda _: Example(dict(ext))


EXAMPLES: Final[Mapping[Code, Callable[[Known], Example]]] = {
    Code.SEND_MESSAGE: _send,
    Code.SEND_MESSAGE_V2: _send_v2,
    Code.SEND_BATCH_MESSAGE: _batch,
    Code.SEND_REPLY_MESSAGE: _send,
    Code.SEND_REPLY_MESSAGE_V2: _send_v2,
    Code.CONSUMER_SEND_MSG_BACK: _send_back,
    Code.RESUME_CHECK_HALF_MESSAGE: lambda known: Example({"msgId": known.half_id}),
    Code.END_TRANSACTION: _end_transaction,
    Code.RECALL_MESSAGE: lambda known: Example(
        {"topic": TOPIC, "recallHandle": known.recall_handle}
    ),
    Code.LOCK_BATCH_MQ: _queues,
    Code.UNLOCK_BATCH_MQ: _queues,
    Code.UPDATE_AND_CREATE_TOPIC: _create_topic,
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _body({"topicConfigList": [_topic("created-in-a-list")]}),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _body({"groupName": "created"}),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _body(
        {"groupConfigList": [{"groupName": "created-in-a-list"}]}
    ),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _ext(group=GROUP, topic=TOPIC, readable="false"),
    Code.CLONE_GROUP_OFFSET: _ext(srcGroup=GROUP, destGroup="cloned", topic=TOPIC, offline="true"),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _ext(
        topic=TOPIC, group=GROUP, timestamp="0", isForce="true"
    ),
    Code.DELETE_SUBSCRIPTIONGROUP: _ext(groupName=GROUP, cleanOffset="true"),
    Code.CLEAN_UNUSED_TOPIC: _ext(),
    Code.DELETE_TOPIC_IN_BROKER: _ext(topic=TOPIC),
    Code.CHANGE_RAFT: _ext(action="learner", member="n9", address="127.0.0.1:9"),
}
"""Ordered so that each request finds what it needs: deletions come last."""
