"""Messages of RocketMQ's C++ producer are stored and delivered unchanged."""

import hashlib

from clients.cpp_client import Clients

DELAY_S = 1.0
LATE_S = 1.0
SLACK_S = 2.0
"""For a busy machine; the broker's own precision is tested with a manual clock."""


def test_producer_sends_in_every_mode(clients: Clients) -> None:
    producer = clients.producer()
    for how in ("sync", "oneway", "async"):
        facts = producer.send(how, "cpp-ways", f"by {how}", tags="t", keys=f"key-{how}")
        assert facts["status"] in ("OK", "SENT")
    producer.close()
    consumer = clients.push("cpp-ways-readers", "cpp-ways")
    rows = consumer.wait_lines("got", 3)
    assert {row["body"] for row in rows} == {"by sync", "by oneway", "by async"}
    assert {row["keys"] for row in rows} == {"key-sync", "key-oneway", "key-async"}
    assert {row["tags"] for row in rows} == {"t"}
    assert len({row["id"] for row in rows}) == 3
    consumer.close()


def test_send_result_names_queue_and_offset(clients: Clients) -> None:
    producer = clients.producer()
    sent = [producer.send("orderly", "cpp-places", f"{n}", shard=2) for n in range(5)]
    assert [facts["offset"] for facts in sent] == [0, 1, 2, 3, 4]
    found = clients.pull("cpp-places-readers", "cpp-places")
    assert [(row["body"], row["offset"]) for row in found] == [(f"{n}", n) for n in range(5)]


def test_messages_of_one_sharding_key_keep_their_order_in_one_queue(clients: Clients) -> None:
    producer = clients.producer()
    for n in range(40):
        producer.send("orderly", "cpp-shards", f"{n % 4}:{n}", shard=n % 4)
    consumer = clients.push("cpp-shards-readers", "cpp-shards", model="orderly")
    rows = consumer.wait_lines("got", 40)
    for shard in range(4):
        of_shard = [row for row in rows if row["body"].startswith(f"{shard}:")]
        assert len({row["queue"] for row in of_shard}) == 1
        assert [row["body"] for row in of_shard] == [f"{shard}:{n}" for n in range(shard, 40, 4)]


def test_delayed_message_is_never_early_and_barely_late(clients: Clients) -> None:
    producer = clients.producer()
    producer.send("sync", "cpp-delays", "now")
    consumer = clients.push("cpp-delays-readers", "cpp-delays")
    consumer.wait_lines("got", 1)
    for n in range(5):
        producer.send("sync", "cpp-delays", f"later {n}", delay=1)
    rows = consumer.wait_lines("got", 6)[1:]
    assert {row["body"] for row in rows} == {f"later {n}" for n in range(5)}
    for row in rows:
        waited_s = (row["got_ms"] - row["born_ms"]) / 1000
        assert DELAY_S <= waited_s <= DELAY_S + LATE_S + SLACK_S


def test_batch_is_stored_as_single_messages(clients: Clients) -> None:
    producer = clients.producer()
    bodies = [f"item {n}" for n in range(10)]
    facts = producer.send("batch", "cpp-batches", bodies=bodies, tags="b", keys="k")
    assert facts["status"] == "OK"
    consumer = clients.push("cpp-batches-readers", "cpp-batches")
    rows = consumer.wait_lines("got", len(bodies))
    assert sorted(row["body"] for row in rows) == bodies
    assert {(row["tags"], row["keys"]) for row in rows} == {("b", "k")}


def test_body_compressed_by_the_client_arrives_intact(clients: Clients) -> None:
    producer = clients.producer()
    bodies = ["x" * 10_000, "天舟" * 100_000, "".join(map(str, range(400_000)))]
    for body in bodies:
        assert producer.send("sync", "cpp-big", body)["status"] == "OK"
    rows = clients.push("cpp-big-readers", "cpp-big").wait_lines("got", len(bodies))
    wanted = {hashlib.sha256(body.encode()).hexdigest() for body in bodies}
    assert {row["sha"] for row in rows} == wanted


def test_user_properties_arrive(clients: Clients) -> None:
    producer = clients.producer()
    producer.send("sync", "cpp-properties", "p", properties={"colour": "blau", "n": "7"})
    (row,) = clients.push("cpp-properties-readers", "cpp-properties").wait_lines("got", 1)
    assert row["colour"] == "blau"
