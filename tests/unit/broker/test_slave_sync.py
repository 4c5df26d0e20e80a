"""What a slave takes from its master's responses."""

import pytest

from tianzhou.base.errors import RemoteProtocolError
from tianzhou.base.kinds import queue_key
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import Groups
from tianzhou.broker.replica.slave_sync import (
    SlaveSync,
    Tables,
    _log_end_and_timers,
)
from tianzhou.broker.topics.topics import Topics
from tianzhou.record.chunk import Entry, build
from tianzhou.record.ids import Host, encode_host
from tianzhou.store.config import StoreConfig
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.wire import fastjson
from tianzhou.wire.replication_bodies import LOG_END, TIMERS
from tianzhou.wire.tables import DataVersion, TopicConfigTable


def test_progress_without_our_fields_is_decoded_as_rocketmqs() -> None:
    assert _log_end_and_timers({}) == (0, None)


@pytest.mark.parametrize(
    "ext",
    [
        {LOG_END: "x"},
        {LOG_END: "9" * 10_000},
        {TIMERS: ""},
        {TIMERS: "[]"},
        {TIMERS: "[" * 100_000},
        {TIMERS: '{"a":' * 100_000},
    ],
    ids=["text", "too long", "nothing", "list", "nested lists", "nested objects"],
)
def test_progress_that_cannot_be_decoded_is_a_protocol_error(ext: dict[str, str]) -> None:
    """Anything else would end the task that follows the master's tables."""
    with pytest.raises(RemoteProtocolError, match="cannot decode the master's progress"):
        _log_end_and_timers(ext)


def slave() -> tuple[SlaveSync, MessageStore]:
    config = StoreConfig(
        commit_log_file_bytes=1 << 16,
        consume_queue_file_bytes=2000,
        commit_log_preallocate_bytes=4096,
        index_slots=8,
        index_entries=40,
    )
    clock = ManualClock()
    store = MessageStore(SimDisk(), "data", config, clock)
    broker, tables = BrokerConfig(broker_id=1), store.tables
    topics = Topics(tables.topics, broker, clock, delay_levels=18)
    topics.ensure("orders", queues=1)
    groups, offsets = (
        Groups(tables.groups, broker, clock),
        ConsumerOffsets(tables.consumer_offsets, clock),
    )
    return SlaveSync(Tables(store, topics, groups, offsets), every_s=1), store


def send(store: MessageStore, count: int) -> None:
    entries = [Entry(queue_key("orders", 0), b"two apples", b"") for _ in range(count)]
    store.append(build(entries, store_host=encode_host(Host("127.0.0.1", 1)), record_crc=True))
    store.dispatch_all()


def without_topics() -> bytes:
    return fastjson.encode(TopicConfigTable(data_version=DataVersion(counter=9)))


def test_deleted_topic_loses_messages_replicated_after_the_deletion() -> None:
    sync, store = slave()
    send(store, 2)
    behind = store.log.end
    sync._take_topics(without_topics(), behind * 2)
    assert store.max_offset(queue_key("orders", 0)) == 2, "the log has not come so far"
    send(store, 2)  # the master had them before it deleted the topic
    assert store.log.end == behind * 2
    sync.tick()
    assert store.max_offset(queue_key("orders", 0)) == 0
    send(store, 1)  # the topic was created again
    assert store.max_offset(queue_key("orders", 0)) == 1


def test_deleted_topic_is_deleted_by_a_promotion_at_the_latest() -> None:
    sync, store = slave()
    send(store, 2)
    sync._take_topics(without_topics(), store.log.end + 1)
    sync.delete_rest()
    assert store.max_offset(queue_key("orders", 0)) == 0


def test_deleted_topic_of_a_master_without_log_offsets_is_deleted_at_once() -> None:
    sync, store = slave()
    send(store, 2)
    sync._take_topics(without_topics(), 0)
    assert store.max_offset(queue_key("orders", 0)) == 0
