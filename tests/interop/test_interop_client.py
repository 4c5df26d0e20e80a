"""RocketMQ's Java clients work with our servers as with RocketMQ."""

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import client_probe
import client_servers
import pytest
from client_build import FIVE, FOUR, build
from client_probe import ARRIVAL_SECONDS_MAX, ClientProbe, ProbeError

from clients.server_process import ServerProcess
from tianzhou.client.sync import Admin, Message, Producer
from tianzhou.wire.queues import MessageQueue

ZLIB_FLAG: Final = 0x300
"""The type of compression; the client clears the compression flag when it decompresses."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("client")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[ServerProcess]:
    with client_servers.up(home / "up") as running:
        yield running


@pytest.fixture(scope="module")
def five(home: Path, server: ServerProcess) -> Iterator[ClientProbe]:
    with client_probe.running(build(FIVE), server.nameserver, home / "five") as probe:
        probe.ask("producer", "p")
        yield probe


@pytest.fixture(scope="module")
def binary(home: Path, server: ServerProcess) -> Iterator[ClientProbe]:
    option = "-Drocketmq.serialize.type=ROCKETMQ"
    with client_probe.running(build(FIVE), server.nameserver, home / "binary", option) as probe:
        yield probe


@pytest.fixture(scope="module")
def four(home: Path, server: ServerProcess) -> Iterator[ClientProbe]:
    with client_probe.running(build(FOUR), server.nameserver, home / "four") as probe:
        yield probe


@pytest.fixture(scope="module")
def hasty(home: Path) -> Iterator[ClientProbe]:
    """A client of the broker with short retry intervals."""
    with (
        client_servers.impatient(home / "impatient") as server,
        client_probe.running(build(FIVE), server.nameserver, home / "hasty") as probe,
    ):
        probe.ask("producer", "p")
        yield probe


def send_and_push(probe: ClientProbe, name: str) -> None:
    """Send and consume: what every client does."""
    producer, consumer = f"{name}-p", f"{name}-c"
    probe.ask("producer", producer)
    bodies = [f"{name}-{n}" for n in range(20)]
    sent = [probe.send(producer, name, body) for body in bodies[:10]]
    assert {line["status"] for line in sent} == {"SEND_OK"}
    assert {line["queueId"] for line in sent} == {0, 1, 2, 3}
    probe.ask("consumer", consumer, group=consumer, topic=name)
    for body in bodies[10:]:
        probe.send(producer, name, body)
    probe.wait_bodies(bodies, consumer)
    got = {message["msgId"] for message in probe.events(consumer)}
    assert {line["msgId"] for line in sent} <= got
    probe.stop(producer, consumer)


def test_java_5_client_sends_and_consumes(five: ClientProbe) -> None:
    send_and_push(five, "plain-five")


def test_java_4_client_sends_and_consumes(four: ClientProbe) -> None:
    send_and_push(four, "plain-four")


def test_java_client_with_binary_headers_sends_and_consumes(binary: ClientProbe) -> None:
    send_and_push(binary, "plain-binary")


def test_java_clients_use_light_queues(hasty: ClientProbe) -> None:
    a, b = "%LMQ%a", "%LMQ%b"
    for body, light in (("one", a), ("both", f"{a},{b}"), ("none", "")):
        options = {"light": light} if light else {}
        assert hasty.send("p", "Light", body, **options)["status"] == "SEND_OK"
    hasty.send("p", "Light", "later", level=1, light=b)

    def pulled(name: str, queue: str, offset: int = 0) -> dict[str, Any]:
        return hasty.ask(
            "pull",
            name,
            group="light",
            topic="Light",
            queue=queue,
            broker="broker-a",
            offset=offset,
        )

    found = pulled("l1", a)
    assert (found["status"], found["next"], found["min"], found["max"]) == ("FOUND", 2, 0, 2)
    assert [message["body"] for message in found["messages"]] == ["one", "both"]
    offsets = [
        [int(text) for text in message["properties"]["INNER_MULTI_QUEUE_OFFSET"].split(",")]
        for message in found["messages"]
    ]
    assert offsets == [[0], [1, 0]]
    assert pulled("l2", a, offset=2)["status"] == "NO_NEW_MSG"
    hasty.wait_for(lambda: pulled("l3", b)["max"] == 2, "the delayed message")
    assert [message["body"] for message in pulled("l4", b)["messages"]] == ["both", "later"]


def test_java_producer_sends_in_every_mode(five: ClientProbe) -> None:
    assert five.send("p", "Ways", "sync", tags="T", keys="K", property_x="y")["queueOffset"] == 0
    assert five.send("p", "Ways", "async", how="async")["status"] == "SEND_OK"
    five.send("p", "Ways", "oneway", how="oneway")
    assert five.send("p", "Ways", how="batch", bodies="b1,b2,b3")["status"] == "SEND_OK"
    five.ask("consumer", "ways", group="ways", topic="Ways")
    five.wait_bodies(["sync", "async", "oneway", "b1", "b2", "b3"], "ways")
    first = next(message for message in five.events("ways") if message["body"] == "sync")
    assert (first["tags"], first["keys"], first["properties"]["x"]) == ("T", "K", "y")
    batch = [line for line in five.events("ways") if line["body"] in {"b1", "b2", "b3"}]
    assert len({line["queueId"] for line in batch}) == 1
    assert len({line["msgId"] for line in batch}) == 3
    five.stop("ways")


def test_java_producer_compresses_with_every_algorithm(five: ClientProbe) -> None:
    five.send("p", "Large", size=100_000)
    five.ask("consumer", "large", group="large", topic="Large")
    [message] = five.wait_events("large")
    assert (message["bodySize"], message["bodyCrc"]) == (100_000, crc32(b"x" * 100_000))
    assert message["sysFlag"] & ZLIB_FLAG == ZLIB_FLAG
    assert message["storeSize"] < 2_000
    five.stop("large")


def test_java_producer_with_a_too_large_body_is_rejected(five: ClientProbe) -> None:
    five.ask("producer", "careless", maxSize=8_000_000, compressOver=8_000_000)
    with pytest.raises(ProbeError, match=r"CODE: 13 .*4194304"):
        five.send("careless", "TooLarge", size=4_194_305)
    assert five.send("careless", "TooLarge", size=4_194_304)["status"] == "SEND_OK"
    five.stop("careless")


def test_java_consumer_with_tags_gets_matching_messages(five: ClientProbe) -> None:
    for tag in "ABCABC":
        five.send("p", "Tagged", f"of {tag}", tags=tag)
    five.ask("consumer", "tags", group="tags", topic="Tagged", tags="A || C")
    five.wait_bodies(["of A", "of A", "of C", "of C"], "tags")
    five.stop("tags")


def test_java_consumer_with_sql_gets_matching_messages(five: ClientProbe) -> None:
    sql = "price BETWEEN 10 AND 20 AND (region IN ('east', 'west') OR urgent IS NOT NULL)"
    five.send("p", "Sql", "in", property_price=15, property_region="east")
    five.send("p", "Sql", "out: region", property_price=15, property_region="north")
    five.send("p", "Sql", "in: urgent", property_price=20, property_urgent=1)
    five.send("p", "Sql", "out: price", property_price=21, property_region="east")
    five.send("p", "Sql", "out: nothing")
    five.ask("consumer", "sql", group="sql", topic="Sql", sql=sql)
    five.wait_bodies(["in", "in: urgent"], "sql")
    five.stop("sql")


def test_java_consumer_with_invalid_sql_fails_to_start(five: ClientProbe) -> None:
    with pytest.raises(ProbeError, match=r"CODE: 23 .*expected a property"):
        five.ask("consumer", "wrong", group="wrong", topic="Sql", sql="price BETWEEN AND")


def test_java_broadcast_reaches_every_consumer(five: ClientProbe) -> None:
    five.send("p", "Broad", "0")
    for name in ("broad-1", "broad-2"):
        five.ask("consumer", name, group="broad", topic="Broad", broadcasting=True)
    five.send("p", "Broad", "1")
    for name in ("broad-1", "broad-2"):
        five.wait_bodies(["0", "1"], name)
    five.stop("broad-1", "broad-2")


def test_java_group_members_share_the_queues(five: ClientProbe) -> None:
    sent = ["0"]
    five.send("p", "Shared", "0")
    names = ("share-1", "share-2")
    for name in names:
        five.ask("consumer", name, group="share", topic="Shared")

    def both_have_some() -> bool:
        sent.append(str(len(sent)))
        five.send("p", "Shared", sent[-1])
        return all(five.bodies(name) for name in names)

    five.wait_for(both_have_some, what="each member has a part")
    five.wait_for(lambda: {*five.bodies(*names)} == {*sent}, what="together they have everything")
    five.stop("share-1")
    five.send("p", "Shared", "last")
    sent.append("last")
    five.wait_for(lambda: "last" in five.bodies("share-2"), what="the other member takes over")
    five.stop("share-2")


def test_java_orderly_consumer_keeps_the_order_of_keys(five: ClientProbe) -> None:
    """Messages with the same key arrive in send order, including retries."""
    keys = ("apple", "pear", "plum", "fig", "lime", "kiwi")
    for n in range(8):
        for key in keys:
            five.send("p", "Ordered", f"{key} {n}", how="hash", hash=key)
    five.ask("consumer", "order", group="order", topic="Ordered", orderly=True, fail=1)
    got: dict[str, list[int]] = defaultdict(list)
    for message in five.wait_events("order", 2 * 8 * len(keys)):
        if message["reconsumeTimes"]:
            key, _, n = message["body"].partition(" ")
            got[key].append(int(n))
    assert got == {key: list(range(8)) for key in keys}
    five.stop("order")


def test_java_delayed_message_arrives_on_time(five: ClientProbe) -> None:
    five.send("p", "Levels", "now")
    five.send("p", "Levels", "1 s", level=1)
    five.send("p", "Levels", "5 s", level=2)
    five.ask("consumer", "level", group="level", topic="Levels")
    five.wait_bodies(["now", "1 s", "5 s"], "level")
    for message in five.events("level"):
        wanted_ms = {"now": 0, "1 s": 1_000, "5 s": 5_000}[message["body"]]
        assert 0 <= message["storedMs"] - message["bornMs"] - wanted_ms < 2_000, message
    five.stop("level")


def test_java_timed_message_arrives_on_time(five: ClientProbe) -> None:
    due_ms = int(time.time() * 1_000) + 4_000
    five.send("p", "Timed", "ms", setDelayTimeMs=2_500)
    five.send("p", "Timed", "s", setDelayTimeSec=2)
    five.send("p", "Timed", "at", setDeliverTimeMs=due_ms)
    five.ask("consumer", "timed", group="timed", topic="Timed")
    five.wait_bodies(["ms", "s", "at"], "timed")
    for message in five.events("timed"):
        wanted_ms = {"ms": 2_500, "s": 2_000, "at": due_ms - message["bornMs"]}[message["body"]]
        assert 0 <= message["storedMs"] - message["bornMs"] - wanted_ms < 2_000, message
    five.stop("timed")


def test_java_recall_cancels_a_timed_message(five: ClientProbe) -> None:
    recalled = five.send("p", "Recalled", "never", setDelayTimeMs=3_000)
    five.send("p", "Recalled", "later", setDelayTimeMs=4_000)
    answer = five.ask("recall", "p", topic="Recalled", handle=recalled["recallHandle"])
    assert answer == {"recalled": recalled["msgId"]}
    five.ask("consumer", "recall", group="recall", topic="Recalled")
    five.wait_bodies(["later"], "recall")
    five.stop("recall")


def test_java_lite_pull_consumer_polls_seeks_and_commits(five: ClientProbe) -> None:
    bodies = [f"lite {n}" for n in range(25)]
    for body in bodies:
        five.send("p", "Lite", body)
    five.ask("lite", "lite-1", group="lite", topic="Lite")
    assert sorted(line["body"] for line in five.poll("lite-1", 25)) == sorted(bodies)
    five.ask("commit", "lite-1")
    five.stop("lite-1")
    five.send("p", "Lite", "after", tags="T")
    five.ask("lite", "lite-2", group="lite", topic="Lite")
    assert [line["body"] for line in five.poll("lite-2", 1)] == ["after"]
    five.stop("lite-2")


@pytest.mark.parametrize("version", ["five", "four", "binary"])
def test_java_consumer_gets_messages_of_new_queues(
    version: str, server: ServerProcess, request: pytest.FixtureRequest
) -> None:
    """A notice about a topic has a field that Java does not know; its client rebalances with the
    route that it has, and refreshes that every 30 seconds."""
    probe: ClientProbe = request.getfixturevalue(version)
    topic, name = f"Growing-{version}", f"growing-{version}"
    with Admin(nameserver=server.nameserver) as admin:
        admin.topics.create(topic, queues=2)
        probe.ask("consumer", name, group=name, topic=topic)
        with Producer(f"p-{name}", nameserver=server.nameserver) as producer:
            producer.send(Message(topic, b"before"))
            probe.wait_events(name)
            admin.topics.update(topic, read_queues=6, write_queues=6)
            queues = [
                MessageQueue(topic=topic, broker_name=queue.broker_name, queue_id=queue_id)
                for queue in producer.queues(topic)[:1]
                for queue_id in range(6)
            ]
            for queue in queues:
                producer.send(Message(topic, b"%d" % queue.queue_id), queue=queue)
        probe.wait_events(name, 7, within_s=2 * ARRIVAL_SECONDS_MAX)
    assert sorted(probe.bodies(name)) == ["0", "1", "2", "3", "4", "5", "before"]
    probe.stop(name)


@pytest.mark.parametrize("version", ["five", "four"])
def test_java_request_gets_a_reply(version: str, request: pytest.FixtureRequest) -> None:
    probe: ClientProbe = request.getfixturevalue(version)
    topic, asker, replier, answers = (f"{word}-{version}" for word in ("Ask", "a", "r", "c"))
    for producer in (asker, replier):
        probe.ask("producer", producer)
    # Not from the requesting client: it identifies itself to the broker when it first uses a topic,
    # and otherwise perhaps only after 30 s. Until then no reply can reach it.
    probe.send(replier, topic, "no question")
    probe.ask("consumer", answers, group=answers, topic=topic, reply=replier)
    probe.wait_events(answers)
    answer = probe.send(asker, topic, "how are you?", how="request")
    assert answer == {"reply": "re: how are you?"}
    probe.stop(answers, asker, replier)


def test_java_traces_are_stored(five: ClientProbe) -> None:
    """The clients send traces to a separate topic."""
    five.send("p", "RMQ_SYS_TRACE_TOPIC", "no trace", keys="none")
    five.ask("producer", "traced", trace=True)
    sent = five.send("traced", "Traced", "hello", tags="T", keys="order-7")
    five.ask("consumer", "tracer", group="tracer", topic="Traced", trace=True)
    five.wait_events("tracer")
    five.ask("consumer", "auditor", group="auditor", topic="RMQ_SYS_TRACE_TOPIC")

    def seen() -> set[str]:
        found: set[str] = set()
        for message in five.events("auditor"):
            if sent["msgId"] in message["keys"]:
                records = [record.split("\1") for record in message["body"].split("\2")]
                found |= {fields[0] for fields in records if sent["msgId"] in fields}
        return found

    wanted = {"Pub", "SubBefore", "SubAfter"}
    five.wait_for(lambda: seen() == wanted, what=f"{wanted} are traced")
    five.stop("traced", "tracer", "auditor")


def test_java_transactions_are_committed_rolled_back_and_checked(hasty: ClientProbe) -> None:
    hasty.ask("producer", "tx", transaction=True)

    def begin(body: str, local: str, check: str = "UNKNOW") -> None:
        sent = hasty.send(
            "tx", "Decided", body, how="transaction", property_local=local, property_check=check
        )
        assert (sent["status"], sent["local"]) == ("SEND_OK", local)

    def checked() -> list[str]:
        return [message["body"] for message in hasty.events("tx", "check")]

    begin("committed at once", "COMMIT_MESSAGE")
    begin("rolled back at once", "ROLLBACK_MESSAGE")
    begin("committed by check", "UNKNOW", "UNKNOW,COMMIT_MESSAGE")
    begin("rolled back by check", "UNKNOW", "ROLLBACK_MESSAGE")
    hasty.ask("consumer", "decided", group="decided", topic="Decided")
    hasty.wait_bodies(["committed at once", "committed by check"], "decided")
    assert checked().count("committed by check") == 2
    hasty.wait_for(
        lambda: "rolled back by check" in checked(), what="the other transaction is checked"
    )
    hasty.send("p", "Decided", "end")
    hasty.wait_bodies(["committed at once", "committed by check", "end"], "decided")
    hasty.stop("tx", "decided")


def start_known(probe: ClientProbe, name: str, **options: object) -> None:
    """Start a consumer whose group existed before: the client of a new group does not learn about
    its retry topic for 20 s."""
    probe.send("p", "Before", "x")
    probe.ask("consumer", f"{name}-before", group=name, topic="Before")
    probe.stop(f"{name}-before")
    probe.ask("consumer", name, group=name, **options)


def test_java_consumer_retries_until_success(hasty: ClientProbe) -> None:
    sent = hasty.send("p", "Retried", "again", tags="T", keys="K")
    start_known(hasty, "retry", topic="Retried", fail=2)
    got = hasty.wait_events("retry", 3)
    assert [message["reconsumeTimes"] for message in got] == [0, 1, 2]
    assert {(line["topic"], line["tags"], line["keys"]) for line in got} == {("Retried", "T", "K")}
    assert {message["msgId"] for message in got} == {sent["msgId"]}
    assert got[2]["properties"]["ORIGIN_MESSAGE_ID"] == sent["offsetMsgId"]
    hasty.stop("retry")


def test_java_message_out_of_retries_becomes_a_dead_letter(hasty: ClientProbe) -> None:
    sent = hasty.send("p", "Dying", "hopeless", keys="K")
    start_known(hasty, "dead", topic="Dying", fail=99, attempts=2)
    hasty.wait_events("dead", 3)
    hasty.ask("consumer", "grave", group="grave", topic="%DLQ%dead")
    [letter] = hasty.wait_events("grave")
    assert (letter["body"], letter["keys"]) == ("hopeless", "K")
    assert letter["properties"]["RETRY_TOPIC"] == "Dying"
    assert letter["properties"]["ORIGIN_MESSAGE_ID"] == sent["offsetMsgId"]
    assert len(hasty.events("dead")) == 3
    hasty.stop("dead", "grave")
