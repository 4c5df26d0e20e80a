"""Pulls: every status with its code and next offset, filters, waiting and waking."""

import json
from dataclasses import replace

import msgspec
import pytest

from tianzhou.broker.config import BrokerConfig
from tianzhou.store.config import FlushMode
from tianzhou.testing.small_broker import STORE, RecordingPeer, SmallBroker, frames
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest
from tianzhou.wire._generated_headers_send import SendMessageV2Request
from tianzhou.wire.codec import Header, encode_command
from tianzhou.wire.frame import SerialiseType
from tianzhou.wire.tables import SubscriptionGroupConfig

TOPIC = "orders"
COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4


def pull(
    broker: SmallBroker,
    peer: RecordingPeer,
    offset: int = 0,
    *,
    topic: str = TOPIC,
    group: str = "readers",
    queue_id: int = 0,
    sys_flag: int = SUBSCRIPTION,
    text: str | None = "*",
    kind: str | None = "TAG",
    version: int = 0,
    wait_ms: int = 0,
    code: int = RequestCode.PULL_MESSAGE,
    serialise_type: SerialiseType = SerialiseType.JSON,
    settle: bool = True,
) -> None:
    fields = PullMessageRequest(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=sys_flag | (SUSPEND if wait_ms else 0),
        commit_offset=5,
        suspend_timeout_ms=wait_ms,
        subscription=text,
        sub_version=version,
        expression_type=kind,
    )
    header = Header(code=code, opaque=77, ext=fields.to_ext(), serialise_type=serialise_type)
    broker.received(peer, encode_command(header), settle=settle)


def answer(broker: SmallBroker, offset: int = 0, **more: object) -> Header:
    peer = RecordingPeer()
    pull(broker, peer, offset, **more)  # pyright: ignore[reportArgumentType] - handed on as given
    (found,) = peer.answers()
    assert found.opaque == 77
    return found


@pytest.fixture
def broker() -> SmallBroker:
    made = SmallBroker()
    for number in range(10):
        tags = "even" if number % 2 == 0 else "odd"
        made.send(TOPIC, b"m%d" % number, {"TAGS": tags, "size": str(number)})
    return made


@pytest.mark.parametrize("serialise_type", list(SerialiseType))
@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
def test_pull_returns_stored_messages(
    broker: SmallBroker, code: int, serialise_type: SerialiseType
) -> None:
    found = answer(broker, 3, code=code, serialise_type=serialise_type)
    assert (found.code, found.remark) == (0, "FOUND")
    assert found.serialise_type is serialise_type
    assert found.ext == {
        "nextBeginOffset": "10",
        "minOffset": "0",
        "maxOffset": "10",
        "suggestWhichBrokerId": "0",
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }


@pytest.mark.parametrize("serialise_type", list(SerialiseType))
def test_pull_response_repeats_the_flags_of_topic_and_group(
    broker: SmallBroker, serialise_type: SerialiseType
) -> None:
    topics, groups = broker.slices.topics.topics, broker.slices.groups.tables.groups
    topic = topics.get(TOPIC)
    assert topic is not None
    topics.put(msgspec.structs.replace(topic, topic_sys_flag=3))
    groups.put(SubscriptionGroupConfig(group_name="readers", group_sys_flag=2))
    found = answer(broker, serialise_type=serialise_type)
    assert (found.ext["topicSysFlag"], found.ext["groupSysFlag"]) == ("3", "2")


def heartbeat(
    broker: SmallBroker, kind: str, text: str, version: int, model: str = "CLUSTERING"
) -> None:
    """A member of `readers` tells what it subscribes to."""
    body = {
        "clientID": "c",
        "consumerDataSet": [
            {
                "groupName": "readers",
                "messageModel": model,
                "subscriptionDataSet": [
                    {
                        "topic": TOPIC,
                        "subString": text,
                        "expressionType": kind,
                        "subVersion": version,
                    }
                ],
            }
        ],
    }
    header = Header(code=RequestCode.HEART_BEAT, opaque=1)
    broker.received(RecordingPeer(), encode_command(header, json.dumps(body).encode()))


@pytest.mark.parametrize(
    ("known", "asked", "count"),
    [
        (("TAG", "even"), ("TAG", None, 1), 5),
        (("TAG", "even"), ("TAG", None, 2), 10),  # all: the client compares tags itself
        (("TAG", "even"), (None, None, 2), 10),
        (("TAG", "even"), ("TAG", "odd", 2), 5),
        (("SQL92", "size > 6"), ("SQL92", None, 1), 3),
        (("SQL92", "size > 6"), ("SQL92", "size > 8", 2), 1),
        (("SQL92", "size > 6"), ("TAG", None, 2), 10),
        (("TAG", "even"), ("SQL92", None, 2), None),
        (("SQL92", "size > 6"), ("SQL92", None, 2), None),
    ],
)
def test_pull_newer_than_the_heartbeat_is_served_if_no_message_is_lost(
    broker: SmallBroker,
    known: tuple[str, str],
    asked: tuple[str | None, str | None, int],
    count: int | None,
) -> None:
    heartbeat(broker, *known, version=1)
    kind, text, version = asked
    peer = RecordingPeer()
    pull(broker, peer, sys_flag=0, kind=kind, text=text, version=version)
    batch = frames(bytes(peer._sent))
    (found,) = peer.answers()
    if count is None:
        assert found.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    else:
        assert found.code == 0
        body = bytes(batch.body(0))
        assert sum(b"m%d" % number in body for number in range(10)) == count


