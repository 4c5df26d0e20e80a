"""Changes of a topic's queues and permission: consumers notice at once, without polling routes."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from consuming import Notes, asynchronous, consuming, numbers, send, send_to, until

from tianzhou.broker.config import BrokerConfig
from tianzhou.client.aio.admin import Admin
from tianzhou.client.aio.push_consumer import PushConsumer
from tianzhou.client.options import ClientOptions
from tianzhou.client.session.name_servers import NameServers
from tianzhou.client.session.routes import CALM_S
from tianzhou.testing import RunningBroker
from tianzhou.wire.names import CHANGED_TOPICS, PERM_READ_WRITE, PERM_WRITE
from tianzhou.wire.queues import MessageQueue
from tianzhou.wire.routes import TopicRouteData

ALL = {"orders": "*"}
NEVER_S = 3_600.0
UNPOLLED = ClientOptions(route_interval_s=NEVER_S)
"""Routes are refreshed only when a broker reports a change."""
QUIET: dict[str, Any] = {"client": UNPOLLED, "rebalance_interval_s": NEVER_S}


@pytest.fixture
def other(mq: RunningBroker, mq_factory: Callable[..., RunningBroker]) -> RunningBroker:
    return mq_factory(nameserver=mq, config=BrokerConfig(name="broker-b"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[NameServers, str]]:
    """The routes that clients requested from NameServers."""
    found: list[tuple[NameServers, str]] = []
    ask = NameServers.route

    async def count(servers: NameServers, topic: str) -> TopicRouteData:
        found.append((servers, topic))
        return await ask(servers, topic)

    monkeypatch.setattr(NameServers, "route", count)
    return found


def nameservers(consumer: PushConsumer) -> NameServers:
    assert consumer._parts is not None
    return consumer._parts.context.shared.nameservers


def ids(consumer: PushConsumer) -> list[tuple[str, int]]:
    return sorted(
        (queue.broker_name, queue.queue_id)
        for queue in consumer.assignment
        if queue.topic == "orders"
    )


def queues(broker: str, count: int) -> list[tuple[str, int]]:
    return [(broker, number) for number in range(count)]


@asynchronous
async def test_consumer_gets_messages_of_new_queues_at_once(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=2)
    notes = Notes()
    async with (
        consuming(mq, "g", ALL, notes.take, **QUIET) as consumer,
        Admin(nameserver=mq.nameserver) as admin,
    ):
        await until(lambda: ids(consumer) == queues("broker-a", 2))
        await admin.topics.update("orders", read_queues=5, write_queues=5)
        new = MessageQueue(topic="orders", broker_name="broker-a", queue_id=4)
        await send_to(mq, new, numbers(1))
        await until(lambda: notes.values == [0])
        assert ids(consumer) == queues("broker-a", 5)


@asynchronous
async def test_consumer_follows_changes_of_the_permission(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=2)
    notes = Notes()
    async with (
        consuming(mq, "g", ALL, notes.take, **QUIET) as consumer,
        Admin(nameserver=mq.nameserver) as admin,
    ):
        await until(lambda: ids(consumer) == queues("broker-a", 2))
        await admin.topics.update("orders", permission=PERM_WRITE)
        await until(lambda: ids(consumer) == [])
        await send(mq, "orders", numbers(4))
        await admin.topics.update("orders", permission=PERM_READ_WRITE)
        await until(lambda: notes.values == [0, 1, 2, 3])


@asynchronous
async def test_every_member_of_the_group_rebalances_after_a_change(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=2)
    notes = Notes()
    async with (
        consuming(mq, "g", ALL, notes.take, **QUIET) as one,
        consuming(mq, "g", ALL, notes.take, **QUIET) as two,
        Admin(nameserver=mq.nameserver) as admin,
    ):
        await until(lambda: sorted(ids(one) + ids(two)) == queues("broker-a", 2))
        await admin.topics.update("orders", read_queues=8, write_queues=8)
        await until(lambda: len(ids(one)) == len(ids(two)) == 4)
        assert sorted(ids(one) + ids(two)) == queues("broker-a", 8)
        await send(mq, "orders", numbers(40))
        await until(lambda: notes.values == list(range(40)))


@asynchronous
async def test_consumer_notices_a_broker_to_which_a_topic_is_added(
    mq: RunningBroker, other: RunningBroker
) -> None:
    """The consumer is not connected to that broker, so the others notify it."""
    mq.create_topic("orders", queues=2)
    notes = Notes()
    async with (
        consuming(mq, "g", ALL, notes.take, **QUIET) as consumer,
        Admin(nameserver=mq.nameserver) as admin,
    ):
        await until(lambda: ids(consumer) == queues("broker-a", 2))
        await admin.topics.update("orders", brokers=["broker-b"], read_queues=3, write_queues=3)
        new = MessageQueue(topic="orders", broker_name=other.name, queue_id=2)
        await send_to(mq, new, numbers(1))
        await until(lambda: notes.values == [0])
        assert ids(consumer) == queues("broker-a", 2) + queues("broker-b", 3)


@asynchronous
async def test_storm_of_notices_causes_few_route_requests(
    mq: RunningBroker, asked: list[tuple[NameServers, str]]
) -> None:
    mq.create_topic("orders", queues=2)
    notes = Notes()

    def storm() -> None:
        tell = mq._running().slices.groups.notices._tell
        for topics in ("orders", "", "refunds,payments") * 200:  # the last two are not in use
            mq._do(lambda topics=topics: tell("g", {CHANGED_TOPICS: topics}))

    async with consuming(mq, "g", ALL, notes.take, **QUIET) as consumer:
        await until(lambda: ids(consumer) == queues("broker-a", 2))
        asked.clear()
        begun_s = asyncio.get_running_loop().time()
        await asyncio.to_thread(storm)
        await until(lambda: asked)
        topics = [topic for _, topic in asked]
        assert topics.count("orders") <= (asyncio.get_running_loop().time() - begun_s) / CALM_S + 2
        assert set(topics) <= {"orders", "%RETRY%g"}
        # A change after the storm is noticed all the same.
        mq.create_topic("orders", queues=3)
        await until(lambda: ids(consumer) == queues("broker-a", 3))


@asynchronous
async def test_notice_about_members_causes_no_route_request(
    mq: RunningBroker, asked: list[tuple[NameServers, str]]
) -> None:
    """Members join and leave often, and change no route."""
    mq.create_topic("orders", queues=4)
    notes = Notes()
    async with consuming(mq, "g", ALL, notes.take, **QUIET) as one:
        await until(lambda: len(ids(one)) == 4)
        # Once this change is noticed, no notice of an earlier one is on its way.
        mq.create_topic("orders", queues=6)
        await until(lambda: len(ids(one)) == 6)
        asked.clear()
        async with consuming(mq, "g", ALL, notes.take, **QUIET) as two:
            await until(lambda: len(ids(one)) == len(ids(two)) == 3)
        await until(lambda: len(ids(one)) == 6)
        assert nameservers(one) not in [servers for servers, _ in asked]
