"""The blocking faces: the same consumers for code without an event loop."""

import threading
from collections.abc import Iterable

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.offsets import StartPosition
from tianzhou.client.core.pulling import PullStatus
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.errors import ClientClosed, GroupNotExist
from tianzhou.client.sync.lite_pull import LitePullConsumer
from tianzhou.client.sync.producer import Producer
from tianzhou.client.sync.pull_consumer import PullConsumer
from tianzhou.client.sync.push_consumer import PushConsumer
from tianzhou.record.message import Message
from tianzhou.testing import RunningBroker
from tianzhou.wire.queues import MessageQueue

ALL = {"orders": "*"}


def send(mq: RunningBroker, bodies: Iterable[bytes]) -> None:
    with Producer("senders", nameserver=mq.nameserver) as producer:
        for body in bodies:
            producer.send(Message("orders", body))


def push(mq: RunningBroker, **options: object) -> PushConsumer:
    made = ConsumerOptions(**options)  # pyright: ignore[reportArgumentType] # the class checks them
    return PushConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=made)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("orderly", [False, True])
def test_blocking_loop_gets_every_message_once(mq: RunningBroker, orderly: bool) -> None:
    mq.create_topic("orders", queues=2)
    send(mq, numbers(300))
    got: list[int] = []
    with push(mq, orderly=orderly) as consumer:
        for message in consumer:
            got.append(int(message.body))
            if len(got) == 300:
                break
    assert sorted(got) == list(range(300))
    assert mq.lag("g", "orders") == 0


def test_blocking_loop_that_breaks_loses_no_prefetched_message(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    send(mq, numbers(200))
    got: list[int] = []
    with push(mq) as consumer:
        for end in (50, 51, 200):
            for message in consumer:
                got.append(int(message.body))
                if len(got) == end:
                    break
    # The first message of each later loop is the one behind the last of the loop before: leaving
    # a loop without an exception ends in its acknowledgement.
    assert got == list(range(200))
    assert mq.lag("g", "orders") == 0


def test_blocking_loop_that_raises_gets_its_message_again(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    send(mq, numbers(10))

    def fail() -> None:
        with push(mq) as consumer:
            for message in consumer:
                if message.body == b"4":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert mq.committed("g", "orders") == {0: 4}


def test_blocking_batches_can_be_acknowledged_explicitly(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    send(mq, numbers(10))
    with push(mq, auto_ack=False) as consumer:
        for batch in consumer.batches(4):
            for message in batch:
                if message.body == b"2":
                    message.retry()
                else:
                    message.ack()
            if batch[-1].body == b"9":
                break
        mq.wait_until(lambda: mq.stored("SCHEDULE_TOPIC_XXXX"))
        consumer.commit()
    assert mq.lag("g", "orders") == 0
    assert [message.body for message in mq.stored("SCHEDULE_TOPIC_XXXX")] == [b"2"]


def test_blocking_listener_gets_every_message(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=2)
    send(mq, numbers(50))
    got: list[bytes] = []
    consumer = push(mq)

    @consumer.listen
    def listener(message: ReceivedMessage) -> None:  # pyright: ignore[reportUnusedFunction] # the consumer has it
        got.append(message.body)

    with consumer:
        mq.wait_until(lambda: len(got) == 50)
        mq.wait_until(lambda: len(consumer.assignment) == 3)
        consumer.pause()
        consumer.resume()
        with pytest.raises(UsageError, match="has a listener"):
            next(iter(consumer))
    assert mq.lag("g", "orders") == 0
    with pytest.raises(ClientClosed):
        consumer.pause()


def test_blocking_run_continues_until_it_is_stopped(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    consumer, got = push(mq), threading.Event()

    @consumer.listen
    def listener(_message: ReceivedMessage) -> None:  # pyright: ignore[reportUnusedFunction] # the consumer has it
        got.set()

    running = threading.Thread(target=consumer.run)
    running.start()
    send(mq, [b"1"])
    assert got.wait(120)
    consumer.stop()
    running.join(120)
    assert not running.is_alive()
    assert mq.lag("g", "orders") == 0


def test_blocking_loop_raises_the_error_that_ended_the_consumer(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)

    def consume() -> None:
        with push(mq) as consumer:
            for _ in consumer:
                pass

    with mq.faults.refuse([11], 26), pytest.raises(GroupNotExist):
        consume()


def test_blocking_lite_pull_and_pull_consumers_read_messages(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    send(mq, numbers(20))
    queue = MessageQueue(topic="orders", broker_name=mq.name, queue_id=0)
    options = ConsumerOptions(start_from=StartPosition.FIRST, auto_ack=False)
    with LitePullConsumer("g", nameserver=mq.nameserver, options=options) as lite:
        assert lite.queues("orders") == (queue,)
        lite.assign([queue])
        assert len(lite.poll(count_max=5)) == 5
        lite.commit()
        assert lite.committed(queue) == lite.position(queue) == 5
        lite.seek(queue, lite.offset_at(queue, 0))
        lite.pause([queue])
        assert lite.poll(0.05) == []
        lite.resume([queue])
        assert lite.poll()[0].body == b"0"
        lite.seek_to_end(queue)
        lite.seek_to_first(queue)
        assert lite.assignment == {queue}
    with PullConsumer("g", nameserver=mq.nameserver) as plain:
        found = plain.pull(queue, 18)
        assert (found.status, len(found.messages)) == (PullStatus.FOUND, 2)
        assert (plain.first(queue), plain.end(queue), plain.offset_at(queue, 0)) == (0, 20, 0)
        plain.commit(queue, 7)
        assert plain.committed(queue) == 7
        assert plain.queues("orders") == (queue,)
