"""How far groups are behind, in messages and in time."""

from administrator import join, make_topic

from tianzhou.base.kinds import QueueOffset
from tianzhou.base.steps import finish
from tianzhou.broker.groups.lags import Lag, Lags
from tianzhou.testing.small_broker import SmallBroker

TOPIC, GROUP = "orders", "billing"


def lags_of(broker: SmallBroker) -> Lags:
    return Lags(
        broker.store,
        broker.slices.topics.topics,
        broker.slices.groups.tables.offsets,
        broker.slices.groups.tables.sessions,
    )


def rows(broker: SmallBroker) -> dict[tuple[str, str, int], int]:
    return {
        (lag.group, lag.queue.topic, lag.queue.queue_id): lag.messages
        for lag in lags_of(broker).all()
    }


def filled() -> SmallBroker:
    """Three messages in queue 0, a second apart; one in queue 1. A group that has read one."""
    broker = SmallBroker()
    make_topic(broker, TOPIC, 2)
    for _ in range(3):
        broker.send(TOPIC)
        broker.clock.advance(seconds=1)
    broker.send(TOPIC, queue_id=1)
    broker.slices.groups.tables.offsets.put(GROUP, TOPIC, 0, 1)
    return broker


def test_lag_covers_every_queue_of_a_topic_the_group_has_started() -> None:
    broker = filled()
    assert rows(broker) == {(GROUP, TOPIC, 0): 2, (GROUP, TOPIC, 1): 1}


def test_lag_age_is_that_of_the_oldest_waiting_message() -> None:
    broker = filled()
    lags = lags_of(broker)
    every = sorted(lags.all(), key=lambda lag: lag.queue)
    # The second message of queue 0 is two seconds old, the only one of queue 1 came just now.
    assert finish(lags.ages_ms(every, broker.clock.now_ms())) == [2_000, 0]
    broker.clock.advance(seconds=10)
    assert finish(lags.ages_ms(every, broker.clock.now_ms())) == [12_000, 10_000]
    broker.slices.groups.tables.offsets.put(GROUP, TOPIC, 0, 3)
    every = sorted(lags.all(), key=lambda lag: lag.queue)
    assert finish(lags.ages_ms(every, broker.clock.now_ms())) == [0, 10_000]


def test_lag_excludes_expired_messages() -> None:
    broker = filled()
    broker.store.queues.of_topic(TOPIC)[0].min_offset = QueueOffset(2)
    assert rows(broker)[GROUP, TOPIC, 0] == 1


def test_lag_excludes_topics_that_a_live_group_left() -> None:
    broker = filled()
    make_topic(broker, "audits", 1)
    join(broker, GROUP, "audits")
    assert rows(broker) == {}


def test_lag_excludes_deleted_topics_and_internal_groups() -> None:
    broker = filled()
    broker.slices.groups.tables.offsets.put(GROUP, "gone", 0, 0)
    broker.slices.groups.tables.offsets.put("CID_RMQ_SYS_TRANS", TOPIC, 0, 0)
    assert rows(broker).keys() == {(GROUP, TOPIC, 0), (GROUP, TOPIC, 1)}


def test_lag_list_has_the_largest_lags() -> None:
    lags = lags_of(filled())
    every = list(lags.all())
    assert lags.largest(every, 2) == every
    assert [lag.messages for lag in lags.largest(every, 1)] == [2]
    assert isinstance(every[0], Lag)


def test_lag_excludes_dead_letters_and_internal_groups() -> None:
    broker = filled()
    dead = f"%DLQ%{GROUP}"
    make_topic(broker, dead, 1)
    broker.send(dead)
    broker.slices.groups.tables.offsets.put(GROUP, dead, 0, 0)
    broker.slices.groups.tables.offsets.put("CID_RMQ_SYS_TRANS", TOPIC, 0, 0)
    assert rows(broker) == {(GROUP, TOPIC, 0): 2, (GROUP, TOPIC, 1): 1}
