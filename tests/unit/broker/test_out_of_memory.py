"""A lack of memory concerns the request that it meets: others in the same round get responses."""

from dataclasses import replace
from typing import Any

import pytest

from tianzhou.base.kinds import Bytes
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.config import FlushMode
from tianzhou.testing.small_broker import STORE, RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest
from tianzhou.wire._generated_headers_send import SendMessageV2Request
from tianzhou.wire.codec import Header, encode_command

TOPIC = "orders"


class GreedyPeer(RecordingPeer):
    """There is no memory for what is sent to it."""

    def __init__(self, failures: int = 100) -> None:
        super().__init__()
        self._failures = failures

    def send(self, data: Bytes) -> None:
        if self._failures > 0:
            self._failures -= 1
            raise MemoryError
        super().send(data)


def send_frame(code: int = RequestCode.SEND_MESSAGE_V2) -> bytes:
    fields = SendMessageV2Request(
        producer_group="producers",
        topic=TOPIC,
        default_topic="TBW102",
        queue_id=0,
        sys_flag=0,
        born_timestamp_ms=1_700_000_000_000,
        flag=0,
        properties="KEYS\x01k\x02",
    )
    return encode_command(Header(code=code, opaque=7, ext=fields.to_ext()), b"body")


def pull_frame(offset: int) -> bytes:
    fields = PullMessageRequest(
        consumer_group="readers",
        topic=TOPIC,
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=6,
        commit_offset=0,
        suspend_timeout_ms=15_000,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
    )
    return encode_command(Header(code=RequestCode.PULL_MESSAGE, opaque=77, ext=fields.to_ext()))


@pytest.fixture
def broker() -> SmallBroker:
    made = SmallBroker()
    made.send(TOPIC, b"the first makes the topic")
    return made


@pytest.mark.parametrize("failures", [1, 100])
def test_long_polls_after_one_out_of_memory_get_responses(
    broker: SmallBroker, failures: int
) -> None:
    greedy, others = GreedyPeer(failures), [RecordingPeer(port=number) for number in (1, 2)]
    for peer in (greedy, *others):
        broker.received(peer, pull_frame(offset=1))
    broker.send(TOPIC, b"wakes all three")
    assert [[found.code for found in peer.answers()] for peer in others] == [[0], [0]]
    if failures == 1:
        (refused,) = greedy.answers()
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "out of memory" in (refused.remark or "")
    else:
        assert not greedy.is_open, "there was no memory for a response at all"


def test_long_polls_expired_after_one_out_of_memory_get_responses(
    broker: SmallBroker,
) -> None:
    greedy, other = GreedyPeer(), RecordingPeer(port=1)
    for peer in (greedy, other):
        broker.received(peer, pull_frame(offset=1))
    broker.clock.advance(seconds=20)
    broker.slices.fetch.pull.tick()
    assert len(other.answers()) == 1
    assert not greedy.is_open


def test_sends_batched_with_one_out_of_memory_get_responses(broker: SmallBroker) -> None:
    greedy, other = GreedyPeer(), RecordingPeer(port=1)
    broker.received(greedy, send_frame(), settle=False)
    broker.received(other, send_frame(), settle=False)
    broker.slices.base.writer.settle()
    broker.flush()
    (found,) = other.answers()
    assert found.code == ResponseCode.SUCCESS
    assert not greedy.is_open
    assert greedy.waiting_count == other.waiting_count == 0


def raise_memory_error(*_: Any, **__: Any) -> None:
    raise MemoryError


def test_sends_for_which_the_log_has_no_memory_are_rejected(
    broker: SmallBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = broker.store.log.end
    monkeypatch.setattr(CommitLog, "_plan", raise_memory_error)
    peers = [RecordingPeer(port=number) for number in (1, 2)]
    for peer in peers:
        broker.received(peer, send_frame(), settle=False)
    broker.slices.base.writer.settle()
    for peer in peers:
        (refused,) = peer.answers()
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "out of memory" in (refused.remark or "")
    assert broker.store.log.end == end
    assert not broker.store.is_broken
    monkeypatch.undo()
    broker.received(peers[0], send_frame())
    broker.flush()
    assert [found.code for found in peers[0].answers()] == [ResponseCode.SUCCESS]


def test_responses_are_released_when_another_step_is_out_of_memory() -> None:
    broker = SmallBroker(store_config=replace(STORE, flush_mode=FlushMode.SYNC))
    broker.send(TOPIC, b"the first makes the topic")
    peer = RecordingPeer()
    broker.received(peer, send_frame(), settle=False)
    broker.slices.base.writer.written.append(raise_memory_error)
    with pytest.raises(MemoryError):
        broker.slices.base.writer.settle()
    with pytest.raises(MemoryError):
        broker.flush()
    assert [found.code for found in peer.answers()] == [ResponseCode.SUCCESS]
