"""Shared waits: order, deadlines, cancellation, and one task and one timer for any number."""

import asyncio

from tianzhou.client.aio.shared_wait import DeadlinePassed, OnEnd, SharedWaits
from tianzhou.client.errors import ClientClosed

SOON_S = 0.02


class Log:
    """What waiters were called back with, in order."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str]] = []

    def waiter(self, name: str) -> OnEnd:
        return lambda error: self.entries.append((name, type(error).__name__ if error else "ok"))


def test_shared_wait_calls_all_waiters_in_order_of_arrival() -> None:
    async def body() -> None:
        opened, log, starts = asyncio.Event(), Log(), list[str]()

        async def event(key: str) -> None:
            starts.append(key)
            await opened.wait()

        waits, deadline_s = SharedWaits(event), asyncio.get_running_loop().time() + 60
        for number, name in enumerate("abc"):
            waits.add("k", deadline_s - number, log.waiter(name))
        await asyncio.sleep(0)
        assert "k" in waits
        assert not log.entries
        opened.set()
        await asyncio.sleep(SOON_S)
        assert log.entries == [("a", "ok"), ("b", "ok"), ("c", "ok")]
        assert starts == ["k"]
        assert "k" not in waits

    asyncio.run(body())


def test_shared_wait_ends_each_waiter_at_its_deadline_and_then_the_event() -> None:
    async def body() -> None:
        ended, log = asyncio.Event(), Log()

        async def event(_key: str) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        waits, now_s = SharedWaits(event), asyncio.get_running_loop().time()
        waits.add("k", now_s + 3 * SOON_S, log.waiter("late"))
        waits.add("k", now_s + SOON_S, log.waiter("early"))
        async with asyncio.timeout(10):
            await ended.wait()
        name = DeadlinePassed.__name__
        assert log.entries == [("early", name), ("late", name)]
        assert "k" not in waits

    asyncio.run(body())


def test_shared_wait_passes_the_error_of_its_event_to_all() -> None:
    async def body() -> None:
        log = Log()

        async def event(key: str) -> None:
            raise ZeroDivisionError(key)

        waits, deadline_s = SharedWaits(event), asyncio.get_running_loop().time() + 60
        waits.add("k", deadline_s, log.waiter("a"))
        waits.add("k", deadline_s, log.waiter("b"))
        await asyncio.sleep(SOON_S)
        assert log.entries == [("a", "ZeroDivisionError"), ("b", "ZeroDivisionError")]

    asyncio.run(body())


def test_shared_wait_close_ends_waiters_with_client_closed() -> None:
    async def body() -> None:
        log = Log()

        async def event(_key: str) -> None:
            await asyncio.Event().wait()

        waits, deadline_s = SharedWaits(event), asyncio.get_running_loop().time() + 60
        waits.add("k", deadline_s, log.waiter("a"))
        await asyncio.sleep(0)
        waits.close()
        await asyncio.sleep(SOON_S)
        assert log.entries == [("a", ClientClosed.__name__)]

    asyncio.run(body())


def test_shared_wait_added_in_a_callback_starts_a_new_event() -> None:
    async def body() -> None:
        log, starts = Log(), list[str]()

        async def event(key: str) -> None:
            starts.append(key)

        waits, deadline_s = SharedWaits(event), asyncio.get_running_loop().time() + 60

        def again(_error: BaseException | None) -> None:
            waits.add("k", deadline_s, log.waiter("second"))

        waits.add("k", deadline_s, again)
        await asyncio.sleep(SOON_S)
        assert log.entries == [("second", "ok")]
        assert starts == ["k", "k"]

    asyncio.run(body())
