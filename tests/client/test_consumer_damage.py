"""Messages that rotted in the log: our consumers get the others, and readers of ranges say so."""

import pytest

from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.bulk.reader import OffsetGone, QueueRange, QueueReader
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.offsets import StartPosition
from tianzhou.client.sync import Producer, PushConsumer
from tianzhou.record.message import Message, MessageView
from tianzhou.testing import RunningBroker

TOPIC = "rotting"
BODIES = [b"message %d is whole" % number for number in range(6)]


@pytest.fixture
def rotting(mq: RunningBroker) -> RunningBroker:
    mq.create_topic(TOPIC, queues=1)
    with Producer("rotting", nameserver=mq.nameserver) as producer:
        for body in BODIES:
            producer.send(Message(TOPIC, body))
    return mq


def damage(mq: RunningBroker, *numbers: int) -> None:
    """Flip a bit of these messages, under the broker that has them mapped."""
    (file,) = (mq.directory / "store" / "commitlog").iterdir()
    with file.open("r+b") as log:
        data = log.read(2**20)
        for number in numbers:
            log.seek(data.index(BODIES[number]))
            log.write(bytes([BODIES[number][0] ^ 1]))


def whole(*missing: int) -> list[bytes]:
    return [body for number, body in enumerate(BODIES) if number not in missing]


def test_consumer_skips_damaged_messages(rotting: RunningBroker) -> None:
    damage(rotting, 0, 3)
    options = ConsumerOptions(start_from=StartPosition.FIRST)
    with PushConsumer(
        "rot-readers", nameserver=rotting.nameserver, subscribe={TOPIC: "*"}, options=options
    ) as consumer:
        got: list[bytes] = []
        for message in consumer:
            got.append(message.body)
            if len(got) == len(whole(0, 3)):
                break
    assert got == whole(0, 3)
    assert rotting.lag("rot-readers", TOPIC) == 0


def read(brokers: Brokers, gone: list[OffsetGone], *, pull_count: int) -> list[bytes]:
    """The whole queue."""
    (queue,) = brokers.route(TOPIC).read_queues
    reader = QueueReader(brokers, "TOOLS_CONSUMER", pull_count=pull_count, on_gone=gone.append)
    return [
        MessageView(memoryview(run.data), start).body
        for run in reader.read(QueueRange(queue, 0, len(BODIES)))
        for start in run.starts
    ]


@pytest.mark.parametrize("pull_count", [1, 2, 32])
def test_read_range_reports_damaged_offsets(rotting: RunningBroker, pull_count: int) -> None:
    """Damage is reported even if the response contains nothing else."""
    damage(rotting, 1, 4, 5)
    gone: list[OffsetGone] = []
    with Brokers(rotting.nameserver) as brokers:
        assert read(brokers, gone, pull_count=pull_count) == whole(1, 4, 5)
        missing = [offset for one in gone for offset in range(one.first, one.end)]
        assert missing == [1, 4, 5]
        (queue,) = brokers.route(TOPIC).read_queues
        strict = QueueReader(brokers, "TOOLS_CONSUMER", pull_count=pull_count)
        with pytest.raises(OffsetGone, match=r"offsets? 4"):
            list(strict.read(QueueRange(queue, 4, 6)))
