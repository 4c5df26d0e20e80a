"""Offsets that consumers committed at a slave, and what becomes of them."""

import pytest

from tianzhou.base.kinds import QueueOffset
from tianzhou.broker.groups.accepted_offsets import AcceptedOffsets, accepted_table
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.offset_resets import EVERY_QUEUE
from tianzhou.store.config import StoreConfig
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.wire import fastjson
from tianzhou.wire.tables import ConsumerOffsetTable, decode_consumer_offsets

KEY = "orders@readers"


def small_store() -> MessageStore:
    config = StoreConfig(
        commit_log_file_bytes=4096,
        consume_queue_file_bytes=200,
        commit_log_preallocate_bytes=4096,
        index_slots=8,
        index_entries=40,
    )
    return MessageStore(SimDisk(), "data", config, ManualClock())


def said(**rows: dict[int, int]) -> ConsumerOffsetTable:
    """What the master knows of groups of `orders`."""
    return ConsumerOffsetTable(offset_table={f"orders@{name}": row for name, row in rows.items()})


def slave_of(store: MessageStore) -> tuple[ConsumerOffsets, AcceptedOffsets]:
    offsets = ConsumerOffsets(store.tables.consumer_offsets, ManualClock())
    accepted = AcceptedOffsets(accepted_table(store))
    offsets.begin_following(accepted)
    return offsets, accepted


def test_accepted_offset_stays_until_the_master_knows_it() -> None:
    store = small_store()
    offsets, accepted = slave_of(store)
    offsets.put("readers", "orders", 0, 120)
    for known in (80, 119):
        accepted.record_master(said(readers={0: known}))
        offsets.follow(said(readers={0: known}))
        assert offsets.get("readers", "orders", 0) == 120
        assert accepted.ahead() == [(KEY, 0, 120)]
    accepted.record_master(said(readers={0: 121}))
    offsets.follow(said(readers={0: 121}))
    assert (offsets.get("readers", "orders", 0), accepted.ahead()) == (121, [])


def test_accepted_offset_survives_a_restart_of_the_slave() -> None:
    store = small_store()
    offsets, accepted = slave_of(store)
    offsets.put("readers", "orders", 0, 120)
    accepted.save()  # a crash comes before the other table is saved
    again, accepted = slave_of(store)
    assert accepted.ahead() == [(KEY, 0, 120)]
    assert again.get("readers", "orders", 0) == 120
    accepted.record_master(said(readers={0: 80}))
    again.follow(said(readers={0: 80}))
    assert again.get("readers", "orders", 0) == 120


def test_accepted_offset_is_replaced_by_a_reset_at_the_master() -> None:
    store = small_store()
    offsets, accepted = slave_of(store)
    accepted.record_master(said(readers={0: 90}))
    offsets.put("readers", "orders", 0, 120)
    accepted.record_master(said(readers={0: 5}))
    offsets.follow(said(readers={0: 5}))
    assert (offsets.get("readers", "orders", 0), accepted.ahead()) == (5, [])


def test_accepted_offset_is_kept_when_the_master_lost_its_own() -> None:
    store = small_store()
    offsets, accepted = slave_of(store)
    accepted.record_master(said(readers={0: 90}))
    offsets.put("readers", "orders", 0, 120)
    accepted.reconnected()
    accepted.record_master(said(readers={0: 80}))
    offsets.follow(said(readers={0: 80}))
    assert offsets.get("readers", "orders", 0) == 120
    assert accepted.ahead() == [(KEY, 0, 120)]


def test_record_master_returns_only_rows_that_the_master_deleted() -> None:
    store = small_store()
    offsets, accepted = slave_of(store)
    accepted.record_master(said(readers={0: 9}, billing={0: 7}))
    offsets.put("readers", "orders", 0, 12)
    offsets.put("local", "orders", 0, 3)
    assert accepted.record_master(said(billing={0: 7})) == [KEY]
    assert accepted.ahead() == [("orders@local", 0, 3)], "known here alone, not deleted"


@pytest.mark.parametrize("deleted", ["orders@", "@readers"], ids=["topic", "group"])
def test_follow_removes_rows_of_a_deleted_topic_or_group(deleted: str) -> None:
    """The master crashed before it saved the row, and deleted the topic or the group after it."""
    offsets, accepted = slave_of(small_store())
    offsets.follow(said(readers={0: 90}, billing={0: 7}))
    accepted.reconnected()
    master = ConsumerOffsetTable(tz_resets={deleted: {EVERY_QUEUE: 500}})
    accepted.record_master(master)
    offsets.follow(master)
    assert offsets.get("readers", "orders", 0) is None
    assert (offsets.get("billing", "orders", 0) is None) == (deleted == "orders@")


def test_follow_removes_offsets_of_a_light_queue_that_expired_at_the_master() -> None:
    """The queue restarts at 0 there: a promoted slave that still had 5 would skip messages."""
    offsets, accepted = slave_of(small_store())
    offsets.follow(ConsumerOffsetTable(offset_table={"%LMQ%a@readers": {0: 5}}))
    accepted.reconnected()
    offsets.follow(ConsumerOffsetTable())
    assert offsets.get("readers", "%LMQ%a", 0) is None


