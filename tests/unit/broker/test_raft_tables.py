"""What a leader tells of its tables, and what those who follow make of it.

This is one file because every test needs the same members and passes their logs on in the same way.
"""

import zlib
from pathlib import Path

import pytest

from tianzhou.base.kinds import queue_key
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import Groups
from tianzhou.broker.names import HALF_TOPIC, TRANSACTION_GROUP
from tianzhou.broker.replica.expiry_floor import Progress
from tianzhou.broker.replica.raft_metadata import (
    CHANGES_MAX,
    OFFSETS_S,
    QUEUE,
    WHOLE_S,
    RaftMetadata,
    Tables,
)
from tianzhou.broker.scheduled.delay import Delays
from tianzhou.broker.scheduled.timer import TIMER_QUEUE, Timers
from tianzhou.broker.stats import Stats
from tianzhou.broker.topics.admin import TopicRemoval
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.net.rpc import RequestRejected
from tianzhou.record.chunk import Entry
from tianzhou.replication.durability import Outcome, durability_of
from tianzhou.store.config import StoreConfig
from tianzhou.store.files import RealFiles, Usage
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.wire.names import SCHEDULE_TOPIC
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
        being_deleted = set[str]()
        self.topics = Topics(
            self.store.tables.topics, BrokerConfig(), clock, 18, being_deleted=being_deleted
        )
        self.groups = Groups(self.store.tables.groups, BrokerConfig(), clock)
        self.offsets = ConsumerOffsets(self.store.tables.consumer_offsets, clock)
        self.writer = Writer(self.store, bytes(8), clock.monotonic_s, durability_of(self.store))
        self.delays = Delays(self.store, self.writer, clock, save_every_ms=3_600_000)
        self.timers = Timers(self.store, self.writer, clock, save_every_ms=3_600_000)
        self.removal = TopicRemoval(
            self.store,
            self.offsets,
            Stats(clock.now_ms()),
            self.writer.settle,
            is_replicated=True,
            pending=being_deleted,
        )
        self.metadata = RaftMetadata(self.store, Tables(self.store, self), self.writer, clock)

    def lead(self) -> None:
        self.metadata.lead()
        self.delays.begin()
        self.timers.begin()
        self.metadata.begin()
        self.store.dispatch_all()

    def deliver(self, seconds: int) -> None:
        """What is due by then."""
        self.clock.advance(seconds=seconds)
        for service in (self.delays, self.timers):
            service.tick()
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
    data = b"".join(one.read(0, log.file_bytes) for one in log.segments)[: log.end]
    made.store.append_raw(made.store.log.end, data)
    made.store.dispatch_all()
    made.metadata.read()
    return made


def told(leader: Member) -> int:
    return leader.store.max_offset(QUEUE)


def test_raft_tables_of_a_follower_match_the_leader(leader: Member, tmp_path: Path) -> None:
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


def test_raft_tables_removal_reaches_followers(leader: Member, tmp_path: Path) -> None:
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


def test_raft_tables_without_changes_write_nothing(leader: Member) -> None:
    before = told(leader)
    leader.pass_time()
    leader.pass_time()
    assert told(leader) == before
    leader.pass_time(WHOLE_S)
    assert told(leader) == before + 1, "records expire with the log"


def test_raft_tables_write_a_full_state_after_many_changes(leader: Member, tmp_path: Path) -> None:
    for number in range(CHANGES_MAX + 3):
        leader.offsets.put("readers", "orders", 0, number)
        leader.pass_time()
    follower = Member(tmp_path / "follower", leader.clock)
    log = leader.store.log
    data = b"".join(one.read(0, log.file_bytes) for one in log.segments)[: log.end]
    follower.store.append_raw(follower.store.log.end, data)
    follower.store.dispatch_all()
    assert follower.metadata._last_whole(told(follower)) == CHANGES_MAX + 1
    follower.metadata.read()
    assert follower.offsets.get("readers", "orders", 0) == CHANGES_MAX + 2


