"""RocketMQ's `mqadmin` manages our servers. It always exits with 0, so tests check its output."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import client_probe
import client_servers
import pytest
from client_build import FIVE, FOUR, build
from client_mqadmin import Mqadmin
from client_probe import ClientProbe, Line

from clients.server_process import ServerProcess

CLUSTER: Final = "DefaultCluster"
BROKER: Final = "broker-a"
TOPIC: Final = "Orders"
GROUP: Final = "shipping"
PRODUCERS: Final = "shop"
COUNT: Final = 10


class Stage(NamedTuple):
    """A server with messages in a topic, a producer, and a consumer that received them all."""

    server: ServerProcess
    probe: ClientProbe
    mqadmin: Mqadmin
    sent: list[Line]
    """The send result of each message."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    home, classpath = tmp_path_factory.mktemp("mqadmin"), build(FIVE)
    with (
        client_servers.up(home / "up") as server,
        client_probe.running(classpath, server.nameserver, home / "clients") as probe,
    ):
        probe.ask("producer", "p", group=PRODUCERS, trace=True)
        bodies = [f"order {n}" for n in range(COUNT)]
        sent = [
            probe.send("p", TOPIC, body, tags="A", keys=body.replace(" ", "-")) for body in bodies
        ]
        probe.ask("consumer", "c", group=GROUP, topic=TOPIC, trace=True)
        probe.wait_bodies(bodies, "c")
        yield Stage(server, probe, Mqadmin(classpath, server.nameserver, home / "tool"), sent)


@pytest.fixture
def mqadmin(stage: Stage) -> Mqadmin:
    return stage.mqadmin


def rows_of(rows: list[list[str]], name: str) -> list[list[str]]:
    """The rows that start with these words."""
    return [row for row in rows if row[0] == name]


def queue_totals(rows: list[list[str]], column: int) -> int:
    return sum(int(row[column]) for row in rows)


@pytest.mark.parametrize("version", [FIVE, FOUR])
def test_mqadmin_cluster_list(stage: Stage, version: str, tmp_path: Path) -> None:
    tool = Mqadmin(build(version), stage.server.nameserver, tmp_path)
    [row] = rows_of(tool.table("clusterList"), CLUSTER)
    assert row[1:5] == [BROKER, "0", stage.server.broker, "V5_3_3"]


def test_mqadmin_creates_updates_and_deletes_a_topic(mqadmin: Mqadmin) -> None:
    """updateTopic, topicRoute, updateTopicPerm, deleteTopic, topicList."""
    made = mqadmin.run("updateTopic", "-c", CLUSTER, "-t", "Life", "-r", "5", "-w", "3")
    assert "success" in made
    assert "readQueueNums=5, writeQueueNums=3, perm=RW-" in made
    route = mqadmin.run("topicRoute", "-t", "Life")
    for word in ('"perm":6', '"readQueueNums":5', '"writeQueueNums":3', f'"brokerName":"{BROKER}"'):
        assert word in route
    assert ["Life"] in mqadmin.table("topicList")
    changed = mqadmin.run("updateTopicPerm", "-c", CLUSTER, "-t", "Life", "-p", "4")
    assert "update topic perm from 6 to 4" in changed
    assert '"perm":4' in mqadmin.run("topicRoute", "-t", "Life")
    gone = mqadmin.run("deleteTopic", "-c", CLUSTER, "-t", "Life")
    assert f"delete topic [Life] from cluster [{CLUSTER}] success" in gone
    assert "delete topic [Life] from NameServer success" in gone
    assert ["Life"] not in mqadmin.table("topicList")
    assert "CODE: 17" in mqadmin.run_anyway("topicRoute", "-t", "Life")


def test_mqadmin_creates_an_ordered_topic_on_one_broker(stage: Stage) -> None:
    text = stage.mqadmin.run_anyway(  # it prints an exception if the setting does not exist yet
        "updateTopic", "-b", stage.server.broker, "-t", "InOrder", "-o", "true"
    )
    assert f"set broker orderConf. isOrder=true, orderConf=[{BROKER}:8]" in text
    assert f"create topic to {stage.server.broker} success" in text


def test_mqadmin_topic_list_with_groups(mqadmin: Mqadmin) -> None:
    assert [CLUSTER, TOPIC, GROUP] in mqadmin.table("topicList", "-c")


