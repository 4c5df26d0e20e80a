"""Blocking connections to NameServers and brokers: lists of addresses, restarts, deleted
messages."""

import time

import pytest

from clients.server_process import Lives, ServerProcess, spare_port
from clients.waiting import wait_until
from spark.filling import Filling
from tianzhou.broker.config import BrokerConfig
from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.bulk.reader import OffsetGone, QueueRange, QueueReader
from tianzhou.client.bulk.sender import BatchSender, Entry
from tianzhou.client.core.routing import queue_for_key
from tianzhou.client.errors import NoNameServer, TopicNotFound
from tianzhou.net.blocking import BlockingPeer
from tianzhou.record.message import MessageView
from tianzhou.spark.idempotence import missing_entries
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.signing import Credentials

pytestmark = pytest.mark.slow


def bodies(reader: QueueReader, wanted: QueueRange) -> list[bytes]:
    return [
        MessageView(memoryview(run.data), start).body
        for run in reader.read(wanted)
        for start in run.starts
    ]


def test_unreachable_nameservers_are_skipped(server: ServerProcess) -> None:
    dead = [f"127.0.0.1:{spare_port()}" for _ in range(3)]
    for _ in range(5):  # in any order
        with Brokers(";".join([*dead, server.nameserver])) as brokers:
            assert brokers.topics()
    with Brokers(";".join(dead)) as brokers, pytest.raises(NoNameServer) as caught:
        brokers.topics()
    assert set(caught.value.failures) == set(dead)


def test_route_of_an_unknown_topic_raises(server: ServerProcess, topic: str) -> None:
    with Brokers(server.nameserver) as brokers, pytest.raises(TopicNotFound, match=topic):
        brokers.route(topic)


def test_credentials_sign_every_request(server: ServerProcess) -> None:
    mine = Credentials(access_key="me", secret_key="hush")
    signed = mine.sign({"topic": "t", "queueId": "1"}, b"body")
    # The values in the order of their names (AccessKey, queueId, topic), then the body:
    # printf 'me1tbody' | openssl dgst -sha1 -hmac hush -binary | base64
    assert signed["Signature"] == "S8RA7ehSMphk0kTz46Opv3nTny8="
    with Brokers(server.nameserver, credentials=mine) as brokers:
        assert brokers.topics()


def test_range_is_read_completely_and_not_beyond(filling: Filling, topic: str) -> None:
    filling.create(topic, 1)
    sent = [text.encode() for text in filling.many(topic, 5_000)]
    (queue,) = filling.queues(topic)
    reader = QueueReader(filling.brokers, "TOOLS_CONSUMER")
    assert bodies(reader, QueueRange(queue, 0, 5_000)) == sent
    assert bodies(reader, QueueRange(queue, 1_234, 3_456)) == sent[1_234:3_456]
    assert bodies(reader, QueueRange(queue, 7, 7)) == []


def test_queue_shorter_than_the_range_raises(
    filling: Filling, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tianzhou.client.bulk import reader

    monkeypatch.setattr(reader, "WAIT_FOR_TAIL_S", 0.2)
    filling.create(topic, 1)
    filling.many(topic, 10)
    (queue,) = filling.queues(topic)
    with pytest.raises(OffsetGone, match=r"5 messages with offsets 10 to 14 are missing.*at 10"):
        bodies(QueueReader(filling.brokers, "TOOLS_CONSUMER"), QueueRange(queue, 0, 15))
    gone: list[OffsetGone] = []
    patient = QueueReader(filling.brokers, "TOOLS_CONSUMER", on_gone=gone.append)
    assert len(bodies(patient, QueueRange(queue, 0, 15))) == 10
    assert [(one.first, one.end) for one in gone] == [(10, 15)]


def test_missing_entries_returns_messages_that_are_not_stored(filling: Filling, topic: str) -> None:
    """A sender asks after its connection broke which of its messages are not stored."""
    filling.create(topic, 1)
    filling.many(topic, 10)
    (queue,) = filling.queues(topic)
    began = {queue: filling.ends(topic)[0]}
    entries = [Entry(b"x", b"UNIQ_KEY\x01%032X\x02" % number) for number in range(10)]
    sender = BatchSender(filling.brokers, "tests")
    for entry in entries[:6]:
        sender.add(topic, entry)
    sender.flush()
    assert missing_entries(filling.brokers, began)(queue, entries[4:]) == entries[6:]


@pytest.mark.parametrize("is_alone", [False, True], ids=["batch", "alone"])
def test_keyed_messages_move_away_from_a_drained_broker(
    mq: RunningBroker, *, is_alone: bool
) -> None:
    """Each key keeps its queue and its order, as with any other producer."""
    with RunningBroker(nameserver=mq, config=BrokerConfig(name="broker-b")) as other:
        for broker in (mq, other):
            broker.create_topic("steps", queues=2)
        with Brokers(mq.nameserver) as brokers:
            mq.wait_until(
                lambda: len(brokers.route("steps", refresh=True).write_queues) == 4, what="a route"
            )
            sender = BatchSender(brokers, "tests")
            keys = [str(number) for number in range(8)]
            with BlockingPeer(mq.broker) as peer:
                peer.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4\n")
            for step in range(3):
                for key in keys:
                    entry = Entry(f"{key}-{step}".encode(), b"")
                    (sender.add_alone if is_alone else sender.add)("steps", entry, key)
            sender.flush()
            queues = brokers.route("steps", refresh=True).write_queues
        found = [(message.queue_id, message.body.decode()) for message in other.stored("steps")]
        assert not mq.stored("steps")
        for key in keys:
            of_key = [(queue, body) for queue, body in found if body.startswith(f"{key}-")]
            wanted = queue_for_key(queues, key).queue_id
            assert of_key == [(wanted, f"{key}-{step}") for step in range(3)]


def test_keyed_messages_create_their_topic(filling: Filling, topic: str) -> None:
    sender = BatchSender(filling.brokers, "writers")
    for n in range(20):
        entry = Entry(b"%d" % n, b"UNIQ_KEY\x01%032X\x02" % n)
        sender.add(topic, entry, sharding_key=f"k{n % 3}")
    sender.flush()
    wait_until(lambda: topic in filling.brokers.topics(), within_s=10, what="the new topic")
    filling.brokers.forget(topic)
    ends = filling.brokers.max_offsets(filling.queues(topic)).values()
    assert sum(ends) == 20
    assert len([end for end in ends if end]) <= 3


def test_range_is_read_across_a_broker_restart(
    topic: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lives = Lives(tmp_path_factory.mktemp("lives"))
    try:
        server = lives.start()
        with Filling(server.nameserver) as filling:
            filling.create(topic, 1)
            sent = [text.encode() for text in filling.many(topic, 30_000, size=200)]
            (queue,) = filling.queues(topic)
            runs = QueueReader(filling.brokers, "TOOLS_CONSUMER").read(QueueRange(queue, 0, 30_000))
            found = [MessageView(bytearray(r.data), s).body for r in [next(runs)] for s in r.starts]
            server.kill()
            begun = time.monotonic()
            lives.start()
            found += [MessageView(memoryview(r.data), s).body for r in runs for s in r.starts]
            assert found == sent
            assert time.monotonic() - begun < 60
    finally:
        lives.end()