@pytest.mark.parametrize(
    ("offset", "code", "next_offset"),
    [
        (10, ResponseCode.PULL_NOT_FOUND, "10"),
        (11, ResponseCode.PULL_OFFSET_MOVED, "10"),
    ],
)
def test_pull_at_and_beyond_the_end_corrects_the_offset(
    broker: SmallBroker, offset: int, code: int, next_offset: str
) -> None:
    found = answer(broker, offset)
    assert (found.code, found.ext["nextBeginOffset"]) == (code, next_offset)


def test_pull_of_an_empty_queue_finds_nothing(broker: SmallBroker) -> None:
    assert answer(broker, 0, queue_id=1).code == ResponseCode.PULL_NOT_FOUND
    assert answer(broker, 3, queue_id=1).code == ResponseCode.PULL_OFFSET_MOVED


class Copies:
    """A broker that is not the master, with or without one to follow."""

    lacks_messages = True

    def where_next(self, unread_bytes: int) -> int:
        return 0


@pytest.mark.parametrize(("queue_id", "offset"), [(0, 11), (0, 1_000), (1, 3)])
def test_pull_at_a_replica_does_not_correct_offsets(
    broker: SmallBroker, queue_id: int, offset: int
) -> None:
    """A reader may know more of the master's log than this replica; it must not start over."""
    broker.slices.fetch.pull.group = Copies()
    found = answer(broker, offset, queue_id=queue_id)
    assert found.code == ResponseCode.PULL_NOT_FOUND
    assert found.ext["nextBeginOffset"] == str(offset)


@pytest.mark.parametrize(
    ("offset", "code", "next_offset"),
    [
        (12, ResponseCode.PULL_NOT_FOUND, "12"),
        (13, ResponseCode.PULL_NOT_FOUND, "13"),
        (14, ResponseCode.PULL_OFFSET_MOVED, "10"),
    ],
)
def test_pull_within_stored_but_invisible_messages_keeps_its_offset(
    offset: int, code: int, next_offset: str
) -> None:
    """Another copy may show a message before the master does, and send its reader back to it."""
    broker = SmallBroker(store_config=replace(STORE, flush_mode=FlushMode.SYNC))
    for _ in range(10):
        broker.send(TOPIC, b"visible")
    answer(broker, 10)  # create the group now: saving it flushes the log
    for opaque in range(3):
        fields = SendMessageV2Request(
            producer_group="producers",
            topic=TOPIC,
            default_topic="TBW102",
            queue_id=0,
            sys_flag=0,
            born_timestamp_ms=0,
            flag=0,
            properties="UNIQ_KEY\x01A",
        )
        header = Header(code=RequestCode.SEND_MESSAGE_V2, opaque=opaque, ext=fields.to_ext())
        broker.received(RecordingPeer(), encode_command(header, b"not flushed"))
    found = answer(broker, offset)
    assert (found.code, found.ext["nextBeginOffset"]) == (code, next_offset)
    assert found.ext["maxOffset"] == "10"


def test_pull_with_tags_returns_matches_only(broker: SmallBroker) -> None:
    assert answer(broker, text="odd").ext["nextBeginOffset"] == "10"
    nothing = answer(broker, text="neither")
    assert nothing.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert nothing.ext["nextBeginOffset"] == "10"


def test_pull_with_sql_returns_matches_only(broker: SmallBroker) -> None:
    assert answer(broker, text="size > 7", kind="SQL92").code == 0
    none = answer(broker, text="size > 70", kind="SQL92")
    assert none.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert (
        answer(broker, text="size >", kind="SQL92").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    )


def test_pull_that_is_invalid_is_rejected(broker: SmallBroker) -> None:
    assert answer(broker, topic="unknown").code == ResponseCode.TOPIC_NOT_EXIST
    assert answer(broker, queue_id=99).code == ResponseCode.INVALID_PARAMETER
    assert answer(broker, sys_flag=0).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    broker.slices.topics.permission.set(2)
    assert forbidden_by(answer(broker)) == 1


def forbidden_by(found: Header) -> int:
    """RocketMQ's number for what forbids a pull."""
    assert found.code == ResponseCode.NO_PERMISSION
    return int(found.ext["forbiddenType"])


def test_pull_without_permission_reports_what_forbids_it(
    broker: SmallBroker,
) -> None:
    topics, groups = broker.slices.topics.topics, broker.slices.groups.tables.groups
    topic = topics.get(TOPIC)
    assert topic is not None
    topics.put(msgspec.structs.replace(topic, perm=2))
    assert forbidden_by(answer(broker)) == 3
    topics.put(topic)
    groups.allow_read("readers", TOPIC, allowed=False)
    assert forbidden_by(answer(broker)) == 5


