"""What a leader tells of its tables, and what those who follow make of it."""

from pathlib import Path

import pytest

from tianzhou.base.kinds import queue_key
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups import Groups
from tianzhou.broker.names import TRANSACTION_GROUP
from tianzhou.broker.raft_metadata import (
    CHANGES_MAX,
    OFFSETS_S,
    QUEUE,
    WHOLE_S,
    RaftMetadata,
    Tables,
)
from tianzhou.broker.timer_progress import TimerProgress, progress_table
from tianzhou.broker.topics import Topics
from tianzhou.broker.writer import Writer
from tianzhou.replication.durability import durability_of
from tianzhou.store.config import StoreConfig
from tianzhou.store.files import RealFiles, Usage
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.wire.tables import DelayOffsetTable, SubscriptionGroupConfig, TopicConfig


class CalmFiles(RealFiles):
    def usage(self, path: str) -> Usage:
        return Usage(total=100, free=90)


class Member:
    """The tables of a broker, over a store of its own."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        config = StoreConfig(commit_log_file_bytes=1 << 20, index_slots=8, index_entries=40)
        self.clock = clock
        self.store = MessageStore(CalmFiles(), str(root), config, clock)
        self.topics = Topics(self.store.tables.topics, BrokerConfig(), clock, 18)
        self.groups = Groups(self.store.tables.groups, BrokerConfig(), clock)
        self.offsets = ConsumerOffsets(self.store.tables.consumer_offsets, clock)
        self.writer = Writer(self.store, bytes(8), clock.monotonic_s, durability_of(self.store))
        tables = Tables(self.store, self.topics, self.groups, self.offsets)
        self.metadata = RaftMetadata(self.store, tables, self.writer, clock)

    def lead(self) -> None:
        self.metadata.lead()
        self.metadata.begin()
        self.store.dispatch_all()

    def pass_time(self, seconds: float = OFFSETS_S) -> None:
        self.clock.advance(seconds=seconds)
        self.metadata.tick()
        self.store.dispatch_all()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def leader(tmp_path: Path, clock: ManualClock) -> Member:
    member = Member(tmp_path / "leader", clock)
    member.lead()
    return member


def follower_of(leader: Member, root: Path) -> Member:
    """Another member with the same log, that has read it."""
    made = Member(root, leader.clock)
    log = leader.store.log
    data = b"".join(bytes(segment.view) for segment in log.segments)[: log.end]
    made.store.append_raw(made.store.log.end, data)
    made.store.dispatch_all()
    made.metadata.read()
    return made


def told(leader: Member) -> int:
    return leader.store.max_offset(QUEUE)


def test_a_follower_knows_what_the_leader_knows(leader: Member, tmp_path: Path) -> None:
    leader.topics.put(TopicConfig(topic_name="orders", read_queue_nums=3, write_queue_nums=3))
    leader.groups.put(SubscriptionGroupConfig(group_name="readers", retry_max_times=5))
    leader.groups.allow_read("readers", "orders", allowed=False)
    leader.offsets.put("readers", "orders", 1, 42)
    leader.pass_time()
    follower = follower_of(leader, tmp_path / "follower")
    assert follower.topics.get("orders") == leader.topics.get("orders")
    assert follower.groups.get("readers") == leader.groups.get("readers")
    assert not follower.groups.may_read("readers", "orders")
    assert follower.offsets.get("readers", "orders", 1) == 42


def test_what_was_removed_is_gone_also_where_it_is_followed(leader: Member, tmp_path: Path) -> None:
    """An old offset must not meet a new topic of the same name."""
    leader.topics.put(TopicConfig(topic_name="orders"))
    leader.offsets.put("readers", "orders", 0, 42)
    leader.pass_time()
    leader.topics.remove("orders")
    leader.offsets.remove_topic("orders")
    leader.pass_time()
    follower = follower_of(leader, tmp_path / "follower")
    assert follower.topics.get("orders") is None
    assert follower.offsets.get("readers", "orders", 0) is None


def test_nothing_is_told_while_nothing_changes(leader: Member) -> None:
    before = told(leader)
    leader.pass_time()
    leader.pass_time()
    assert told(leader) == before
    leader.pass_time(WHOLE_S)
    assert told(leader) == before + 1, "records expire with the log"


def test_everything_is_told_again_after_many_changes(leader: Member, tmp_path: Path) -> None:
    for number in range(CHANGES_MAX + 3):
        leader.offsets.put("readers", "orders", 0, number)
        leader.pass_time()
    follower = Member(tmp_path / "follower", leader.clock)
    log = leader.store.log
    data = b"".join(bytes(segment.view) for segment in log.segments)[: log.end]
    follower.store.append_raw(follower.store.log.end, data)
    follower.store.dispatch_all()
    assert follower.metadata._last_whole(told(follower)) == CHANGES_MAX + 1
    follower.metadata.read()
    assert follower.offsets.get("readers", "orders", 0) == CHANGES_MAX + 2


def test_who_begins_to_lead_takes_over_committed_progress(leader: Member, tmp_path: Path) -> None:
    """And not what it saved itself when it led: that may never have been committed."""
    leader.store.tables.delay_offsets.save(DelayOffsetTable(offset_table={3: 10}))
    progress_table(leader.store).save(TimerProgress(low=5, scanned=6))
    leader.offsets.put(TRANSACTION_GROUP, "halves", 0, 9)
    leader.pass_time()
    next_leader = follower_of(leader, tmp_path / "next")
    next_leader.store.tables.delay_offsets.save(DelayOffsetTable(offset_table={3: 99}))
    next_leader.offsets.put(TRANSACTION_GROUP, "halves", 0, 77)
    next_leader.store.begin_writing()
    next_leader.lead()
    assert next_leader.store.tables.delay_offsets.load().offset_table == {3: 10}
    assert progress_table(next_leader.store).load() == TimerProgress(low=5, scanned=6)
    assert next_leader.offsets.get(TRANSACTION_GROUP, "halves", 0) == 9
    assert told(next_leader) == told(leader) + 1


def test_its_queue_is_of_the_brokers_own() -> None:
    assert queue_key("rmq_sys_raft_metadata", 0) == QUEUE