def test_raft_tables_of_a_member_started_after_expiry_are_complete(
    leader: Member, tmp_path: Path
) -> None:
    """A member that was wiped, and is elected within the hour."""
    leader.topics.put(TopicConfig(topic_name="orders"))
    leader.offsets.put("readers", "orders", 0, 42)
    leader.pass_time()
    log = leader.store.log
    while log.end < log.file_bytes:
        leader.writer.put([Entry(queue_key("orders", 0), bytes(1 << 16))])
    leader.pass_time()
    before = told(leader)
    leader.pass_time()
    assert told(leader) == before, "once for each file"
    follower = Member(tmp_path / "follower", leader.clock)
    last = log.segments[-1]
    follower.store.append_raw(last.start, last.read(0, log.end - last.start))
    follower.store.dispatch_all()
    follower.metadata.read()
    assert follower.topics.get("orders") == leader.topics.get("orders")
    assert follower.offsets.get("readers", "orders", 0) == 42


def send(member: Member, topic: str, count: int = 1) -> list[int]:
    """Messages to queue 0 of a topic; the queue offsets they got."""
    put = member.writer.put([Entry(queue_key(topic, 0), b"body")] * count)
    member.store.dispatch_all()
    return list(put.queue_offsets)


def delete(member: Member, topic: str) -> None:
    """As the handler of a leader does it; nothing is committed by this."""
    assert member.topics.remove(topic)
    member.removal.request(topic)
    member.metadata.on_topics_changed()


def make_orders(leader: Member) -> None:
    leader.topics.put(TopicConfig(topic_name="orders"))
    leader.pass_time()
    assert send(leader, "orders", 5) == [0, 1, 2, 3, 4]


def test_leader_keeps_the_queues_of_a_topic_until_its_deletion_is_committed(
    leader: Member,
) -> None:
    make_orders(leader)
    committed = leader.store.log.end
    leader.store.limit_visible(lambda: committed)
    delete(leader, "orders")
    leader.metadata.tick()
    assert leader.store.max_offset(queue_key("orders", 0)) == 5
    with pytest.raises(RequestRejected, match="is being deleted"):
        leader.topics.put(TopicConfig(topic_name="orders"))
    leader.store.limit_visible(None)
    leader.store.dispatch_all()
    leader.metadata.tick()
    assert leader.store.max_offset(queue_key("orders", 0)) == 0
    leader.topics.put(TopicConfig(topic_name="orders"))
    assert send(leader, "orders") == [0]


def test_deposed_leader_keeps_messages_of_an_uncommitted_topic_deletion(
    leader: Member, tmp_path: Path
) -> None:
    make_orders(leader)
    successor = follower_of(leader, tmp_path / "successor")
    committed = leader.store.log.end
    leader.store.limit_visible(lambda: committed)
    delete(leader, "orders")
    leader.metadata.follow()
    leader.store.stop_writing()
    leader.store.truncate(committed)
    successor.store.begin_writing()
    successor.lead()
    log = successor.store.log
    data = b"".join(one.read(0, log.file_bytes) for one in log.segments)[committed : log.end]
    leader.store.limit_visible(None)
    leader.store.append_raw(committed, data)
    leader.store.dispatch_all()
    leader.metadata.tick()
    assert leader.topics.get("orders") is not None
    assert leader.topics.get("orders") == successor.topics.get("orders")
    assert leader.store.max_offset(queue_key("orders", 0)) == 5
    leader.topics.put(TopicConfig(topic_name="orders", perm=4))  # nothing keeps the name


def test_follower_removes_the_queues_of_a_deleted_topic(leader: Member, tmp_path: Path) -> None:
    """Otherwise its messages would come back when the follower leads."""
    make_orders(leader)
    delete(leader, "orders")
    leader.store.dispatch_all()
    follower = follower_of(leader, tmp_path / "follower")
    assert follower.topics.get("orders") is None
    assert follower.store.max_offset(queue_key("orders", 0)) == 0


