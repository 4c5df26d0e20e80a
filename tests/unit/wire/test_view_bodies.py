"""Bodies of a dashboard's pages survive the way; what a newer broker adds is passed over."""

import pytest

from tianzhou.wire import fastjson
from tianzhou.wire.errors import BodyError
from tianzhou.wire.view_bodies import (
    BrokerView,
    Disk,
    Event,
    GroupRow,
    GroupsView,
    History,
    TopicRow,
    TopicsView,
    Totals,
    decode_broker_view,
    decode_groups_view,
    decode_topics_view,
)

TOPIC = TopicRow(
    count=7,
    get_per_second=0.5,
    groups=1,
    is_system=False,
    name="orders",
    order=True,
    perm=6,
    put_per_second=1.5,
    put_size_per_second=300.0,
    read_queues=4,
    write_queues=4,
)
GROUP = GroupRow(
    dead=1,
    dead_ms=3,
    dead_not_replayed=1,
    enabled=True,
    get_per_second=2.0,
    is_abandoned=False,
    is_consistent=False,
    is_system=False,
    lag=9,
    members=2,
    moved_ms=5,
    name="billing",
    oldest_ms=-1,
    retrying=1,
    stuck=1,
    stuck_ms=4,
    topics=("orders",),
)
BROKER = BrokerView(
    busiest=(TOPIC,), cluster="c", damaged=0,
    disk=Disk(
        clean_ratio=0.75, free=5, log_size=3, put_size_per_hour=1.0, put_size_per_minute=2.0,
        refuse_ratio=0.9, retention_hours=72, total=10,
    ),
    dispatch_behind=0,
    events=(
        Event(
            ended_ms=0, group="billing", kind="frozen", remedy="look", queue_id=0, said="it stays",
            since_ms=1, topic="orders",
        ),
    ),
    flush_behind=0, get_per_second=1.0, history=History(puts=(1.0,), gets=(2.0,), step_s=5),
    is_broken=False, name="broker-a", now_ms=10, permission=6, put_longest_ms=1.0, put_p99_ms=0.5,
    put_per_second=1.0, put_today=4, refusal="", started_ms=1,
    totals=Totals(
        consumers=1, dead=1, groups=1, halves=0, held_pulls=2, lag=9, producers=1, timers=0,
        topics=1,
    ),
    troubled=(GROUP,), version="0.1",
)  # fmt: skip


def test_view_bodies_round_trip() -> None:
    assert decode_broker_view(fastjson.encode(BROKER)) == BROKER
    topics = TopicsView(now_ms=1, topics=(TOPIC,))
    assert decode_topics_view(fastjson.encode(topics)) == topics
    groups = GroupsView(now_ms=1, groups=(GROUP,))
    assert decode_groups_view(fastjson.encode(groups)) == groups


def test_view_bodies_use_the_names_of_java() -> None:
    assert b'"putPerSecond":1.5' in fastjson.encode(TOPIC)


def test_view_bodies_ignore_unknown_fields_and_reject_missing_ones() -> None:
    text = fastjson.encode(TopicsView(now_ms=1, topics=()))
    assert decode_topics_view(text.replace(b"{", b'{"new":[1],', 1)).now_ms == 1
    with pytest.raises(BodyError, match="nowMs"):
        decode_topics_view(b'{"topics":[]}')