def test_follow_keeps_rows_that_a_restarted_master_lost() -> None:
    offsets, accepted = slave_of(small_store())
    offsets.follow(said(readers={0: 90}))
    accepted.reconnected()
    accepted.record_master(said(billing={0: 7}))
    offsets.follow(said(billing={0: 7}))
    assert offsets.get("readers", "orders", 0) == 90


def test_accepted_offset_is_lowered_with_the_end_of_the_log() -> None:
    """Other messages will be stored beyond the end, and the group must not skip them."""
    store = small_store()
    offsets, accepted = slave_of(store)
    offsets.put("readers", "orders", 0, 120)
    offsets.clamp(lambda _: QueueOffset(100))
    assert accepted.ahead() == [(KEY, 0, 100)]
    offsets.follow(said(readers={0: 60}))
    assert offsets.get("readers", "orders", 0) == 100


def test_accepted_offsets_forget_deletes_them_durably() -> None:
    store = small_store()
    offsets, accepted = slave_of(store)
    offsets.put("readers", "orders", 0, 120)
    offsets.save()
    accepted.forget()
    assert AcceptedOffsets(accepted_table(store)).ahead() == []
    assert offsets.get("readers", "orders", 0) == 120


def test_accepted_offset_of_a_slave_never_moves_a_group_back() -> None:
    store = small_store()
    offsets = ConsumerOffsets(store.tables.consumer_offsets, ManualClock())
    offsets.put("readers", "orders", 0, 130)
    offsets.advance("readers", "orders", 0, 120)
    assert offsets.get("readers", "orders", 0) == 130
    offsets.advance("readers", "orders", 0, 140)
    offsets.advance("new", "orders", 0, 3)
    assert offsets.get("readers", "orders", 0) == 140
    assert offsets.get("new", "orders", 0) == 3


def master_and_slave() -> tuple[ConsumerOffsets, ConsumerOffsets, AcceptedOffsets]:
    """The master is at 40, as the slave knows, where a consumer then commits 120."""
    master = ConsumerOffsets(small_store().tables.consumer_offsets, ManualClock())
    master.put("readers", "orders", 0, 40)
    slave, accepted = slave_of(small_store())
    accepted.record_master(master.table())
    slave.follow(master.table())
    slave.put("readers", "orders", 0, 120)
    return master, slave, accepted


def test_accepted_offset_is_replaced_by_a_reset_of_a_returning_master() -> None:
    """The slave does not follow yet: only the timestamp distinguishes this from a loss."""
    for offset in (10, 40, 60):
        master, slave, accepted = master_and_slave()
        master.reset("readers", "orders", 0, offset)
        accepted.reconnected()
        accepted.record_master(master.table())
        slave.follow(master.table())
        assert (slave.get("readers", "orders", 0), accepted.ahead()) == (offset, [])


def test_accepted_offset_is_replaced_by_a_lower_commit_at_the_master() -> None:
    """Which is how RocketMQ's tools reset a single queue."""
    master, _, accepted = master_and_slave()
    master.put("readers", "orders", 0, 10)
    accepted.reconnected()
    accepted.record_master(master.table())
    assert accepted.ahead() == []


def test_accepted_offset_is_deleted_with_its_group_or_topic() -> None:
    for is_topic in (False, True):
        master, _, accepted = master_and_slave()
        if is_topic:
            master.remove_topic("orders")
        else:
            master.remove_group("readers")
        accepted.reconnected()
        accepted.record_master(master.table())
        assert accepted.ahead() == []


def test_accepted_offset_from_after_a_reset_is_handed_over() -> None:
    master, slave, accepted = master_and_slave()
    master.reset("readers", "orders", 0, 10)
    accepted.record_master(master.table())
    slave.follow(master.table())
    slave.put("readers", "orders", 0, 15)
    accepted.reconnected()
    accepted.record_master(master.table())
    assert accepted.ahead() == [(KEY, 0, 15)]


def test_reset_is_kept_by_slave_and_master_after_restarts() -> None:
    store = small_store()
    master = ConsumerOffsets(store.tables.consumer_offsets, ManualClock())
    master.put("readers", "orders", 0, 40)
    master.reset("readers", "orders", 0, 10)
    master.save()
    again = ConsumerOffsets(store.tables.consumer_offsets, ManualClock())
    assert again.table() == master.table()
    offsets, accepted = slave_of(store := small_store())
    accepted.record_master(again.table())
    offsets.put("readers", "orders", 0, 15)
    accepted.save()
    _, accepted = slave_of(store)
    accepted.record_master(again.table())
    assert accepted.ahead() == [(KEY, 0, 15)], "this reset was known when the consumer committed"


def test_old_master_that_follows_keeps_commits_after_its_own_resets() -> None:
    master, _, _ = master_and_slave()
    master.reset("readers", "orders", 0, 10)
    accepted = AcceptedOffsets(accepted_table(small_store()))
    master.begin_following(accepted)
    told = decode_consumer_offsets(fastjson.encode(master.table()))
    master.put("readers", "orders", 0, 15)
    accepted.record_master(told)
    assert accepted.ahead() == [(KEY, 0, 15)]


def test_offset_table_without_resets_has_only_rocketmq_fields() -> None:
    master = ConsumerOffsets(small_store().tables.consumer_offsets, ManualClock())
    master.put("readers", "orders", 0, 40)
    assert b"tz" not in fastjson.encode(master.table())
