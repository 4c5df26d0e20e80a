"""The admin client and brokers; its start and close; its asyncio form."""

import asyncio

import pytest
from admin_world import commit, send

from tianzhou.base.errors import UsageError
from tianzhou.client.aio.admin import Admin as AsyncAdmin
from tianzhou.client.errors import ClientClosed, NoNameServer, NoPermission
from tianzhou.client.sync.admin import Admin
from tianzhou.testing import RunningBroker


def test_admin_lists_brokers_and_their_state(mq: RunningBroker) -> None:
    send(mq, "orders", b"1", b"2")
    with Admin(nameserver=mq.nameserver) as admin:
        (place,) = admin.brokers.all()
        assert (place.cluster, place.name, place.addresses) == (
            "DefaultCluster",
            "broker-a",
            {0: mq.broker},
        )
        status = admin.brokers.status("broker-a")
        assert (status.name, status.address, status.refusal) == ("broker-a", mq.broker, "")
        assert status.is_active
        assert status.put_today == 2
        assert status.facts["putMessageTimesTotal"] == "2"
        assert abs(status.started_ms - mq.clock.now_ms()) < 60_000
        assert [one.address for one in admin.brokers.statuses()] == [mq.broker]
        with pytest.raises(UsageError, match="it knows: broker-a"):
            admin.brokers.status("broker-z")
        with mq.faults.full_disk():
            assert "100% full" in admin.brokers.status("broker-a").refusal


def test_admin_reads_broker_statistics(mq: RunningBroker) -> None:
    with Admin(nameserver=mq.nameserver) as admin:
        mq.clock.hold()
        send(mq, "orders", b"1")
        mq.clock.advance(seconds=11)
        send(mq, "orders", b"2")
        stats = admin.brokers.statistic("broker-a", "TOPIC_PUT_NUMS", "orders")
        assert stats.stats_minute.sum >= 1


def test_admin_reads_and_updates_broker_settings(mq: RunningBroker) -> None:
    with Admin(nameserver=mq.nameserver) as admin:
        assert admin.brokers.config("broker-a")["autoCreateTopicEnable"] == "true"
        admin.brokers.configure("broker-a", {"autoCreateTopicEnable": "false"})
        assert admin.brokers.config("broker-a")["autoCreateTopicEnable"] == "false"
        with pytest.raises(NoPermission, match="listenPort"):
            admin.brokers.configure("broker-a", {"listenPort": "1"})
        with pytest.raises(UsageError, match="not one line"):
            admin.brokers.configure("broker-a", {"a": "1\nb=2"})


def test_admin_drains_a_broker(mq: RunningBroker) -> None:
    send(mq, "orders", b"1")
    commit(mq, "billing", "orders", offset=0)
    with Admin(nameserver=mq.nameserver) as admin:
        assert admin.brokers.stop_writes("broker-a") == mq.broker
        traffic = admin.brokers.traffic("broker-a")
        assert (traffic.lags, traffic.is_safe) == ({"billing": 1}, False)
        commit(mq, "billing", "orders", offset=1)
        mq.clock.advance(minutes=1)
        mq.wait_until(lambda: admin.brokers.traffic("broker-a").is_safe, within_s=15)
        with pytest.raises(AssertionError, match="drained"):
            send(mq, "orders", b"2")
        admin.brokers.allow_writes("broker-a")
        send(mq, "orders", b"3")


def test_asyncio_admin_works_like_the_blocking_one(mq: RunningBroker) -> None:
    async def play() -> None:
        async with AsyncAdmin(nameserver=mq.nameserver) as admin:
            await admin.topics.create("orders", queues=1)
            assert [place.name for place in await admin.brokers.all()] == ["broker-a"]
            with pytest.raises(UsageError, match="already running"):
                await admin.start()
        with pytest.raises(ClientClosed):
            await admin.brokers.all()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(play())


def test_admin_used_before_start_raises() -> None:
    with pytest.raises(ClientClosed, match="not started"):
        _ = AsyncAdmin(nameserver="127.0.0.1:1").topics
    with pytest.raises(AttributeError, match="tpoics"):
        _ = AsyncAdmin(nameserver="127.0.0.1:1").tpoics


def test_admin_without_a_reachable_server_raises(mq: RunningBroker) -> None:
    address = mq.nameserver
    mq.close()
    with Admin(nameserver=address) as admin, pytest.raises(NoNameServer, match=address):
        admin.brokers.all()


def test_every_asyncio_admin_method_has_a_blocking_one(mq: RunningBroker) -> None:
    """The two forms are written separately, so a test compares them."""

    def methods(noun: object) -> set[str]:
        return {name for name in dir(noun) if not name.startswith("_")}

    async def names() -> dict[str, set[str]]:
        async with AsyncAdmin(nameserver=mq.nameserver) as admin:
            return {name: methods(getattr(admin, name)) for name in AsyncAdmin.__annotations__}

    with Admin(nameserver=mq.nameserver) as admin:
        twins = {name: methods(getattr(admin, name)) for name in AsyncAdmin.__annotations__}
    assert twins == asyncio.run(names())
    assert len(twins) == 9
