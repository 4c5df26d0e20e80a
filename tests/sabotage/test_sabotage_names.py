"""Testing the tests of changing NameServers: each planted bug must be caught by its check."""

import asyncio

import pytest
from name_server_bugs import NAME_SERVER_BUGS
from planting import Bug, planted

from client.name_service import NameServers, listed
from tianzhou.client import Message, Producer, PullConsumer
from tianzhou.client.sync import Admin
from tianzhou.testing import RunningBroker

WITHIN_S = 5.0
NAME = "broker-a"


def add(mq: RunningBroker, new: str) -> None:
    with Admin(nameserver=mq.nameserver) as admin:
        admin.brokers.configure(NAME, {"namesrvAddr": f"{mq.nameserver};{new}"})
    mq.wait_until(lambda: listed(new)[0] == [NAME], within_s=WITHIN_S)


def removed(mq: RunningBroker, names: NameServers) -> None:
    new = names.start()
    add(mq, new)
    with Admin(nameserver=new) as admin:
        admin.brokers.configure(NAME, {"namesrvAddr": mq.nameserver})
    mq.wait_until(lambda: listed(new) == ([], []), within_s=WITHIN_S)


def empty(mq: RunningBroker, names: NameServers) -> None:
    mq.create_topic("orders")
    fresh = names.start()

    async def ask() -> None:
        for _ in range(20):
            async with PullConsumer("g", nameserver=f"{mq.nameserver};{fresh}") as consumer:
                assert await consumer.queues("orders")

    asyncio.run(ask())


def new_list(mq: RunningBroker, names: NameServers) -> None:
    new = names.start()
    add(mq, new)

    async def send() -> None:
        async with Producer("p", nameserver=mq.nameserver) as producer:
            producer.update_name_servers(new)
            mq.stop_nameserver()
            await producer.send(Message("created-later", b"one"))

    try:
        asyncio.run(send())
    finally:
        mq.start_nameserver()


CHECKS = {"removed": removed, "empty": empty, "list": new_list}


@pytest.mark.slow
@pytest.mark.parametrize("bug", NAME_SERVER_BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_planted_name_server_bug_is_caught(bug: Bug, mq: RunningBroker) -> None:
    check = CHECKS[bug.suite]
    with NameServers() as names:
        if bug.suite != "list":
            check(mq, names)  # without the bug it passes
        with planted(bug), pytest.raises(Exception) as caught:
            check(mq, names)
    assert not isinstance(caught.value, (NameError, TypeError, AttributeError, SyntaxError))