def test_follower_keeps_messages_of_a_recreated_topic(leader: Member, tmp_path: Path) -> None:
    """It reads of the deletion when the queue of the second topic is already there."""
    make_orders(leader)
    delete(leader, "orders")
    leader.store.dispatch_all()
    leader.metadata.tick()
    leader.topics.put(TopicConfig(topic_name="orders"))
    leader.metadata.on_topics_changed()
    assert send(leader, "orders", 2) == [0, 1]
    follower = follower_of(leader, tmp_path / "follower")
    assert follower.topics.get("orders") is not None
    assert follower.store.max_offset(queue_key("orders", 0)) == 2


def test_topic_creation_not_committed_is_undone_by_the_next_leader(
    leader: Member, tmp_path: Path
) -> None:
    leader.pass_time()
    successor = follower_of(leader, tmp_path / "successor")
    committed = leader.store.log.end
    leader.topics.put(TopicConfig(topic_name="orders"))
    leader.groups.put(SubscriptionGroupConfig(group_name="readers"))
    leader.metadata.write_changes()
    leader.metadata.follow()
    leader.store.stop_writing()
    leader.store.truncate(committed)
    successor.store.begin_writing()
    successor.lead()
    log = successor.store.log
    data = b"".join(one.read(0, log.file_bytes) for one in log.segments)[committed : log.end]
    leader.store.append_raw(committed, data)
    leader.store.dispatch_all()
    leader.metadata.tick()
    assert leader.topics.all() == successor.topics.all()
    assert leader.groups.all() == successor.groups.all()


def test_commit_is_confirmed_when_the_record_is_read_even_without_a_change(leader: Member) -> None:
    before = told(leader)
    outcomes: list[Outcome] = []
    leader.metadata.commit(outcomes.append)
    assert not outcomes
    leader.store.dispatch_all()
    assert told(leader) == before + 1
    leader.metadata.tick()
    assert outcomes == [Outcome.DURABLE]


def test_commit_is_unknown_when_the_role_is_lost(leader: Member) -> None:
    outcomes: list[Outcome] = []
    durability = leader.writer._durability
    durability.flush_waits = durability.waits = True
    leader.metadata.commit(outcomes.append)
    leader.writer.give_up()
    assert outcomes == [Outcome.NOT_MASTER]
    leader.metadata.follow()
    leader.metadata.commit(outcomes.append)
    assert outcomes == [Outcome.NOT_MASTER] * 2


def pass_on(leader: Member, follower: Member) -> None:
    """What the leader told reaches the follower."""
    leader.metadata.write_changes()
    leader.store.dispatch_all()
    log, have = leader.store.log, follower.store.log.end
    data = b"".join(one.read(0, log.file_bytes) for one in log.segments)[have : log.end]
    follower.store.append_raw(have, data)
    follower.store.dispatch_all()
    follower.metadata.read()


def committing_follower(leader: Member, root: Path, offset: int) -> Member:
    """The group is at 20; a consumer commits more, or less, at a follower."""
    make_orders(leader)
    leader.offsets.put("readers", "orders", 0, 20)
    leader.pass_time()
    follower = follower_of(leader, root)
    follower.metadata.follow()
    follower.offsets.put("readers", "orders", 0, offset)
    assert follower.offsets.get("readers", "orders", 0) == offset
    return follower


def accepted_by(member: Member) -> list[tuple[str, int, int]]:
    assert member.offsets.accepted is not None
    return member.offsets.accepted.ahead()


def test_offset_committed_at_a_follower_is_kept_until_it_is_committed(
    leader: Member, tmp_path: Path
) -> None:
    follower = committing_follower(leader, tmp_path / "follower", 40)
    leader.offsets.put("readers", "orders", 0, 30)
    leader.offsets.put("others", "orders", 0, 1)
    pass_on(leader, follower)
    assert follower.offsets.get("readers", "orders", 0) == 40
    assert accepted_by(follower) == [("orders@readers", 0, 40)]
    leader.offsets.advance("readers", "orders", 0, 40)
    pass_on(leader, follower)
    assert accepted_by(follower) == []
    leader.offsets.put("readers", "orders", 0, 50)
    pass_on(leader, follower)
    assert follower.offsets.get("readers", "orders", 0) == 50


