"""Offsets, limits and partitions."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.client.bulk.reader import QueueRange
from tianzhou.spark import plan
from tianzhou.spark.errors import DataLoss, SourceError
from tianzhou.spark.option_values import EARLIEST, LATEST
from tianzhou.wire.queues import MessageQueue


def queue(queue_id: int, topic: str = "orders", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)


def test_offsets_round_trip_through_the_option_format() -> None:
    offsets = {queue(1): 5, queue(0): 3, queue(0, "paid", "broker-b"): 7}
    table = plan.to_json(offsets)
    assert table == {"orders": {"broker-a": {"0": 3, "1": 5}}, "paid": {"broker-b": {"0": 7}}}
    assert plan.from_json(table) == offsets


def test_resolve_accepts_words_and_numbers() -> None:
    earliest, latest = {queue(0): 2, queue(1): 4}, {queue(0): 10, queue(1): 20}
    asked = {"orders": {"broker-a": {0: EARLIEST}}}

    def resolved(given: object, default: int = LATEST) -> plan.Offsets:
        return plan.resolve(
            given,  # pyright: ignore[reportArgumentType] # each form in turn
            earliest=earliest,
            latest=latest,
            default=default,
            option="startingOffsets",
        )

    assert resolved(EARLIEST) == earliest
    assert resolved(LATEST) == latest
    assert resolved(asked) == {queue(0): 2, queue(1): 20}
    assert resolved({"orders": {"broker-a": {1: 7}}}, EARLIEST) == {queue(0): 2, queue(1): 7}
    with pytest.raises(SourceError, match=r"queue 5 of topic orders .* not one of the 2 queues"):
        resolved({"orders": {"broker-a": {5: 7}}})


def test_check_inside_rejects_offsets_out_of_range() -> None:
    with pytest.raises(SourceError, match=r"offset 30 of queue 0 .* offsets 2 to 10"):
        plan.check_inside({queue(0): 30}, {queue(0): 2}, {queue(0): 10}, "endingOffsets")
    assert plan.clamped({queue(0): 30}, {queue(0): 2}, {queue(0): 10}) == {queue(0): 10}


def test_deleted_offsets_are_an_error_or_skipped() -> None:
    start, end, earliest = {queue(0): 5}, {queue(0): 20}, {queue(0): 12}
    with pytest.raises(DataLoss, match=r"7 messages with offsets 5 to 11 are gone.*from 12 on"):
        plan.check_kept(start, end, earliest)
    assert plan.kept(start, end, earliest) == {queue(0): 12}
    # All messages are deleted: nothing is read, and nothing after the end.
    assert plan.kept(start, {queue(0): 8}, earliest) == {queue(0): 8}


def test_queue_that_ends_before_the_position_is_data_loss() -> None:
    with pytest.raises(DataLoss, match=r"ends at offset 3, before 9"):
        plan.check_kept({queue(0): 9}, {queue(0): 3}, {queue(0): 0})
    assert plan.kept({queue(0): 9}, {queue(0): 3}, {queue(0): 0}) == {queue(0): 0}


SPANS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 5000)), min_size=1, max_size=8)


@given(SPANS, st.integers(1, 10_000))
def test_limited_keeps_the_limit_and_starves_no_queue(
    spans: list[tuple[int, int]], rows: int
) -> None:
    start = {queue(n): first for n, (first, _) in enumerate(spans)}
    latest = {queue(n): first + size for n, (first, size) in enumerate(spans)}
    end = plan.limited(start, latest, rows)
    taken = {q: end[q] - start[q] for q in end}
    total = sum(size for _, size in spans)
    assert sum(taken.values()) == min(rows, total)
    assert all(start[q] <= end[q] <= latest[q] for q in end)
    waiting = [q for q in end if latest[q] > start[q]]
    if rows >= len(waiting):
        assert all(taken[q] > 0 for q in waiting)
    assert plan.limited(start, latest, rows) == end


@given(SPANS, st.one_of(st.none(), st.integers(1, 3000)), st.integers(1, 20))
def test_divided_covers_every_offset_once(
    spans: list[tuple[int, int]], rows_max: int | None, partitions_min: int
) -> None:
    start = {queue(n): first for n, (first, _) in enumerate(spans)}
    end = {queue(n): first + size for n, (first, size) in enumerate(spans)}
    tasks = plan.divided(
        plan.ranges_of(start, end), rows_max=rows_max, partitions_min=partitions_min
    )
    found: dict[MessageQueue, list[tuple[int, int]]] = {}
    for task in tasks:
        assert task
        for part in task:
            found.setdefault(part.queue, []).append((part.start, part.end))
        if rows_max is not None:
            assert sum(part.end - part.start for part in task) <= rows_max
    for q, parts in found.items():
        parts.sort()
        assert (parts[0][0], parts[-1][1]) == (start[q], end[q])
        assert all(before[1] == after[0] for before, after in pairwise(parts))
    total = sum(size for _, size in spans)
    assert plan.row_count(start, end) == total
    if total >= partitions_min:
        assert len(tasks) >= partitions_min


def test_divided_combines_small_ranges() -> None:
    small = [QueueRange(queue(n), 0, 100) for n in range(16)]
    assert len(plan.divided(small, rows_max=None, partitions_min=1)) == 1
    assert len(plan.divided(small, rows_max=None, partitions_min=4)) == 4
