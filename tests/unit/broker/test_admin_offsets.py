"""How far groups are behind, in numbers and in time; copies and corrections of offsets."""

from administrator import Administrator, Answer, join, make_topic

from tianzhou.testing.small_broker import SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.queues import OffsetWrapper, decode_consume_stats

NEVER = (1 << 63) - 1


def with_messages(count: int = 3) -> SmallBroker:
    """Topic `orders` with two queues and messages in the first, a second apart."""
    broker = SmallBroker()
    make_topic(broker, "orders")
    for _ in range(count):
        broker.clock.advance(seconds=1)
        broker.send("orders")
    return broker


def rows_of(answer: Answer) -> dict[tuple[str, int], OffsetWrapper]:
    table = decode_consume_stats(answer.body).offset_table
    return {(queue.topic, queue.queue_id): row for queue, row in table.items()}


def test_consume_stats_list_every_read_queue_with_zero_if_uncommitted() -> None:
    broker = with_messages()
    broker.slices.groups.tables.offsets.put("readers", "orders", 0, 2)
    answer = Administrator(broker).ask(RequestCode.GET_CONSUME_STATS, consumerGroup="readers")
    assert answer.body.startswith(b'{"consumeTps":0.0,"offsetTable":{{"brokerName":"broker-a"')
    assert rows_of(answer) == {
        ("orders", 0): OffsetWrapper(
            broker_offset=3,
            consumer_offset=2,
            last_timestamp=broker.clock.now_ms() - 1000,
            pull_offset=2,
        ),
        ("orders", 1): OffsetWrapper(),
    }


def test_consume_stats_of_a_named_topic_include_uncommitted_queues() -> None:
    broker = with_messages()
    tool, code = Administrator(broker), RequestCode.GET_CONSUME_STATS
    assert rows_of(tool.ask(code, consumerGroup="readers")) == {}
    rows = rows_of(tool.ask(code, consumerGroup="readers", topic="orders"))
    assert rows["orders", 0] == OffsetWrapper(broker_offset=3)
    listed = rows_of(tool.ask(code, consumerGroup="readers", topicList="orders;gone"))
    assert listed == rows


def test_consume_stats_of_an_online_group_have_its_subscriptions_only() -> None:
    broker = with_messages()
    make_topic(broker, "old")
    for topic in ("orders", "old", "deleted"):
        broker.slices.groups.tables.offsets.put("readers", topic, 0, 1)
    tool, code = Administrator(broker), RequestCode.GET_CONSUME_STATS
    offline = rows_of(tool.ask(code, consumerGroup="readers"))
    assert {topic for topic, _ in offline} == {"orders", "old"}
    join(broker, "readers", "orders")
    online = rows_of(tool.ask(code, consumerGroup="readers"))
    assert {topic for topic, _ in online} == {"orders"}


def test_consume_stats_have_the_rate_of_the_group() -> None:
    broker = with_messages()
    broker.slices.groups.tables.offsets.put("readers", "orders", 0, 2)
    broker.slices.base.stats.got("orders", "readers", 30, 100)
    broker.run(seconds=20, step_ms=1000)
    answer = Administrator(broker).ask(RequestCode.GET_CONSUME_STATS, consumerGroup="readers")
    assert 1.0 < decode_consume_stats(answer.body).consume_tps < 3.0


def test_broker_consume_stats_list_all_groups() -> None:
    broker = with_messages()
    broker.slices.groups.clients.groups.obtain("readers")
    broker.slices.groups.tables.offsets.put("readers", "orders", 0, 1)
    tool, code = Administrator(broker), RequestCode.GET_BROKER_CONSUME_STATS
    answer = tool.ask(code, isOrder="false")
    assert answer.json["brokerAddr"] == "10.0.0.1:10911"
    assert answer.json["totalDiff"] == 2
    found = {group: rows for row in answer.json["consumeStatsList"] for group, rows in row.items()}
    assert len(found["readers"]) == 1
    assert found["TOOLS_CONSUMER"] == []
    assert tool.ask(code, isOrder="true").json["totalDiff"] == 0


def test_consume_time_span_has_the_delay_of_each_queue() -> None:
    broker = with_messages()
    now_ms = broker.clock.now_ms()
    broker.slices.groups.tables.offsets.put("readers", "orders", 0, 1)
    tool, code = Administrator(broker), RequestCode.QUERY_CONSUME_TIME_SPAN
    first, empty = tool.ask(code, group="readers", topic="orders").json["consumeTimeSpanSet"]
    assert first["messageQueue"]["queueId"] == 0
    assert first["minTimeStamp"] == first["consumeTimeStamp"] == now_ms - 2000
    assert first["maxTimeStamp"] == now_ms
    assert first["delayTime"] == 1000
    assert (empty["minTimeStamp"], empty["maxTimeStamp"], empty["delayTime"]) == (-1, -1, 0)
    assert tool.ask(code, group="readers", topic="x").code == ResponseCode.TOPIC_NOT_EXIST


def test_correction_offsets_are_the_minimum_of_other_groups() -> None:
    broker = with_messages()
    offsets = broker.slices.groups.tables.offsets
    for group, first, second in (("a", 3, 2), ("b", 2, 5), ("skipped", 0, 0), ("mine", 1, 9)):
        offsets.put(group, "orders", 0, first)
        offsets.put(group, "orders", 1, second)
    answer = Administrator(broker).ask(
        RequestCode.QUERY_CORRECTION_OFFSET,
        filterGroups="skipped,mine",
        compareGroup="mine",
        topic="orders",
    )
    # In queue 0 the compared group is behind the others: nothing to correct.
    assert answer.json == {"correctionOffsets": {"0": NEVER, "1": 2}}


def test_clone_group_offset_copies_subscribed_topics_only() -> None:
    broker = with_messages()
    make_topic(broker, "old")
    broker.slices.groups.tables.offsets.put("readers", "orders", 0, 2)
    broker.slices.groups.tables.offsets.put("readers", "old", 0, 1)
    join(broker, "readers", "orders")
    tool, code = Administrator(broker), RequestCode.CLONE_GROUP_OFFSET
    assert tool.ask(code, srcGroup="readers", destGroup="copy").code == 0
    assert broker.slices.groups.tables.offsets.of("copy", "orders") == {0: 2}
    assert broker.slices.groups.tables.offsets.of("copy", "old") == {}
    tool.ask(code, srcGroup="readers", destGroup="copy", topic="old", offline="true")
    assert broker.slices.groups.tables.offsets.of("copy", "old") == {0: 1}
    assert tool.ask(code, srcGroup="readers", destGroup="a b").code != 0


def test_get_all_consumer_offset_returns_the_table() -> None:
    broker = with_messages()
    broker.slices.groups.tables.offsets.put("readers", "orders", 1, 2)
    table = Administrator(broker).ask(RequestCode.GET_ALL_CONSUMER_OFFSET).json
    assert table["offsetTable"] == {"orders@readers": {"1": 2}}