def test_offset_committed_at_a_follower_survives_its_restart(
    leader: Member, tmp_path: Path
) -> None:
    """It reads the log again from a record that was written before the topic was created."""
    follower = committing_follower(leader, tmp_path / "follower", 40)
    follower.offsets.save()
    follower.store.close()
    again = Member(tmp_path / "follower", leader.clock)
    again.metadata.follow()
    again.metadata.read()
    assert again.topics.get("orders") is not None
    assert again.offsets.get("readers", "orders", 0) == 40
    assert accepted_by(again) == [("orders@readers", 0, 40)]


def test_follower_with_an_offset_of_its_own_leads_with_it(leader: Member, tmp_path: Path) -> None:
    follower = committing_follower(leader, tmp_path / "follower", 40)
    follower.store.begin_writing()
    follower.lead()
    assert follower.offsets.get("readers", "orders", 0) == 40
    assert follower.offsets.accepted is None
    assert follower_of(follower, tmp_path / "third").offsets.get("readers", "orders", 0) == 40


def test_late_offset_at_a_follower_does_not_move_the_group_back(
    leader: Member, tmp_path: Path
) -> None:
    follower = committing_follower(leader, tmp_path / "follower", 10)
    follower.store.begin_writing()
    follower.lead()
    assert follower.offsets.get("readers", "orders", 0) == 20


def test_reset_without_effect_at_the_leader_voids_the_follower_offset(
    leader: Member, tmp_path: Path
) -> None:
    follower = committing_follower(leader, tmp_path / "follower", 40)
    leader.offsets.reset("readers", "orders", 0, 20)
    pass_on(leader, follower)
    assert follower.offsets.get("readers", "orders", 0) == 20
    assert accepted_by(follower) == []
    follower.offsets.put("readers", "orders", 0, 30)  # after the reset: it counts
    leader.offsets.put("others", "orders", 0, 1)
    pass_on(leader, follower)
    assert follower.offsets.get("readers", "orders", 0) == 30


def test_group_deleted_at_the_leader_leaves_no_offset_at_a_follower(
    leader: Member, tmp_path: Path
) -> None:
    """Also of a group that the leader had no offset of: a new one of its name would skip."""
    follower = committing_follower(leader, tmp_path / "follower", 40)
    follower.offsets.put("fresh", "orders", 0, 40)
    leader.offsets.remove_group("readers")
    leader.offsets.remove_group("fresh")
    pass_on(leader, follower)
    assert follower.offsets.get("readers", "orders", 0) is None
    assert follower.offsets.get("fresh", "orders", 0) is None
    assert accepted_by(follower) == []


def test_deposed_leader_hands_over_confirmed_uncommitted_offsets(
    leader: Member, tmp_path: Path
) -> None:
    make_orders(leader)
    leader.offsets.put("readers", "orders", 0, 20)
    leader.offsets.put("reset", "orders", 0, 20)
    leader.pass_time()
    leader.metadata.read()
    leader.offsets.put("readers", "orders", 0, 30)
    leader.offsets.put("fresh", "orders", 0, 3)
    leader.offsets.put(TRANSACTION_GROUP, HALF_TOPIC, 0, 9)
    leader.offsets.reset("reset", "orders", 0, 0)
    leader.metadata.follow()
    assert sorted(accepted_by(leader)) == [("orders@fresh", 0, 3), ("orders@readers", 0, 30)]
    assert leader.offsets.get("reset", "orders", 0) == 20, "its outcome was unknown"
    assert leader.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) is None


MEANT = b"REAL_TOPIC\x01orders\x02REAL_QID\x010\x02"


def put_delayed(leader: Member) -> None:
    """Two messages due in a second, one of them with a delivery time, and one due in an hour."""
    now_ms = leader.clock.now_ms()
    timed = [MEANT + b"TIMER_DELIVER_MS\x01%d\x02" % (now_ms + ms) for ms in (1_000, 3_600_000)]
    leader.writer.put(
        [Entry(queue_key(SCHEDULE_TOPIC, 0), b"level", MEANT + b"DELAY\x011\x02")] * 2
        + [Entry(TIMER_QUEUE, b"moment", words) for words in timed]
    )
    leader.store.dispatch_all()


