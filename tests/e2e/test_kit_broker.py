"""The broker of the test kit over real sockets: what it stores, keeps, loses and shows."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from abuse.raw_client import HungUp, RawClient, heartbeat_of, pull_of, send_v2
from tianzhou.base.errors import UsageError
from tianzhou.broker.config import BrokerConfig
from tianzhou.net.blocking import BlockingPeer, Unreachable
from tianzhou.testing import RunningBroker, running_broker
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.routes import decode_route

MqFactory = Callable[..., RunningBroker]


def bodies(mq: RunningBroker, topic: str) -> list[bytes]:
    return [message.body for message in mq.stored(topic)]


def send(mq: RunningBroker, topic: str, *texts: bytes, queue_id: int = 0) -> None:
    with RawClient(mq.broker) as client:
        for text in texts:
            assert client.ask(310, send_v2(topic, queue_id=queue_id), text).code == 0


def commit(client: RawClient, group: str, topic: str, *, queue_id: int, offset: int) -> None:
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "commitOffset": str(offset),
    }
    assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == 0


def route_brokers(nameserver: str, topic: str) -> list[str]:
    with RawClient(nameserver) as client:
        answer = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    assert answer.code == 0, answer.remark
    return sorted(broker.broker_name for broker in decode_route(answer.body).broker_datas)


def test_stored_messages_are_in_log_order(mq: RunningBroker) -> None:
    send(mq, "orders", b"1", queue_id=1)
    send(mq, "orders", b"2", b"3", queue_id=0)
    send(mq, "orders", b"4", queue_id=1)
    assert bodies(mq, "orders") == [b"1", b"2", b"3", b"4"]
    assert [m.body for m in mq.stored("orders", queue_id=1)] == [b"1", b"4"]
    assert mq.stored("unheard-of") == []


def test_created_topic_has_a_route_at_once(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=3)
    assert route_brokers(mq.nameserver, "orders") == [mq.name]


def test_kit_reports_offsets_and_lag(mq: RunningBroker) -> None:
    send(mq, "orders", b"1", b"2", b"3")
    assert mq.committed("billing", "orders") == {}
    assert mq.lag("billing", "orders") == 3
    with RawClient(mq.broker) as client:
        commit(client, "billing", "orders", queue_id=0, offset=2)
    assert mq.committed("billing", "orders") == {0: 2}
    assert mq.lag("billing", "orders") == 1


def test_restart_keeps_messages_offsets_and_addresses(mq: RunningBroker) -> None:
    send(mq, "orders", b"1")
    with RawClient(mq.broker) as client:
        commit(client, "billing", "orders", queue_id=0, offset=1)
    before = (mq.nameserver, mq.broker)
    mq.restart()
    assert (mq.nameserver, mq.broker) == before
    assert bodies(mq, "orders") == [b"1"]
    assert mq.committed("billing", "orders") == {0: 1}
    send(mq, "orders", b"2")
    assert bodies(mq, "orders") == [b"1", b"2"]


def test_kill_keeps_messages_and_loses_unsaved_offsets(mq: RunningBroker) -> None:
    with RawClient(mq.broker) as client:
        assert client.ask(310, send_v2("orders"), b"1").code == 0
        commit(client, "billing", "orders", queue_id=0, offset=1)
        mq.kill()
        with pytest.raises(HungUp):
            client.receive()
    with pytest.raises(UsageError, match="is not running"):
        mq.stored("orders")
    assert mq.describe() == "the broker is not running"
    mq.start()
    assert bodies(mq, "orders") == [b"1"]
    assert mq.committed("billing", "orders") == {}
    assert route_brokers(mq.nameserver, "orders") == [mq.name]


@pytest.mark.slow
def test_broker_registers_again_after_a_name_server_restart(mq: RunningBroker) -> None:
    mq.create_topic("orders")
    mq.stop_nameserver()
    with pytest.raises(Unreachable):
        BlockingPeer(mq.nameserver)
    mq.start_nameserver()

    def is_known() -> bool:
        with RawClient(mq.nameserver) as client:
            return client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}).code == 0

    mq.wait_until(is_known, what="the broker registers again")


def test_two_brokers_share_one_name_server_and_one_clock(mq_factory: MqFactory) -> None:
    one = mq_factory()
    other = mq_factory(nameserver=one, config=BrokerConfig(name="broker-b"))
    assert other.clock is one.clock
    for mq in (one, other):
        mq.create_topic("orders")
    assert route_brokers(one.nameserver, "orders") == ["broker-a", "broker-b"]
    one.kill()
    one.wait_until(lambda: route_brokers(one.nameserver, "orders") == ["broker-b"])
    send(other, "orders", b"goes on")
    assert bodies(other, "orders") == [b"goes on"]


def test_given_data_directory_is_kept(tmp_path: Path) -> None:
    with running_broker(directory=tmp_path) as mq:
        send(mq, "orders", b"1")
    with running_broker(directory=tmp_path) as mq:
        assert bodies(mq, "orders") == [b"1"]


def test_temporary_data_directory_is_deleted_on_close() -> None:
    with running_broker() as mq:
        directory = mq.directory
        assert directory.exists()
    assert not directory.exists()
    mq.close()  # a second close does nothing


def test_failed_start_leaves_nothing_behind(mq: RunningBroker) -> None:
    port = int(mq.broker.rpartition(":")[2])
    other = running_broker(broker_port=port)
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"), other:
        pass
    assert not other.directory.exists()


def test_kit_listens_on_the_given_ports(mq: RunningBroker) -> None:
    names, broker = (int(address.rpartition(":")[2]) for address in (mq.nameserver, mq.broker))
    mq.close()
    with running_broker(nameserver_port=names, broker_port=broker) as again:
        assert (again.nameserver, again.broker) == (mq.nameserver, mq.broker)


def test_asynchronous_test_uses_its_own_loop() -> None:
    async def play() -> None:
        async with running_broker() as mq:
            host, _, port = mq.broker.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            await asyncio.to_thread(send, mq, "orders", b"1")
            found = await mq.until(lambda: bodies(mq, "orders"))
            assert found == [b"1"]
            writer.close()
            await writer.wait_closed()

    asyncio.run(play())


def test_failed_wait_shows_the_state_of_the_broker(mq: RunningBroker) -> None:
    send(mq, "orders", b"two apples", b"x" * 200)
    with RawClient(mq.broker) as client:
        assert client.ask(RequestCode.HEART_BEAT, body=heartbeat_of(client="me@1")).code == 0
        client.ask(RequestCode.HEART_BEAT, body=heartbeat_of(client="me@1", producers=("p",)))
        commit(client, "billing", "orders", queue_id=0, offset=1)
        with pytest.raises(AssertionError) as caught:
            mq.wait_until(lambda: mq.lag("billing", "orders") == 0, within_s=0.02, what="no lag")
    assert str(caught.value).splitlines() == [
        "not within 0.02 s: no lag; last seen: False",
        "topic orders: 2 messages",
        "  queue 0 offset 0: b'two apples'",
        f"  queue 0 offset 1: {b'x' * 60!r}…",
        "  group billing committed {0: 1}, 1 to go",
        "clients: me@1",
    ]


def test_waiting_pull_is_woken_by_a_send(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    with RawClient(mq.broker) as puller:
        wait = pull_of("orders", sysFlag="6")
        with pytest.raises(TimeoutError):
            puller.ask(RequestCode.PULL_MESSAGE, wait, wait_s=0.05)
        send(mq, "orders", b"woken")
        assert b"woken" in puller.receive().body


def test_misuse_of_the_kit_raises_clear_errors(mq: RunningBroker) -> None:
    with pytest.raises(UsageError, match="is already running"):
        mq.start()
    with pytest.raises(UsageError, match="is already running"):
        mq.start_nameserver()
    mq.stop_nameserver()
    with pytest.raises(UsageError, match="NameServer of this broker is not running"):
        mq.stop_nameserver()
    with pytest.raises(UsageError, match=r"already has the name 'broker-a'.*BrokerConfig\(name="):
        running_broker(nameserver=mq).start()
    with pytest.raises(UsageError, match="is not running"):
        running_broker().create_topic("orders")
    with pytest.raises(UsageError, match="never started"):
        running_broker().start_nameserver()
