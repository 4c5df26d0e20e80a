"""Lists of topics and groups: as many requests for a thousand as for one."""

from typing import Any

from cli.conftest import Run
from e2e.admin_world import commit
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode

LOOKS = (RequestCode.VIEW_TOPICS, RequestCode.VIEW_GROUPS)
ONE_BY_ONE = (
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.GET_TOPIC_CONFIG,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.QUERY_CONSUME_TIME_SPAN,
)


def filled(run: Run, mq: RunningBroker) -> None:
    run("topic", "create", "orders", "-q", "2")
    run("topic", "create", "returns", "-q", "1")
    run("produce", "returns", "--count", "3", "--size", "10")
    run("group", "create", "billing")
    commit(mq, "billing", "returns", offset=1)


def lists(run: Run) -> tuple[Any, Any]:
    return run("topic", "list", "--json").json, run("group", "list", "--json").json


def test_lists_use_one_request_per_broker(run: Run, mq: RunningBroker) -> None:
    filled(run, mq)
    with mq.faults.refuse(ONE_BY_ONE) as refused:
        topics, groups = lists(run)
    assert refused.hits == 0
    assert [(row["topic"], row["brokers"], row["queues"], row["messages"]) for row in topics] == [
        ("orders", 1, 2, 0),
        ("returns", 1, 1, 3),
    ]
    assert topics[1]["groups"] == ["billing"]
    (row,) = groups
    assert (row["group"], row["members"], row["topics"], row["lag"]) == (
        "billing",
        0,
        ["returns"],
        2,
    )
    assert 0 < row["behind_s"] < 100


def test_lists_from_rocketmq_brokers_are_the_same_item_by_item(run: Run, mq: RunningBroker) -> None:
    filled(run, mq)
    ours = lists(run)
    with mq.faults.refuse(LOOKS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED) as refused:
        theirs = lists(run)
    assert refused.hits == 3
    for rows in (*ours, *theirs):
        for row in rows:
            for name in ("behind_s", "sent_per_second", "read_per_second"):
                row.pop(name, None)  # measured slightly later
    assert ours == theirs


def test_lists_include_internal_topics_and_groups_on_request(run: Run, mq: RunningBroker) -> None:
    filled(run, mq)
    names = {row["topic"] for row in run("topic", "list", "--internal", "--json").json}
    assert {"orders", "TBW102", "SCHEDULE_TOPIC_XXXX"} <= names
    names = {row["group"] for row in run("group", "list", "--internal", "--json").json}
    assert {"billing", "TOOLS_CONSUMER"} <= names