def test_follower_keeps_the_log_that_waiting_messages_of_the_leader_need(
    leader: Member, tmp_path: Path
) -> None:
    assert leader.metadata.progress() == Progress(timers=0, halves=0, delays={})
    put_delayed(leader)
    leader.deliver(seconds=2)
    leader.offsets.put(TRANSACTION_GROUP, HALF_TOPIC, 0, 9)
    leader.pass_time()
    follower = follower_of(leader, tmp_path / "follower")
    # What it saved as a leader may never have been committed.
    follower.offsets.put(TRANSACTION_GROUP, HALF_TOPIC, 0, 77)
    assert follower.metadata.progress() == Progress(timers=1, halves=9, delays={1: 2})


def test_new_leader_continues_from_the_tables_of_the_last_leader(
    leader: Member, tmp_path: Path
) -> None:
    """The log decides, not what either leader saved: a saved value may never have been committed,
    and messages delivered since a save would be delivered again."""
    put_delayed(leader)
    leader.deliver(seconds=2)
    orders = queue_key("orders", 0)
    assert leader.store.max_offset(orders) == 3
    leader.offsets.put(TRANSACTION_GROUP, "halves", 0, 9)
    leader.pass_time()
    next_leader = follower_of(leader, tmp_path / "next")
    next_leader.store.tables.delay_offsets.save(DelayOffsetTable(offset_table={1: 99}))
    next_leader.offsets.put(TRANSACTION_GROUP, "halves", 0, 77)
    next_leader.store.begin_writing()
    next_leader.lead()
    assert next_leader.store.tables.delay_offsets.load().offset_table == {1: 2}
    assert next_leader.offsets.get(TRANSACTION_GROUP, "halves", 0) == 9
    assert told(next_leader) == told(leader) + 1
    next_leader.deliver(seconds=60)
    assert next_leader.store.max_offset(orders) == 3, "nothing comes again"
    next_leader.deliver(seconds=3_600)
    assert next_leader.store.max_offset(orders) == 4


def test_raft_tables_before_services_start_write_nothing(leader: Member) -> None:
    """A topic may change then; but how far delays came, services know only when they began."""
    leader.metadata.follow()
    before = told(leader)
    leader.metadata.lead()
    leader.topics.put(TopicConfig(topic_name="orders"))
    leader.metadata.on_topics_changed()
    leader.store.dispatch_all()
    assert told(leader) == before
    leader.metadata.begin()
    leader.store.dispatch_all()
    assert told(leader) == before + 1


def test_raft_tables_queue_is_internal() -> None:
    assert queue_key("rmq_sys_raft_metadata", 0) == QUEUE


@pytest.mark.parametrize(
    "forged",
    [
        Entry(QUEUE, b"\xff is not compressed"),
        Entry(QUEUE, zlib.compress(b"{}")),
        Entry(QUEUE, zlib.compress(b"[true, {")),
        Entry(QUEUE, zlib.compress(b'[true,{"topics":{}}]'), b"MSG_REGION\x01DefaultRegion\x02"),
    ],
    ids=["garbage", "object", "half", "by-a-client"],
)
def test_record_not_written_by_a_leader_is_ignored(
    leader: Member, tmp_path: Path, forged: Entry
) -> None:
    """Clients of earlier versions could send to this topic, and the log keeps what they sent."""
    leader.topics.put(TopicConfig(topic_name="orders"))
    leader.pass_time()
    leader.writer.put([Entry(queue_key("orders", 0), b"kept"), forged])
    leader.store.dispatch_all()
    leader.pass_time()
    follower = follower_of(leader, tmp_path / "follower")
    for member in (leader, follower):
        assert member.topics.get("orders") is not None
        assert member.store.max_offset(queue_key("orders", 0)) == 1
    leader.topics.put(TopicConfig(topic_name="later"))
    leader.pass_time()
    assert follower_of(leader, tmp_path / "third").topics.get("later") is not None
