"""Batching: which batches leave, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.base.errors import UsageError
from tianzhou.client.core.batching import Batch, Kind, OpenBatches, size_in_batch
from tianzhou.client.core.send_request import batch_request
from tianzhou.client.options import Batching, ProducerOptions
from tianzhou.record.message import Message

KIND = Kind("t", None, True)


def test_open_batch_is_returned_at_its_message_limit() -> None:
    gatherer: OpenBatches[int] = OpenBatches(Batching(count_max=3))
    assert [gatherer.add(KIND, Message("t", b"x"), n) for n in range(2)] == [[], []]
    (full,) = gatherer.add(KIND, Message("t", b"x"), 2)
    assert full.tokens == [0, 1, 2]
    assert gatherer.open_batch(KIND) is None


def test_open_batch_is_returned_before_its_byte_limit() -> None:
    gatherer: OpenBatches[int] = OpenBatches(Batching(bytes_max=1024))
    large = Message("t", bytes(600))
    assert gatherer.add(KIND, large, 0) == []
    (first,) = gatherer.add(KIND, large, 1)
    assert first.tokens == [0]
    rest = gatherer.take(KIND)
    assert rest is not None
    assert rest.tokens == [1]


def test_open_batches_are_separate_for_each_kind() -> None:
    gatherer: OpenBatches[str] = OpenBatches(Batching())
    for topic, wait in (("t", True), ("t", False), ("u", True)):
        gatherer.add(Kind(topic, None, wait), Message(topic, b"x", wait_store_ok=wait), topic)
    assert [len(batch.messages) for batch in gatherer.take_all()] == [1, 1, 1]
    assert gatherer.take(KIND) is None


def test_open_batches_reject_large_and_delayed_messages() -> None:
    gatherer: OpenBatches[int] = OpenBatches(Batching(bytes_max=1024))
    assert gatherer.accepts(Message("t", bytes(100)))
    assert not gatherer.accepts(Message("t", bytes(2000)))
    assert not gatherer.accepts(Message("t", b"x", delay_level=1))


@given(st.lists(st.integers(1, 1500), max_size=60), st.integers(1, 10))
def test_open_batches_return_messages_once_in_order_within_limits(
    sizes: list[int], count_max: int
) -> None:
    rules = Batching(count_max=count_max, bytes_max=2048)
    gatherer: OpenBatches[int] = OpenBatches(rules)
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
