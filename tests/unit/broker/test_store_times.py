"""Store times of single messages."""

from tianzhou.base.kinds import queue_key
from tianzhou.broker.topics.store_times import last_store_time, store_time
from tianzhou.testing.small_broker import SmallBroker


def test_store_time_of_a_missing_message_is_none() -> None:
    broker = SmallBroker()
    key = queue_key("orders", 0)
    assert last_store_time(broker.store, key) is None
    start_ms = broker.clock.now_ms()
    for _ in range(3):
        broker.send("orders")
        broker.clock.advance(seconds=1)
    assert store_time(broker.store, key, 1) == start_ms + 1000
    assert last_store_time(broker.store, key) == start_ms + 2000
    assert store_time(broker.store, key, 3) is None
    assert store_time(broker.store, key, -1) is None
