"""What several brokers say, put together."""

import msgspec
import pytest

from tianzhou.client.core.views import (
    forecast,
    groups_together,
    size_text,
    span_text,
    topics_together,
)
from tianzhou.wire.view_bodies import (
    BrokerView,
    Disk,
    GroupRow,
    History,
    TopicRow,
    Totals,
)

GIB = 1 << 30
NOW = 1_700_000_000_000
DISK = Disk(
    clean_ratio=0.75,
    free=60 * GIB,
    log_size=GIB,
    put_size_per_hour=0.0,
    put_size_per_minute=0.0,
    refuse_ratio=0.90,
    retention_hours=72,
    total=100 * GIB,
)
GROUP = GroupRow(
    dead=1,
    dead_ms=5,
    dead_not_replayed=1,
    enabled=True,
    get_per_second=1.0,
    is_abandoned=False,
    is_consistent=True,
    is_system=False,
    lag=10,
    members=2,
    moved_ms=50,
    name="billing",
    oldest_ms=100,
    retrying=2,
    stuck=0,
    stuck_ms=0,
    topics=("orders",),
)
TOPIC = TopicRow(
    count=5,
    get_per_second=1.0,
    groups=2,
    is_system=False,
    name="orders",
    order=False,
    perm=6,
    put_per_second=2.0,
    put_size_per_second=100.0,
    read_queues=4,
    write_queues=4,
)
BROKER = BrokerView(
    busiest=(), cluster="c", damaged=0, disk=DISK, dispatch_behind=0, events=(), flush_behind=0,
    get_per_second=0.0, history=History(step_s=5), is_broken=False, name="a", now_ms=NOW,
    permission=6, put_longest_ms=0.0, put_p99_ms=0.0, put_per_second=0.0, put_today=0, refusal="",
    started_ms=0,
    totals=Totals(
        consumers=0, dead=0, groups=0, halves=0, held_pulls=0, lag=0, producers=0, timers=0,
        topics=0,
    ),
    troubled=(), version="1",
)  # fmt: skip


# Together


def test_merged_views_add_messages_but_not_members() -> None:
    (topic,) = topics_together([TOPIC, TOPIC])
    assert (topic.count, topic.read_queues, topic.groups) == (10, 8, 2)
    assert (topic.put_per_second, topic.put_size_per_second) == (4.0, 200.0)
    other = msgspec.structs.replace(
        GROUP, members=1, oldest_ms=40, moved_ms=70, is_consistent=False, topics=("refunds",)
    )
    (group,) = groups_together([GROUP, other])
    assert (group.lag, group.members, group.dead, group.retrying) == (20, 2, 2, 4)
    assert (group.oldest_ms, group.moved_ms, group.is_consistent) == (40, 70, False)
    assert group.topics == ("orders", "refunds")


@pytest.mark.parametrize(("one", "other", "first"), [(0, 7, 7), (7, 0, 7), (3, 7, 3), (-1, 7, -1)])
def test_merged_view_oldest_time_ignores_unknown_ones(one: int, other: int, first: int) -> None:
    rows = [msgspec.structs.replace(GROUP, oldest_ms=at) for at in (one, other)]
    assert groups_together(rows)[0].oldest_ms == first


def test_merged_views_are_sorted_by_name() -> None:
    rows = [msgspec.structs.replace(TOPIC, name=name) for name in "cab"]
    assert [row.name for row in topics_together(rows)] == ["a", "b", "c"]


# The disk


def test_forecast_of_a_filling_disk_has_the_time_until_rejection() -> None:
    filling = msgspec.structs.replace(DISK, put_size_per_hour=GIB / 1000, put_size_per_minute=GIB)
    seen = forecast(filling)
    assert seen is not None
    assert (seen.used_ratio, seen.bytes_per_second) == (0.4, GIB)
    assert seen.refuse_s == pytest.approx(50)
    quiet = forecast(DISK)
    assert quiet is not None
    assert quiet.refuse_s is None
    assert forecast(msgspec.structs.replace(DISK, total=0)) is None


# Numbers for people


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.25, "250 ms"),
        (1.3, "1.3 s"),
        (42, "42 s"),
        (60, "1 min"),
        (125, "2 min 5 s"),
        (3_600, "1 h"),
        (90_061, "1 d 1 h"),
        (86_405, "1 d"),
    ],
)
def test_span_text_uses_readable_units(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (200 << 20, "200 MiB"),
        (1 << 60, "1024.0 PiB"),
    ],
)
def test_size_text_uses_binary_units(size: float, text: str) -> None:
    assert size_text(size) == text
