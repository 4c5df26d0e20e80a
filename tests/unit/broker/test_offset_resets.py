"""Timestamps of resets: what a slave compares before it hands offsets over."""

from tianzhou.broker.groups import offset_resets
from tianzhou.broker.groups.offset_resets import DELETIONS_MAX, OffsetResets

KEY = "orders@readers"


def test_offset_resets_latest_is_that_of_the_queue() -> None:
    resets = OffsetResets({})
    assert resets.latest(KEY, 0) == 0
    resets.note(KEY, 0, 500)
    assert (resets.latest(KEY, 0), resets.latest(KEY, 1)) == (500, 0)


def test_offset_resets_latest_grows_although_the_clock_goes_back() -> None:
    resets = OffsetResets({})
    resets.note(KEY, 0, 500)
    resets.note(KEY, 0, 100)
    assert resets.latest(KEY, 0) == 501


def test_offset_resets_deleted_topic_or_group_resets_all_its_rows() -> None:
    resets = OffsetResets({})
    resets.note_deleted(topic="orders", now_ms=500)
    assert (resets.latest(KEY, 7), resets.latest("bills@readers", 7)) == (500, 0)
    resets.note_deleted(group="readers", now_ms=600)
    assert (resets.latest(KEY, 7), resets.latest("bills@readers", 7)) == (600, 600)
    assert resets.latest("bills@others", 7) == 0


def test_offset_resets_over_the_limit_drop_the_oldest_deletion() -> None:
    resets = OffsetResets({KEY: {0: 1}})
    for number in range(DELETIONS_MAX + 1):
        resets.note_deleted(topic=f"topic-{number}", now_ms=1000 + number)
    assert resets.latest("topic-0@readers", 0) == 0
    assert resets.latest("topic-1@readers", 0) == 1001
    assert resets.latest(KEY, 0) == 1, "a reset is as many rows as offsets, and stays"
    assert len(resets.rows()) == offset_resets.DELETIONS_MAX + 1


def test_offset_resets_merge_keeps_the_later_timestamp() -> None:
    resets = OffsetResets({KEY: {0: 500, 1: 700}})
    resets.merge({KEY: {0: 600, 1: 600}, "bills@readers": {0: 1}})
    assert resets.rows() == {KEY: {0: 600, 1: 700}, "bills@readers": {0: 1}}
