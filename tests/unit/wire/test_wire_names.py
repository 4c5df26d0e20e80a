"""The values that RocketMQ's clients have built in."""

from tianzhou.wire import names


def test_topics_and_prefixes_are_those_of_rocketmq() -> None:
    assert names.DEFAULT_TOPIC == "TBW102"
    assert names.SCHEDULE_TOPIC == "SCHEDULE_TOPIC_XXXX"
    assert names.TIMER_TOPIC == "rmq_sys_wheel_timer"
    assert names.TRANSACTION_GROUP == "CID_RMQ_SYS_TRANS"
    assert (names.RETRY_PREFIX, names.DEAD_LETTER_PREFIX) == ("%RETRY%", "%DLQ%")


def test_permission_bits_are_those_of_rocketmq() -> None:
    assert (names.PERM_INHERIT, names.PERM_WRITE, names.PERM_READ) == (1, 2, 4)
    assert (names.PERM_READ_WRITE, names.PERM_ALL) == (6, 15)


def test_pull_flags_are_distinct_bits() -> None:
    flags = [
        names.PULL_COMMIT_OFFSET,
        names.PULL_SUSPEND,
        names.PULL_SUBSCRIPTION,
        names.PULL_CLASS_FILTER,
        names.PULL_LITE,
    ]
    assert flags == [1, 2, 4, 8, 16]
