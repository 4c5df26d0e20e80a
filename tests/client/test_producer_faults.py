"""When brokers fail, are slow or refuse: another try, elsewhere, in time, and a clear end."""

import asyncio

import pytest
from loops import Run

from tianzhou.broker.config import BrokerConfig
from tianzhou.client import Batching, Message, Producer, ProducerOptions, QueueChoice, SendStatus
from tianzhou.client.errors import (
    BadAnswer,
    ConnectionLost,
    MessageIllegal,
    NoNameServer,
    Retry,
    SendFailed,
    SendTimeout,
    SystemBusy,
    TopicNotExist,
    TopicNotFound,
)
from tianzhou.testing import RunningBroker
from tianzhou.testing.kit.faults import Fault
from tianzhou.testing.kit.stopwatch import Stopwatch
from tianzhou.wire._generated_codes import RequestCode, ResponseCode

HASTY = ProducerOptions(send_timeout_s=0.6, try_timeout_s=0.2)


def another(mq: RunningBroker, name: str = "broker-b") -> RunningBroker:
    """A second broker that the same NameServer knows."""
    return RunningBroker(nameserver=mq, config=BrokerConfig(name=name))


def test_send_that_is_rejected_goes_to_another_broker(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with another(mq) as other:
            for broker in (mq, other):
                broker.create_topic("spread")
            async with Producer("makers", nameserver=mq.nameserver) as producer:
                with mq.faults.refuse_sends() as refused:
                    results = [await producer.send(Message("spread", b"x")) for _ in range(20)]
                    # Once it had refused, it was left alone.
                    assert refused.hits == 1
            assert {result.queue.broker_name for result in results} == {"broker-b"}
            assert len(other.stored("spread")) == 20

    run(body)


def test_send_to_a_single_broker_is_retried_after_a_pause(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            await producer.send(Message("again", b"0"))
            with mq.faults.refuse_sends(count=2) as refused:
                sent = await producer.send(Message("again", b"1"))
            assert refused.hits == 2
        assert sent.status is SendStatus.SEND_OK
        assert [m.body for m in mq.stored("again")] == [b"0", b"1"]

    run(body)


def test_send_pause_ends_when_the_route_changes(mq: RunningBroker, run: Run) -> None:
    """A group that changes its master has the next one soon, and only then do NameServers know it:
    asking once, after the first failed attempt, is too early."""

    async def body() -> None:
        async with another(mq) as other:
            mq.create_topic("moved")
            async with Producer("makers", nameserver=mq.nameserver) as producer:
                await producer.send(Message("moved", b"0"))
                with mq.faults.refuse_sends(ResponseCode.SERVICE_NOT_AVAILABLE) as refused:
                    sending = asyncio.ensure_future(producer.send(Message("moved", b"1")))
                    await mq.until(lambda: refused.hits == 2)
                    other.create_topic("moved")
                    sent = await sending
                    assert refused.hits == 2
        assert sent.queue.broker_name == "broker-b"

    run(body)


class Relay:
    """Stands before a NameServer and counts who asks for routes."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self.asked = 0
        self.ended = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(self._host, self._port)
        back = asyncio.ensure_future(self._copy(from_server, writer))
        await self._copy(reader, to_server)
        to_server.close()
        await back
        writer.close()
        await writer.wait_closed()
        self.ended.set()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            self.asked += data.count(b'"code":%d,' % RequestCode.GET_ROUTEINFO_BY_TOPIC)
            writer.write(data)


def test_send_retries_ask_nameservers_with_backoff(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        mq.create_topic("stuck")
        relay = Relay(mq.nameserver)
        async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with Producer("makers", nameserver=f"127.0.0.1:{port}") as producer:
                await producer.send(Message("stuck", b"0"))
                assert relay.asked == 1
                with mq.faults.refuse_sends(ResponseCode.SERVICE_NOT_AVAILABLE):
                    sends = [producer.send(Message("stuck", b"1")) for _ in range(50)]
                    done = await asyncio.gather(*sends, return_exceptions=True)
            await relay.ended.wait()
        assert all(isinstance(one, SendFailed) for one in done)
        # At 0, 50, 150 and 350 ms of the half second that three tries take, for all of them.
        assert 3 <= relay.asked <= 6

    run(body)


def test_send_that_fails_everywhere_reports_each_attempt(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            await producer.send(Message("never", b"0"))
            with (
                mq.faults.refuse_sends(remark="come back later") as refused,
                pytest.raises(SendFailed, match="come back later") as raised,
            ):
                await producer.send(Message("never", b"1"))
            assert refused.hits == 3
        error = raised.value
        assert [tried.broker_name for tried in error.tries] == [mq.name] * 3
        assert f"{mq.name} ({mq.broker}) 3 times" in str(error)
        assert isinstance(error.__cause__, SystemBusy)
        assert error.retry is Retry.OTHER_BROKER

    run(body)


def test_send_that_is_rejected_permanently_is_not_retried(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            with mq.faults.refuse_sends(ResponseCode.MESSAGE_ILLEGAL) as refused:
                with pytest.raises(MessageIllegal) as raised:
                    await producer.send(Message("bad", b"x"))
                assert refused.hits == 1
            assert raised.value.retry is Retry.NEVER

    run(body)


def test_send_timeout_reports_the_broker_and_attempts(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver, options=HASTY) as producer:
            await producer.send(Message("slow", b"0"))
            watch = Stopwatch()
            with (
                mq.faults.slow(seconds=5),
                pytest.raises(SendTimeout, match=rf"{mq.name} \({mq.broker}\)") as raised,
            ):
                await producer.send(Message("slow", b"1"))
            assert watch.seconds() < 1.5
        assert 2 <= len(raised.value.tries) <= 3
        assert "timed out" in str(raised.value)
        # It was stored each time: the broker was slow, not deaf. One id for all of them.
        ids = [m.unique_id for m in mq.stored("slow")[1:]]
        assert len(ids) >= 2
        assert len(set(ids)) == 1

    run(body)


def test_send_to_a_slow_broker_is_retried_within_the_timeout(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with another(mq) as other:
            for broker in (mq, other):
                broker.create_topic("spread")
            options = ProducerOptions(send_timeout_s=5, try_timeout_s=0.2)
            async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
                for _ in range(8):
                    await producer.send(Message("spread", b"warm"))
                with mq.faults.slow(seconds=30):
                    watch = Stopwatch()
                    results = [await producer.send(Message("spread", b"x")) for _ in range(20)]
                    # One try of 0.2 s was lost, not one for each message.
                    assert watch.seconds() < 2
            assert {result.queue.broker_name for result in results} == {"broker-b"}

    run(body)


def test_send_chooses_the_fastest_broker(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with another(mq) as other:
            for broker in (mq, other):
                broker.create_topic("spread")
            options = ProducerOptions(queue_choice=QueueChoice.LEAST_LATENCY)
            async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
                with mq.faults.slow(seconds=0.3):
                    results = [await producer.send(Message("spread", b"x")) for _ in range(20)]
            names = [result.queue.broker_name for result in results]
            assert names.count(mq.name) == 1  # to find out
            assert {result.queue.queue_id for result in results[4:]} == {0, 1, 2, 3}

    run(body)


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST])
def test_send_refreshes_a_route_that_the_response_shows_stale(
    mq: RunningBroker, run: Run, code: ResponseCode
) -> None:
    async def body() -> None:
        mq.create_topic("moved")
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            await producer.send(Message("moved", b"0"))
            # The topic is somewhere else now, which the cached route does not know.
            async with another(mq) as other:
                other.create_topic("moved")
                with mq.faults.refuse_sends(code) as refused:
                    sent = await producer.send(Message("moved", b"1"))
                    assert refused.hits == 1
                assert sent.queue.broker_name == "broker-b"
                assert [m.body for m in other.stored("moved")] == [b"1"]

    run(body)


@pytest.mark.parametrize("options", [ProducerOptions(), ProducerOptions(batching=Batching())])
def test_send_reconnects_after_a_lost_connection(
    mq: RunningBroker, run: Run, options: ProducerOptions
) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
            await producer.send(Message("cut", b"first"))
            with mq.faults.slow(seconds=0.2):
                futures = [producer.send_async(Message("cut", b"%d" % n)) for n in range(50)]
                await mq.until(lambda: len(mq.stored("cut")) > 1)
                assert mq.faults.cut_connections() >= 1
            results = await asyncio.gather(*futures)
        assert len(results) == 50
        # Answers were lost, so messages were stored twice, with the same ids.
        stored = mq.stored("cut")
        assert {m.body for m in stored} == {b"first", *(b"%d" % n for n in range(50))}
        assert len({m.unique_id for m in stored}) == 51

    run(body)


def test_send_with_a_lost_response_reports_it_even_if_the_topic_is_gone(
    mq: RunningBroker, run: Run
) -> None:
    """The message may be stored: an error that reports only an unknown topic would be wrong."""

    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            await producer.send(Message("lost", b"0"))
            with mq.faults.slow(seconds=5):
                sending = asyncio.ensure_future(producer.send(Message("lost", b"1")))
                await mq.until(lambda: len(mq.stored("lost")) == 2)
            mq.stop_nameserver()
            mq.start_nameserver()  # it knows nothing until the broker registers again
            with mq.faults.refuse_sends(ResponseCode.TOPIC_NOT_EXIST):
                mq.faults.cut_connections()
                with pytest.raises(SendFailed) as raised:
                    await sending
            kinds = [type(tried.error) for tried in raised.value.tries]
            assert kinds == [ConnectionLost, TopicNotExist, TopicNotFound]
        assert [m.body for m in mq.stored("lost")] == [b"0", b"1"]

    run(body)


@pytest.mark.parametrize(
    ("code", "may_be_stored"),
    [
        (ResponseCode.SERVICE_NOT_AVAILABLE, False),
        (ResponseCode.SYSTEM_BUSY, False),
        (ResponseCode.NO_PERMISSION, False),
        (ResponseCode.SYSTEM_ERROR, True),
    ],
)
def test_send_failure_reports_whether_the_message_may_be_stored(
    mq: RunningBroker, run: Run, code: ResponseCode, *, may_be_stored: bool
) -> None:
    async def body() -> None:
        options = ProducerOptions(send_timeout_s=0.5)
        async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
            await producer.send(Message("orders", b"0"))
            with mq.faults.refuse_sends(code), pytest.raises(SendFailed) as raised:
                await producer.send(Message("orders", b"1"))
            assert raised.value.may_be_stored == may_be_stored

    run(body)


def test_send_of_an_ordered_message_is_not_retried_after_later_ones(
    mq: RunningBroker, run: Run
) -> None:
    async def body() -> None:
        async with another(mq) as other:
            for broker in (mq, other):
                broker.create_topic("ordered")
            async with Producer("makers", nameserver=mq.nameserver) as producer:
                queue = (await producer.queues("ordered"))[0]
                assert queue.broker_name == mq.name
                await producer.send(Message("ordered", b"0"), queue=queue)
                with mq.faults.refuse_sends() as refused:
                    with pytest.raises(SendFailed, match="1 try"):
                        await producer.send(Message("ordered", b"1"), queue=queue)
                    assert refused.hits == 1
            assert not other.stored("ordered")

    run(body)


def test_send_waits_for_a_restarting_broker(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        options = ProducerOptions(send_timeout_s=20, tries_max=6)
        async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
            await producer.send(Message("restart", b"0"))
            await asyncio.to_thread(mq.stop)
            sending = asyncio.create_task(producer.send(Message("restart", b"1")))
            await asyncio.to_thread(mq.start)
            assert (await sending).status is SendStatus.SEND_OK
        assert [m.body for m in mq.stored("restart")] == [b"0", b"1"]

    run(body)


def test_sends_continue_without_a_nameserver(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver, options=HASTY) as producer:
            await producer.send(Message("names", b"0"))
            await asyncio.to_thread(mq.stop_nameserver)
            await producer.send(Message("names", b"1"))
            with pytest.raises((NoNameServer, SendTimeout)):
                await producer.send(Message("unheard", b"2"))
            await asyncio.to_thread(mq.start_nameserver)
            mq.create_topic("unheard")
            await producer.send(Message("unheard", b"3"))
            await producer.send(Message("names", b"4"))
        assert len(mq.stored("names")) == 3

    run(body)


def test_send_that_is_cancelled_affects_no_other(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            await producer.send(Message("cancel", b"0"))
            with mq.faults.slow(seconds=0.1):
                sending = asyncio.create_task(producer.send(Message("cancel", b"1")))
                await mq.until(lambda: len(mq.stored("cancel")) == 2)
                sending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending
            assert (await producer.send(Message("cancel", b"2"))).status is SendStatus.SEND_OK
        # It was on its way already.
        assert [m.body for m in mq.stored("cancel")] == [b"0", b"1", b"2"]

    run(body)


def test_send_batch_that_fails_gives_each_message_its_error(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        options = ProducerOptions(batching=Batching(linger_s=0.01), tries_max=1)
        async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
            await producer.send(Message("batch", b"0"))
            with mq.faults.refuse([RequestCode.SEND_BATCH_MESSAGE]) as refused:
                futures = [producer.send_async(Message("batch", b"x")) for _ in range(10)]
                errors = await asyncio.gather(*futures, return_exceptions=True)
                assert refused.hits == 1
        assert all(isinstance(error, SendFailed) for error in errors)
        assert len(set(map(id, errors))) == 10

    run(body)


def test_producer_close_waits_for_in_flight_sends_until_their_deadline(
    mq: RunningBroker, run: Run
) -> None:
    async def body() -> None:
        options = ProducerOptions(send_timeout_s=0.4, try_timeout_s=0.4)
        producer = await Producer("makers", nameserver=mq.nameserver, options=options).start()
        await producer.send(Message("close", b"0"), timeout_s=60)
        with mq.faults.slow(seconds=30):
            future = producer.send_async(Message("close", b"1"))
            watch = Stopwatch()
            await producer.close()
            assert watch.seconds() < 2
        assert isinstance(future.exception(), SendTimeout)

    run(body)


def unsafe(mq: RunningBroker, code: int = ResponseCode.FLUSH_SLAVE_TIMEOUT) -> Fault:
    """The broker says that messages are stored, but not as safely as was asked."""
    fields = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "1", "queueOffset": "7"}
    return mq.faults.refuse([RequestCode.SEND_MESSAGE_V2], code, ext=fields)


def test_send_with_a_weaker_store_status_returns_a_result(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            with unsafe(mq) as answers:
                sent = await producer.send(Message("unsafe", b"x"))
                assert answers.hits == 1
        assert sent.status is SendStatus.FLUSH_SLAVE_TIMEOUT
        assert (sent.queue.queue_id, sent.queue_offset) == (1, 7)

    run(body)


def test_send_with_a_weaker_store_status_is_retried_if_configured(
    mq: RunningBroker, run: Run
) -> None:
    async def body() -> None:
        options = ProducerOptions(retry_not_store_ok=True)
        async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
            with unsafe(mq):  # without another broker it is the result
                alone = await producer.send(Message("unsafe", b"x"))
            assert alone.status is SendStatus.FLUSH_SLAVE_TIMEOUT
        async with another(mq) as other:
            for broker in (mq, other):
                broker.create_topic("safer")
            async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
                with unsafe(mq, ResponseCode.FLUSH_DISK_TIMEOUT):
                    results = [await producer.send(Message("safer", b"x")) for _ in range(8)]
            assert {result.status for result in results} == {SendStatus.SEND_OK}
            assert len(other.stored("safer")) == 8

    run(body)


def test_send_response_without_its_fields_raises(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            with (
                mq.faults.refuse_sends(ResponseCode.SUCCESS) as answers,
                pytest.raises(BadAnswer, match="queueOffset"),
            ):
                await producer.send(Message("odd", b"x"))
            assert answers.hits == 1

    run(body)


def test_send_leaves_a_drained_broker_without_a_nameserver(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with another(mq) as other:
            for broker in (mq, other):
                broker.create_topic("drained")
            async with Producer("makers", nameserver=mq.nameserver) as producer:
                await producer.queues("drained")
                await asyncio.to_thread(mq.stop_nameserver)
                with mq.faults.refuse_sends(ResponseCode.NO_PERMISSION):
                    results = [await producer.send(Message("drained", b"x")) for _ in range(4)]
                assert {result.queue.broker_name for result in results} == {"broker-b"}
            await asyncio.to_thread(mq.start_nameserver)

    run(body)


@pytest.mark.parametrize("options", [ProducerOptions(), ProducerOptions(batching=Batching())])
@pytest.mark.parametrize("keys", [[None], ["a", "b", "c"]], ids=["rotating", "keyed"])
def test_producer_refreshes_the_route_of_a_topic_that_has_fewer_queues(
    mq: RunningBroker, run: Run, keys: list[str | None], options: ProducerOptions
) -> None:
    async def body() -> None:
        mq.create_topic("fewer", queues=8)
        async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
            await producer.send(Message("fewer", b"before"))
            mq.create_topic("fewer", queues=1)
            sends = [
                producer.send(Message("fewer", b"%d" % n, sharding_key=key))
                for key in keys
                for n in range(8)
            ]
            for result in await asyncio.gather(*sends):
                assert (result.status, result.queue.queue_id) == (SendStatus.SEND_OK, 0)

    run(body)
