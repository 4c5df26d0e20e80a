"""Topics by broker and brokers by topic: two views of one table."""

import pytest
from registering import topic

from tianzhou.nameserver.topics import TableFull, TopicTable
from tianzhou.wire.routes import QueueData


def table(**brokers: list[str]) -> TopicTable:
    made = TopicTable()
    for broker, names in brokers.items():
        made.take_over(broker, [topic(name) for name in names], writable=True)
    return made


def perms(topics: TopicTable, broker: str, *names: str) -> list[int]:
    return [topics.rows_of(name)[broker].perm for name in names]


def test_topic_rows_hold_what_the_broker_registered() -> None:
    topics = TopicTable()
    topics.take_over("b", [topic("T", perm=4, queues=3, flag=2)], writable=True)
    assert topics.rows_of("T") == {
        "b": QueueData(
            broker_name="b", perm=4, read_queue_nums=3, write_queue_nums=3, topic_sys_flag=2
        )
    }
    assert topics.rows_of("U") == {}


def test_topic_rows_that_are_equal_are_shared() -> None:
    topics = table(b=["T", "U"])
    assert topics.rows_of("T")["b"] is topics.rows_of("U")["b"]


def test_topic_rows_of_a_slave_are_read_only() -> None:
    topics = TopicTable()
    topics.take_over("b", [topic("T", perm=6), topic("U", perm=4)], writable=False)
    assert perms(topics, "b", "T", "U") == [4, 4]


def test_topic_rows_and_names_agree() -> None:
    topics = table(a=["T", "U"], b=["U", "V"])
    assert set(topics.names()) == {"T", "U", "V"}
    assert set(topics.names_of(["a"])) == {"T", "U"}
    assert sorted(topics.names_of(["a", "b", "x"])) == ["T", "U", "V"]
    assert topics.has("U", "b")
    assert not topics.has("T", "b")


def test_topic_drop_applies_to_one_broker_or_all() -> None:
    topics = table(a=["T", "U"], b=["U"])
    topics.drop("U", "a")
    assert topics.rows_of("U").keys() == {"b"}
    topics.drop("U", "a")
    topics.drop("X", "a")
    topics.drop_topic("U")
    topics.drop_topic("X")
    assert topics.names() == ("T",)
    assert topics.names_of(["b"]) == ()


def test_drop_broker_removes_its_topics() -> None:
    topics = table(a=["T", "U"], b=["U"])
    topics.drop_broker("a")
    topics.drop_broker("x")
    assert topics.names() == ("U",)
    assert topics.rows_of("U").keys() == {"b"}


def test_topic_rows_not_kept_are_dropped() -> None:
    topics = table(a=["T", "U"], b=["T"])
    topics.keep_only("a", {"U", "V"})
    assert topics.names_of(["a"]) == ("U",)
    assert topics.rows_of("T").keys() == {"b"}


def test_wipe_write_and_add_write_change_every_topic_of_a_broker() -> None:
    topics = TopicTable()
    topics.take_over("a", [topic("T", perm=7), topic("U", perm=2)], writable=True)
    topics.take_over("b", [topic("T")], writable=True)
    assert topics.wipe_write("a") == 2
    assert perms(topics, "a", "T", "U") == [5, 0]
    assert topics.add_write("a") == 2
    assert perms(topics, "a", "T", "U") == [6, 6]
    assert perms(topics, "b", "T") == [6]
    assert topics.wipe_write("x") == 0


def test_names_with_finds_topics_by_flag() -> None:
    topics = TopicTable()
    topics.take_over("a", [topic("T", flag=1), topic("U", flag=2)], writable=True)
    assert topics.names_with(lambda flag: flag & 2 != 0) == ("U",)


def test_topic_table_over_its_limits_is_rejected() -> None:
    topics = TopicTable(topics_max=2, rows_max=3)
    topics.take_over("a", [topic("T"), topic("U")], writable=True)
    topics.check_room("a", ["T", "U"])
    with pytest.raises(TableFull, match="2 topics and 1 more"):
        topics.check_room("b", ["V"])
    topics.check_room("b", ["T"])
    with pytest.raises(TableFull, match="4 pairs"):
        topics.check_room("b", ["T", "U"])