def test_mqadmin_topic_status(mqadmin: Mqadmin) -> None:
    rows = rows_of(mqadmin.table("topicStatus", "-t", TOPIC), BROKER)
    assert sorted(row[1] for row in rows) == ["0", "1", "2", "3"]
    assert {row[2] for row in rows} == {"0"}
    assert queue_totals(rows, 3) >= COUNT


def test_mqadmin_topic_cluster_list(mqadmin: Mqadmin) -> None:
    assert mqadmin.table("topicClusterList", "-t", TOPIC) == [[CLUSTER]]


def test_mqadmin_creates_updates_and_deletes_a_group(mqadmin: Mqadmin) -> None:
    """updateSubGroup, getConsumerConfig, deleteSubGroup."""
    made = mqadmin.run("updateSubGroup", "-c", CLUSTER, "-g", "crew", "-r", "3", "-q", "2")
    assert "create subscription group to" in made
    assert "success" in made
    rows = mqadmin.table("getConsumerConfig", "-g", "crew")
    assert ["retryMaxTimes", "=", "3"] in rows
    assert ["retryQueueNums", "=", "2"] in rows
    gone = mqadmin.run("deleteSubGroup", "-c", CLUSTER, "-g", "crew")
    assert "delete subscription group [crew] from broker" in gone
    assert "retryMaxTimes" not in mqadmin.run_anyway("getConsumerConfig", "-g", "crew")


def test_mqadmin_broker_status(stage: Stage) -> None:
    rows = stage.mqadmin.table("brokerStatus", "-b", stage.server.broker)
    result = {row[0].rstrip(":"): row[-1] for row in rows}
    assert result["brokerVersionDesc"] == "V5_3_3"
    assert int(result["msgPutTotalTodayNow"]) >= COUNT
    assert int(result["commitLogMaxOffset"]) > 0


def test_mqadmin_get_broker_config(stage: Stage) -> None:
    rows = stage.mqadmin.table("getBrokerConfig", "-b", stage.server.broker)
    assert ["brokerName", "=", BROKER] in rows
    assert ["brokerClusterName", "=", CLUSTER] in rows
    assert ["flushDiskType", "=", "ASYNC_FLUSH"] in rows


def test_mqadmin_update_broker_config(stage: Stage) -> None:
    mqadmin, broker = stage.mqadmin, stage.server.broker
    for value in ("false", "true"):
        change = ("-k", "autoCreateSubscriptionGroup", "-v", value)
        assert f"success, {broker}" in mqadmin.run("updateBrokerConfig", "-b", broker, *change)
        rows = mqadmin.table("getBrokerConfig", "-b", broker)
        assert ["autoCreateSubscriptionGroup", "=", value] in rows
    change = ("-k", "flushDiskType", "-v", "SYNC_FLUSH")
    refused = mqadmin.run_anyway("updateBrokerConfig", "-b", broker, *change)
    assert "CODE: 16  DESC: flushDiskType cannot change while the broker runs" in refused
    change = ("-k", "fileReservedTime", "-v", "70")
    assert f"success, {broker}" in mqadmin.run("updateBrokerConfig", "-b", broker, *change)
    change = ("-k", "fileReservdTime", "-v", "70")
    unknown = mqadmin.run_anyway("updateBrokerConfig", "-b", broker, *change)
    assert "CODE: 29" in unknown
    assert "did you mean fileReservedTime?" in unknown


def test_mqadmin_get_namesrv_config(mqadmin: Mqadmin) -> None:
    assert ["scanNotActiveBrokerInterval", "=", "10000"] in mqadmin.table("getNamesrvConfig")


def test_mqadmin_consumer_progress(stage: Stage) -> None:
    """Offsets are committed every 5 s; the consumer of this group has already stopped."""
    stage.probe.ask("consumer", "quick", group="quick", topic=TOPIC)
    stage.probe.wait_events("quick", COUNT)
    stage.probe.stop("quick")
    text = stage.mqadmin.run("consumerProgress", "-g", "quick")
    rows = rows_of([row.split() for row in text.splitlines() if row], TOPIC)
    assert queue_totals(rows, 3) == queue_totals(rows, 4) >= COUNT
    assert "Consume Diff Total: 0" in text


def test_mqadmin_consumer_progress_of_all_groups(mqadmin: Mqadmin) -> None:
    [row] = rows_of(mqadmin.table("consumerProgress"), GROUP)
    assert row[1:5] == ["1", "V5_3_3", "PUSH", "CLUSTERING"]


