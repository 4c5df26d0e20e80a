"""Listeners that raise CancelledError, as one does that awaits a task which somebody cancelled."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from consuming import asynchronous, consuming, numbers, send, until

from tianzhou.client.core.received import ReceivedMessage
from tianzhou.testing import RunningBroker

ALL = {"orders": "*"}
COUNT = 6


class Calls:
    """Raises at the first call for each message."""

    def __init__(self) -> None:
        self.by_body: Counter[bytes] = Counter()

    def take(self, message: ReceivedMessage) -> None:
        self.by_body[message.body] += 1
        if self.by_body[message.body] == 1:
            raise asyncio.CancelledError

    async def await_cancelled(self, message: ReceivedMessage) -> None:
        self.by_body[message.body] += 1
        if self.by_body[message.body] == 1:
            helper = asyncio.ensure_future(asyncio.sleep(60))
            helper.cancel()
            await helper


LISTENERS: dict[str, Callable[[Calls], Callable[[ReceivedMessage], Awaitable[None] | None]]] = {
    "coroutine": lambda calls: calls.await_cancelled,
    "function": lambda calls: calls.take,
}


@pytest.mark.parametrize("kind", LISTENERS)
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_listener_that_raises_cancelled_error_does_not_stop_its_consumer(
    mq: RunningBroker, kind: str, *, orderly: bool
) -> None:
    @asynchronous
    async def body() -> None:
        mq.create_topic("orders", queues=1)
        await send(mq, "orders", numbers(COUNT))
        calls = Calls()
        listener: Any = LISTENERS[kind](calls)
        # Fewer workers than failures: each failure must leave its worker alive.
        options: dict[str, Any] = {"concurrency": 2, "orderly": orderly, "suspend_s": 0.01}
        async with consuming(mq, "g", ALL, listener, **options):
            await until(lambda: len(calls.by_body) == COUNT)
            if orderly:  # otherwise the broker delivers again, ten seconds later
                await until(lambda: set(calls.by_body.values()) == {2})
        assert mq.lag("g", "orders") == 0

    body()