def test_pull_of_a_group_that_may_not_broadcast_reports_it(broker: SmallBroker) -> None:
    broker.slices.groups.tables.groups.put(
        SubscriptionGroupConfig(group_name="readers", consume_broadcast_enable=False)
    )
    heartbeat(broker, "TAG", "*", 1, model="BROADCASTING")
    assert forbidden_by(answer(broker, sys_flag=0)) == 4


def test_pull_of_a_forbidden_group_is_rejected(broker: SmallBroker) -> None:
    body = fastjson.encode(SubscriptionGroupConfig(group_name="readers", consume_enable=False))
    made = broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    assert made is not None
    assert made.code == 0
    assert forbidden_by(answer(broker)) == 2


def test_pull_commits_the_offset_it_carries(broker: SmallBroker) -> None:
    answer(broker, sys_flag=SUBSCRIPTION)
    assert broker.slices.groups.tables.offsets.get("readers", TOPIC, 0) is None
    answer(broker, sys_flag=SUBSCRIPTION | COMMIT)
    assert broker.slices.groups.tables.offsets.get("readers", TOPIC, 0) == 5


def test_held_pull_is_resumed_by_a_new_message(broker: SmallBroker) -> None:
    peer = RecordingPeer()
    pull(broker, peer, 10, wait_ms=15_000)
    assert peer.answers() == []
    assert len(broker.slices.fetch.pull.waiters) == 1
    broker.send(TOPIC, b"at last")
    (woken,) = peer.answers()
    assert (woken.code, woken.ext["nextBeginOffset"]) == (0, "11")
    assert len(broker.slices.fetch.pull.waiters) == 0


def test_held_pull_ignores_a_message_that_does_not_match(broker: SmallBroker) -> None:
    peer = RecordingPeer()
    pull(broker, peer, 10, wait_ms=15_000, text="wanted")
    broker.send(TOPIC, b"other", {"TAGS": "unwanted"})
    assert peer.answers() == []
    broker.send(TOPIC, b"this", {"TAGS": "wanted"})
    (woken,) = peer.answers()
    assert (woken.code, woken.ext["nextBeginOffset"]) == (0, "12")


def test_held_pull_that_times_out_returns_the_next_offset(broker: SmallBroker) -> None:
    peer = RecordingPeer()
    pull(broker, peer, 10, wait_ms=1_000, text="wanted")
    broker.send(TOPIC, b"other", {"TAGS": "unwanted"})
    broker.clock.advance(ms=999)
    broker.slices.fetch.pull.tick()
    assert peer.answers() == []
    broker.clock.advance(ms=2)
    broker.slices.fetch.pull.tick()
    (late,) = peer.answers()
    assert late.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert late.ext["nextBeginOffset"] == "11"


def test_held_pull_of_an_empty_queue_times_out(broker: SmallBroker) -> None:
    peer = RecordingPeer()
    pull(broker, peer, 0, queue_id=1, wait_ms=1_000)
    broker.clock.advance(ms=1_001)
    broker.slices.fetch.pull.tick()
    assert [found.code for found in peer.answers()] == [ResponseCode.PULL_NOT_FOUND]


def test_pull_with_short_polling_waits_at_most_a_second() -> None:
    broker = SmallBroker(config=BrokerConfig(long_polling=False))
    broker.send(TOPIC, b"first")
    peer = RecordingPeer()
    pull(broker, peer, 1, wait_ms=15_000)
    broker.clock.advance(ms=1_001)
    broker.slices.fetch.pull.tick()
    assert [found.code for found in peer.answers()] == [ResponseCode.PULL_NOT_FOUND]


def test_held_pull_of_a_closed_connection_is_dropped(broker: SmallBroker) -> None:
    peer = RecordingPeer()
    pull(broker, peer, 10, wait_ms=15_000)
    peer.close()
    broker.slices.fetch.pull.tick()
    assert len(broker.slices.fetch.pull.waiters) == 0


@pytest.mark.parametrize(
    ("properties", "told"),
    [("UNIQ_KEY\x01U\x02", []), ("A\x01b\x02", [0])],
    ids=["gathered with others of the round", "stored by itself"],
)
def test_pull_finds_a_message_once_its_send_is_acknowledged(
    broker: SmallBroker, properties: str, told: list[int]
) -> None:
    """Dispatch comes once for all that one round of the loop has read; a pull may come before."""
    producer, consumer = RecordingPeer(), RecordingPeer()
    fields = SendMessageV2Request(
        producer_group="producers",
        topic=TOPIC,
        default_topic="TBW102",
        queue_id=0,
        sys_flag=0,
        born_timestamp_ms=0,
        flag=0,
        properties=properties,
    )
    header = Header(code=RequestCode.SEND_MESSAGE_V2, opaque=1, ext=fields.to_ext())
    broker.received(producer, encode_command(header, b"just stored"), settle=False)
    assert [answer.code for answer in producer.answers()] == told
    pull(broker, consumer, 10, settle=False)
    (found,) = consumer.answers()
    assert (found.code, found.ext["nextBeginOffset"]) == (0, "11")
    assert told + [answer.code for answer in producer.answers()] == [0]