def test_mqadmin_consumer_connection(mqadmin: Mqadmin) -> None:
    text = mqadmin.run("consumerConnection", "-g", GROUP)
    assert re.search(r"@c +127\.0\.0\.1:\d+ +JAVA +V5_3_3", text)
    assert re.search(rf"{TOPIC} +\*", text)
    assert "ConsumeType: CONSUME_PASSIVELY" in text
    assert "MessageModel: CLUSTERING" in text


def test_mqadmin_consumer_status(mqadmin: Mqadmin) -> None:
    """The broker forwards the request to the consumer."""
    text = mqadmin.run("consumerStatus", "-g", GROUP)
    assert re.search(r"@c +V5_3_3 ", text)
    assert "Same subscription in the same group of consumer" in text
    assert "Rebalance OK" in text


def test_mqadmin_producer_connection(mqadmin: Mqadmin) -> None:
    text = mqadmin.run("producerConnection", "-g", PRODUCERS, "-t", TOPIC)
    assert re.search(r"@p +127\.0\.0\.1:\d+ +JAVA +V5_3_3", text)


def test_mqadmin_query_by_id(stage: Stage) -> None:
    text = stage.mqadmin.run("queryMsgById", "-t", TOPIC, "-i", stage.sent[3]["offsetMsgId"])
    assert_is_order_3(text, stage)
    assert f"MessageTrack [consumerGroup={GROUP}, trackType=" in text


def assert_is_order_3(text: str, stage: Stage) -> None:
    result = stage.sent[3]
    for name, value in (
        ("Topic", TOPIC),
        ("Tags", "[A]"),
        ("Keys", "[order-3]"),
        ("Queue ID", result["queueId"]),
        ("Queue Offset", result["queueOffset"]),
    ):
        assert re.search(rf"^{name}: +{re.escape(str(value))}$", text, re.MULTILINE), text
    assert result["msgId"] in text


def test_mqadmin_query_by_key(stage: Stage) -> None:
    rows = stage.mqadmin.table("queryMsgByKey", "-t", TOPIC, "-k", "order-3")
    result = stage.sent[3]
    assert rows[1:] == [[result["msgId"], str(result["queueId"]), str(result["queueOffset"])]]


def test_mqadmin_query_by_unique_key(stage: Stage) -> None:
    text = stage.mqadmin.run("queryMsgByUniqueKey", "-t", TOPIC, "-i", stage.sent[3]["msgId"])
    assert_is_order_3(text, stage)


def test_mqadmin_query_by_offset(stage: Stage) -> None:
    result = stage.sent[3]
    place = ("-b", BROKER, "-i", str(result["queueId"]), "-o", str(result["queueOffset"]))
    text = stage.mqadmin.run("queryMsgByOffset", "-t", TOPIC, *place)
    assert_is_order_3(text, stage)
    assert result["offsetMsgId"] in text


def test_mqadmin_send_and_consume(mqadmin: Mqadmin) -> None:
    """sendMessage, consumeMessage."""
    text = mqadmin.run("sendMessage", "-t", "ByHand", "-p", "hello", "-k", "K", "-c", "T")
    assert re.search(rf"^{BROKER} +\d +SEND_OK +\w+", text, re.MULTILINE)
    consumed = mqadmin.run("consumeMessage", "-t", "ByHand", "-g", "by-hand")
    assert "Consume ok" in consumed
    assert "TAGS=T" in consumed
    assert "BODY: hello" in consumed


def test_mqadmin_print_messages_of_a_topic(stage: Stage) -> None:
    text = stage.mqadmin.run("printMsg", "-t", TOPIC, "-d", "true")
    for result in stage.sent:
        assert text.count(f"MSGID: {result['msgId']}") == 1
    assert "BODY: order 7" in text


def test_mqadmin_print_messages_of_a_queue(stage: Stage) -> None:
    place = ("-a", BROKER, "-i", "1", "-p", "true", "-d", "true")
    text = stage.mqadmin.run("printMsgByQueue", "-t", TOPIC, *place)
    for result in stage.sent:
        assert (f"MSGID: {result['msgId']}" in text) == (result["queueId"] == 1)


def test_mqadmin_query_trace(stage: Stage) -> None:
    found: list[str] = []

    def look() -> bool:
        """Clients write traces within 5 s."""
        found.append(stage.mqadmin.run_anyway("queryMsgTraceById", "-i", stage.sent[3]["msgId"]))
        return "Sub " in found[-1]

    stage.probe.wait_for(look, what="both traces are stored")
    assert re.search(rf"^Pub +{PRODUCERS} +.*success", found[-1], re.MULTILINE)
    assert re.search(rf"^Sub +{GROUP} +.*success", found[-1], re.MULTILINE)


