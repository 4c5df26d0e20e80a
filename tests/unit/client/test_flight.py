"""How many sends may be in flight, and who goes next."""

import asyncio

import pytest

from tianzhou.client.aio.flight import Flight, Wave
from tianzhou.client.errors import TooManyInFlight


async def enter(flight: Flight, size: int = 1) -> Wave:
    await flight.room()
    return flight.enter(size)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_one_is_let_through_however_large() -> None:
    async def play() -> None:
        flight = Flight(10, 100)
        flight.enter(1000)
        with pytest.raises(TooManyInFlight, match="1 sends with 1000 bytes"):
            flight.enter(1)

    asyncio.run(play())


def test_a_large_one_that_lands_makes_room_for_several() -> None:
    async def play() -> None:
        flight = Flight(4, 100)
        large = flight.enter(1000)
        waiting = [asyncio.create_task(enter(flight)) for _ in range(5)]
        await settled()
        assert flight.count == 1
        flight.leave(1000, large)
        await settled()
        assert [task.done() for task in waiting] == [True] * 4 + [False]
        flight.leave(1, await waiting[0])
        await settled()
        assert waiting[4].done()

    asyncio.run(play())


@pytest.mark.parametrize("is_woken", [False, True])
def test_who_is_cancelled_holds_up_nobody(is_woken: bool) -> None:
    async def play() -> None:
        flight = Flight(1, 100)
        wave = flight.enter(1)
        first, second = (asyncio.create_task(enter(flight)) for _ in range(2))
        await settled()
        if is_woken:
            flight.leave(1, wave)
            first.cancel()
        else:
            first.cancel()
            flight.leave(1, wave)
        await settled()
        assert (first.cancelled(), second.done(), flight.count) == (True, True, 1)

    asyncio.run(play())


def test_landed_means_what_was_in_flight_then() -> None:
    async def play() -> None:
        flight = Flight(10, 100)
        before = flight.enter(1)
        waiting = [asyncio.create_task(flight.landed()) for _ in range(2)]
        await settled()
        after = flight.enter(1)
        assert not any(task.done() for task in waiting)
        flight.leave(1, before)
        await settled()
        assert all(task.done() for task in waiting)
        assert flight.count == 1
        flight.leave(1, after)
        await flight.landed()  # at once: there is nobody
        assert (flight.count, flight.size) == (0, 0)

    asyncio.run(play())
