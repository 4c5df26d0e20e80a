"""Sends while a broker is being drained: they go to another one, and keyed ones stay in order."""

import asyncio

import pytest
from loops import Run

from tianzhou.broker.config import BrokerConfig
from tianzhou.client import Batching, Message, Producer, ProducerOptions
from tianzhou.client.core.routing import queue_for_key
from tianzhou.client.errors import SendFailed, may_be_stored
from tianzhou.net.blocking import BlockingPeer
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.routes import decode_route


def another(mq: RunningBroker) -> RunningBroker:
    """A second broker that the same NameServer knows."""
    return RunningBroker(nameserver=mq, config=BrokerConfig(name="broker-b"))


@pytest.mark.parametrize("batching", [None, Batching()], ids=["single", "gathered"])
def test_keyed_send_leaves_a_drained_broker_within_its_deadline(
    mq: RunningBroker, run: Run, batching: Batching | None
) -> None:
    """The route is stale for a while: the broker rejects sends before the producer learns why."""

    async def body() -> None:
        async with another(mq) as other:
            for broker in (mq, other):
                broker.create_topic("steps", queues=4)
            options = ProducerOptions(batching=batching)
            async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
                await mq.until(lambda: spread(mq.nameserver, "steps") == {"broker-a", "broker-b"})
                queues = await producer.queues("steps")
                key = next(
                    key
                    for key in map(str, range(100))
                    if queue_for_key(queues, key).broker_name == mq.name
                )
                drain(mq)
                results = [
                    await producer.send(Message("steps", str(step).encode(), sharding_key=key))
                    for step in range(5)
                ]
                assert {result.queue.broker_name for result in results} == {"broker-b"}
                assert len({result.queue for result in results}) == 1
            assert [m.body for m in other.stored("steps")] == [b"0", b"1", b"2", b"3", b"4"]

    run(body)


def test_keyed_send_waits_for_a_route_stale_for_a_second(mq: RunningBroker, run: Run) -> None:
    """As long as the deadline allows, however many tries that takes."""

    async def body() -> None:
        async with another(mq) as other:
            for broker in (mq, other):
                broker.create_topic("steps", queues=1)
            async with Producer("makers", nameserver=mq.nameserver) as producer:
                await mq.until(lambda: spread(mq.nameserver, "steps") == {"broker-a", "broker-b"})
                queues = await producer.queues("steps")
                key = next(
                    key
                    for key in map(str, range(100))
                    if queue_for_key(queues, key).broker_name == mq.name
                )
                with mq.faults.refuse_sends(ResponseCode.NO_PERMISSION) as refused:
                    sending = asyncio.ensure_future(
                        producer.send(Message("steps", b"x", sharding_key=key))
                    )
                    await mq.until(lambda: refused.hits == 4)
                    drain(mq)
                    assert (await sending).queue.broker_name == "broker-b"

    run(body)


def test_send_to_a_given_queue_of_a_drained_broker_fails_at_once(
    mq: RunningBroker, run: Run
) -> None:
    """The sender chose the queue; no other will do."""

    async def body() -> None:
        async with another(mq) as other:
            for broker in (mq, other):
                broker.create_topic("steps")
            async with Producer("makers", nameserver=mq.nameserver) as producer:
                queue = next(q for q in await producer.queues("steps") if q.broker_name == mq.name)
                drain(mq)
                with pytest.raises(SendFailed, match="1 try"):
                    await producer.send(Message("steps", b"x"), queue=queue)

    run(body)


@pytest.mark.parametrize("batching", [None, Batching()], ids=["single", "gathered"])
@pytest.mark.parametrize("is_named", [False, True], ids=["key", "named queue"])
def test_keyed_send_to_a_broker_without_a_master_retries_until_its_deadline(
    mq: RunningBroker, run: Run, batching: Batching | None, is_named: bool
) -> None:
    """SERVICE_NOT_AVAILABLE means that nothing was stored, so another try keeps the order."""

    async def body() -> None:
        mq.create_topic("steps", queues=4)
        options = ProducerOptions(batching=batching)
        async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
            queue = (await producer.queues("steps"))[1] if is_named else None
            key = None if is_named else "k"
            await producer.send(Message("steps", b"0", sharding_key=key), queue=queue)
            with mq.faults.refuse_sends(ResponseCode.SERVICE_NOT_AVAILABLE) as refused:
                sending = asyncio.ensure_future(
                    producer.send(Message("steps", b"1", sharding_key=key), queue=queue)
                )
                await mq.until(lambda: refused.hits == 2)
            await sending
            await producer.send(Message("steps", b"2", sharding_key=key), queue=queue)
        assert [m.body for m in mq.stored("steps")] == [b"0", b"1", b"2"]

    run(body)


def test_keyed_send_without_a_broker_times_out_and_is_not_stored(
    mq: RunningBroker, run: Run
) -> None:
    async def body() -> None:
        mq.create_topic("steps", queues=1)
        options = ProducerOptions(send_timeout_s=1.0)
        async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
            with mq.faults.refuse_sends(ResponseCode.SERVICE_NOT_AVAILABLE):
                failures = [await failed_send(producer) for _ in range(4)]
        # The timeout may interrupt the last attempt in flight; its outcome is then unknown.
        for failed in failures:
            assert not any(may_be_stored(tried.error) for tried in failed.tries[:-1])
        assert any(len(failed.tries) > 1 and not failed.may_be_stored for failed in failures)

    async def failed_send(producer: Producer) -> SendFailed:
        with pytest.raises(SendFailed) as caught:
            await producer.send(Message("steps", b"x", sharding_key="k"))
        return caught.value

    run(body)


def drain(broker: RunningBroker) -> None:
    """As `tianzhou broker drain` does."""
    with BlockingPeer(broker.broker) as peer:
        answer, _ = peer.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4\n")
        assert answer.code == 0, answer.remark


def spread(nameserver: str, topic: str) -> set[str]:
    """The brokers that the NameServer names for a topic."""
    with BlockingPeer(nameserver) as peer:
        answer, body = peer.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    return (
        {one.broker_name for one in decode_route(body).broker_datas} if not answer.code else set()
    )