def test_mqadmin_reset_offset_by_time(stage: Stage) -> None:
    """A running consumer starts over."""
    stage.probe.ask("consumer", "again", group="again", topic=TOPIC)
    had = len(stage.probe.wait_events("again", COUNT))
    rows = stage.mqadmin.table("resetOffsetByTime", "-g", "again", "-t", TOPIC, "-s", "1000")
    assert sorted(rows_of(rows, BROKER)) == [[BROKER, str(queue), "0"] for queue in range(4)]
    stage.probe.wait_events("again", had + COUNT)
    stage.probe.stop("again")


def test_mqadmin_skip_accumulated_messages(stage: Stage) -> None:
    """Messages sent while there was no consumer are skipped."""
    probe, topic = stage.probe, "Skipped"
    probe.send("p", topic, "taken")
    probe.ask("consumer", "skip-1", group="skip", topic=topic)
    probe.wait_events("skip-1")
    probe.stop("skip-1")
    for n in range(8):
        probe.send("p", topic, f"skipped {n}")
    rows = stage.mqadmin.table("skipAccumulatedMessage", "-g", "skip", "-t", topic)
    assert queue_totals(rows_of(rows, BROKER), 2) == 9
    assert "Consume Diff Total: 0" in stage.mqadmin.run("consumerProgress", "-g", "skip")
    probe.ask("consumer", "skip-2", group="skip", topic=topic)
    probe.send("p", topic, "after")
    probe.wait_bodies(["after"], "skip-2")
    probe.stop("skip-2")


def test_mqadmin_wipes_and_restores_write_permission(mqadmin: Mqadmin) -> None:
    """wipeWritePerm, addWritePerm."""
    assert " OK, " in mqadmin.run("wipeWritePerm", "-b", BROKER)
    assert '"perm":4' in mqadmin.run("topicRoute", "-t", TOPIC)
    assert " OK, " in mqadmin.run("addWritePerm", "-b", BROKER)
    assert '"perm":6' in mqadmin.run("topicRoute", "-t", TOPIC)


def test_mqadmin_stats_of_all_topics(mqadmin: Mqadmin) -> None:
    rows = mqadmin.table("statsAll", "-t", TOPIC)
    assert [TOPIC, GROUP] in [row[:2] for row in rows]
    [row] = [row for row in rows if row[1] == GROUP]
    assert row[2] == "0"
    assert int(row[5]) >= COUNT


def test_mqadmin_producers_of_a_broker(stage: Stage) -> None:
    text = stage.mqadmin.run("producer", "-b", stage.server.broker)
    assert re.search(rf"producer group \({PRODUCERS}\) instance : clientId=\S+@p,.*JAVA", text)


def test_mqadmin_consume_stats_of_a_broker(stage: Stage) -> None:
    found: list[list[str]] = []

    def look() -> bool:
        """Consumers commit every 5 s; the tool does not show them before."""
        rows = stage.mqadmin.table("brokerConsumeStats", "-b", stage.server.broker)
        found[:] = [row for row in rows if row[:3] == [TOPIC, GROUP, BROKER]]
        return queue_totals(found, 5) >= COUNT

    stage.probe.wait_for(look, what="all offsets are committed")
    assert queue_totals(found, 4) >= COUNT


def test_mqadmin_clone_offsets(stage: Stage) -> None:
    clone = ("-s", GROUP, "-d", "copied", "-t", TOPIC, "-o", "true")
    assert "clone group offset success" in stage.mqadmin.run("cloneGroupOffset", *clone)


def test_mqadmin_query_units_of_a_queue(stage: Stage) -> None:
    result = stage.sent[3]
    place = ("-q", str(result["queueId"]), "-i", str(result["queueOffset"]), "-c", "1")
    text = stage.mqadmin.run("queryCq", "-t", TOPIC, *place, "-b", stage.server.broker)
    assert f"physicOffset={int(result['offsetMsgId'][-16:], 16)}," in text


def test_mqadmin_update_order_of_a_topic(mqadmin: Mqadmin) -> None:
    order = f"{BROKER}:4"
    put = mqadmin.run("updateOrderConf", "-t", TOPIC, "-v", order, "-m", "put")
    assert "update orderConf success" in put
    assert f"orderConf=[{order}]" in mqadmin.run("updateOrderConf", "-t", TOPIC, "-m", "get")
