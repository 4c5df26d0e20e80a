"""How many sends may be in flight, and who goes next."""

import asyncio

import pytest

from tianzhou.client.aio.in_flight import Generation, InFlightLimiter
from tianzhou.client.errors import TooManyInFlight


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
