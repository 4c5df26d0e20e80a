"""What sends wait for. Capacity: how many may be in flight, and which is next. Shared waits: order,
deadlines, cancellation, and one task and one timer for any number.
"""

import asyncio

import pytest

from tianzhou.client.aio.waiting import (
    DeadlinePassed,
    Generation,
    InFlightLimiter,
    OnEnd,
    SharedWaits,
)
from tianzhou.client.errors import ClientClosed, TooManyInFlight


async def enter(limiter: InFlightLimiter, size: int = 1) -> Generation:
    await limiter.wait_for_capacity()
    return limiter.acquire(size)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_in_flight_limiter_admits_one_send_of_any_size() -> None:
    async def play() -> None:
        limiter = InFlightLimiter(10, 100)
        limiter.acquire(1000)
        with pytest.raises(TooManyInFlight, match="1 sends with 1000 bytes"):
            limiter.acquire(1)

    asyncio.run(play())


def test_in_flight_limiter_wakes_several_waiters_for_a_large_release() -> None:
    async def play() -> None:
        limiter = InFlightLimiter(4, 100)
        large = limiter.acquire(1000)
        waiting = [asyncio.create_task(enter(limiter)) for _ in range(5)]
        await settled()
        assert limiter.count == 1
        limiter.release(1000, large)
        await settled()
        assert [task.done() for task in waiting] == [True] * 4 + [False]
        limiter.release(1, await waiting[0])
        await settled()
        assert waiting[4].done()

    asyncio.run(play())


@pytest.mark.parametrize("is_woken", [False, True])
def test_in_flight_limiter_cancelled_waiter_blocks_no_other(is_woken: bool) -> None:
    async def play() -> None:
        limiter = InFlightLimiter(1, 100)
        generation = limiter.acquire(1)
        first, second = (asyncio.create_task(enter(limiter)) for _ in range(2))
        await settled()
        if is_woken:
            limiter.release(1, generation)
            first.cancel()
        else:
            first.cancel()
            limiter.release(1, generation)
        await settled()
        assert (first.cancelled(), second.done(), limiter.count) == (True, True, 1)

    asyncio.run(play())


def test_in_flight_limiter_drained_waits_for_earlier_sends_only() -> None:
    async def play() -> None:
        limiter = InFlightLimiter(10, 100)
        before = limiter.acquire(1)
        waiting = [asyncio.create_task(limiter.drained()) for _ in range(2)]
        await settled()
        after = limiter.acquire(1)
        assert not any(task.done() for task in waiting)
        limiter.release(1, before)
        await settled()
        assert all(task.done() for task in waiting)
        assert limiter.count == 1
        limiter.release(1, after)
        await limiter.drained()  # returns at once: nothing is in flight
        assert (limiter.count, limiter.size) == (0, 0)

    asyncio.run(play())


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
        assert "k" in waits.keys
        assert not log.entries
        opened.set()
        await asyncio.sleep(SOON_S)
        assert log.entries == [("a", "ok"), ("b", "ok"), ("c", "ok")]
        assert starts == ["k"]
        assert "k" not in waits.keys

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
        assert "k" not in waits.keys

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
