"""Waiting, flushing and closing, when several do it at once, are cancelled, or cannot begin."""

import asyncio
import socket
import sys
from collections.abc import Sequence

import pytest
from loops import Run

from tianzhou.base.limits import PROPERTIES_BYTES_MAX
from tianzhou.client import (
    Batching,
    ClientOptions,
    Message,
    MessageQueue,
    MessageView,
    Producer,
    ProducerOptions,
    TransactionState,
)
from tianzhou.client.errors import ClientClosed, UsageError
from tianzhou.testing import RunningBroker

WITHIN_S = 10.0
SLOW_S = 0.2


def producer_of(mq: RunningBroker, in_flight: int = 100, group: str = "makers") -> Producer:
    options = ProducerOptions(in_flight_count_max=in_flight)
    return Producer(group, nameserver=mq.nameserver, options=options)


async def begun(*tasks: "asyncio.Task[object]") -> None:
    """Each of them has run as far as it could."""
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


def test_producer_send_waiting_for_room_can_be_cancelled(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with producer_of(mq, in_flight=1) as producer, asyncio.timeout(WITHIN_S):
            await producer.send(Message("room", b"0"))
            with mq.faults.slow(seconds=SLOW_S):
                first, second, third = (
                    asyncio.create_task(producer.send(Message("room", b"%d" % n)))
                    for n in (1, 2, 3)
                )
                await begun(first, second, third)
                second.cancel()
                await asyncio.gather(first, third)
        assert [message.body for message in mq.stored("room")] == [b"0", b"1", b"3"]

    run(body)


@pytest.mark.parametrize("batching", [None, Batching()])
def test_a_message_that_cannot_be_encoded_is_not_in_flight(
    mq: RunningBroker, run: Run, batching: Batching | None
) -> None:
    """Its properties are valid, but leave no room for the id that the producer adds."""
    full = Message("full", b"x", properties={"note": "n" * (PROPERTIES_BYTES_MAX - 10)})

    async def body() -> None:
        options = ProducerOptions(in_flight_count_max=2, batching=batching)
        producer = Producer("makers", nameserver=mq.nameserver, options=options)
        async with producer, asyncio.timeout(WITHIN_S):
            for n in range(3):  # more than may be in flight
                good = producer.send_async(Message("full", b"%d" % n))
                with pytest.raises(UsageError, match="properties take"):
                    await producer.send(full)
                await good
            with pytest.raises(UsageError, match="properties take"):
                await producer.request(full)
        assert [message.body for message in mq.stored("full")] == [b"0", b"1", b"2"]

    run(body)


def test_producer_selector_that_exits_leaves_no_send_in_flight(mq: RunningBroker, run: Run) -> None:
    def end_the_program(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        sys.exit(3)

    async def body() -> None:
        async with producer_of(mq) as producer, asyncio.timeout(WITHIN_S):
            await producer.send(Message("ended", b"0"))
            with pytest.raises(SystemExit):
                await producer.send(Message("ended", b"1"), select=end_the_program)

    run(body)


def test_producer_flush_can_be_called_concurrently(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with producer_of(mq) as producer, asyncio.timeout(WITHIN_S):
            await producer.send(Message("flushed", b"0"))
            with mq.faults.slow(seconds=SLOW_S):
                sent = producer.send_async(Message("flushed", b"1"))
                await asyncio.gather(producer.flush(), producer.flush())
                assert sent.done()

    run(body)


def test_producer_close_continues_when_its_caller_is_cancelled(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        producer = await producer_of(mq).start()
        await producer.send(Message("closed", b"0"))
        with mq.faults.slow(seconds=SLOW_S):
            sent = producer.send_async(Message("closed", b"1"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.close(), SLOW_S / 4)
            await asyncio.wait_for(producer.close(), WITHIN_S)
        assert sent.done()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(body)


def test_producer_close_fails_sends_that_wait_for_room(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        producer = await producer_of(mq, in_flight=1).start()
        await producer.send(Message("closed", b"0"))
        with mq.faults.slow(seconds=SLOW_S):
            sends = [asyncio.create_task(producer.send(Message("closed", b"1"))) for _ in range(4)]
            await begun(*sends)
            await asyncio.wait_for(producer.close(), WITHIN_S)
        ends = await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), WITHIN_S)
        assert [type(end) for end in ends[1:]] == [ClientClosed] * 3

    run(body)


async def check(_message: MessageView) -> TransactionState:
    return TransactionState.COMMIT


def test_producer_group_has_one_check_per_client(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        second = Producer("payers", nameserver=mq.nameserver, check=check)
        async with Producer("payers", nameserver=mq.nameserver, check=check):
            with pytest.raises(UsageError, match=r"'payers' handles CHECK_TRANSACTION_STATE"):
                await second.start()
            own = ClientOptions(instance_name="another")
            async with Producer("payers", nameserver=mq.nameserver, check=check, client=own):
                pass
        # It left nothing behind, and may be started now.
        assert asyncio.all_tasks() == {asyncio.current_task()}
        async with second:
            await second.send(Message("paid", b"x"))

    run(body)


def test_producer_close_fails_a_pending_route_request(run: Run) -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, and never answers
            address = "{}:{}".format(*silent.getsockname())
            producer = await Producer("makers", nameserver=address).start()
            asked = asyncio.create_task(producer.queues("unknown"))
            await begun(asked)
            await producer.close()
            with pytest.raises(ClientClosed, match="'unknown'"):
                await asked

    run(body)


def test_producer_used_in_another_loop_raises(mq: RunningBroker, run: Run) -> None:
    producer, left = producer_of(mq), producer_of(mq)

    async def body() -> None:
        await producer.start()
        await producer.send(Message("loops", b"x"))

        def elsewhere() -> None:
            with pytest.raises(UsageError, match="not to this one"):
                asyncio.run(asyncio.wait_for(producer.send(Message("loops", b"y")), WITHIN_S))
            with pytest.raises(UsageError, match="not to this one"):
                producer.send_async(Message("loops", b"y"))
            with pytest.raises(UsageError, match="not to this one"):
                asyncio.run(asyncio.wait_for(producer.close(), WITHIN_S))

        await asyncio.to_thread(elsewhere)
        await producer.close()
        await left.start()

    run(body)
    asyncio.run(producer.close())  # a second time changes nothing
    with pytest.raises(UsageError, match="closed by now"):
        asyncio.run(left.close())
