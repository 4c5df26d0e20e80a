"""Commits beyond the end of a queue: refused by a master, accepted by a replica."""

import pytest

from tianzhou.testing.small_broker import SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest
from tianzhou.wire.codec import Header

TOPIC, GROUP, COUNT = "orders", "readers", 3
COMMIT, SUBSCRIPTION = 1, 4


def stocked() -> SmallBroker:
    made = SmallBroker()
    for _ in range(COUNT):
        made.send(TOPIC, b"x")
    return made


def commit(broker: SmallBroker, offset: int) -> Header:
    ext = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": "0",
        "commitOffset": str(offset),
    }
    answer = broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    assert answer is not None
    return answer


def committed(broker: SmallBroker) -> int | None:
    return broker.slices.groups.tables.offsets.get(GROUP, TOPIC, 0)


def pull(broker: SmallBroker, offset: int) -> Header:
    fields = PullMessageRequest(
        consumer_group=GROUP,
        topic=TOPIC,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=SUBSCRIPTION | COMMIT,
        commit_offset=offset,
        suspend_timeout_ms=0,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
    )
    answer = broker.ask(RequestCode.PULL_MESSAGE, fields.to_ext())
    assert answer is not None
    return answer


def test_commit_beyond_the_end_at_a_master_is_rejected() -> None:
    broker = stocked()
    assert commit(broker, COUNT).code == 0, "the end itself is where a group waits"
    for beyond in (COUNT + 1, 2**62, 2**63 - 1):
        refused = commit(broker, beyond)
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert f"offset {beyond} is beyond the end of queue 0 of {TOPIC}" in (refused.remark or "")
    assert committed(broker) == COUNT


def test_commit_in_a_pull_beyond_the_end_is_ignored() -> None:
    broker = stocked()
    assert pull(broker, 2).code == 0
    assert pull(broker, 2**62).code == 0, "the pull itself is answered"
    assert committed(broker) == 2


def test_commit_in_a_pull_beyond_the_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    pull(stocked(), 2**62)
    (line,) = [one for one in caplog.records if one.message == "offset.ignored"]
    assert (vars(line)["offset"], vars(line)["end"]) == (2**62, COUNT)


def test_commit_of_old_offsets_after_a_topic_was_recreated_is_rejected() -> None:
    broker = stocked()
    assert commit(broker, COUNT).code == 0
    assert broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}) is not None
    broker.send(TOPIC, b"first of the new topic")
    assert commit(broker, COUNT).code == ResponseCode.INVALID_PARAMETER
    assert committed(broker) is None, "the group gets the new messages"
    assert commit(broker, 1).code == 0


def test_commit_beyond_the_end_at_a_replica_is_accepted() -> None:
    """It may be about messages that the replica has yet to get."""
    broker = stocked()
    broker.store.stop_writing()
    assert commit(broker, COUNT + 5).code == 0
    assert committed(broker) == COUNT + 5
