"""Waiting for a condition, blocking and in coroutines."""

import asyncio
import time

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.testing.kit import waiting


def test_wait_until_returns_the_first_true_value() -> None:
    values = iter([0, 0, 7])
    found = waiting.wait_until(lambda: next(values), lambda: "", within_s=5, what="seven")
    assert found == 7


def test_wait_until_failure_describes_the_state() -> None:
    with pytest.raises(AssertionError) as caught:
        waiting.wait_until(list, lambda: "topic orders: empty", within_s=0.01, what="orders")
    text = str(caught.value)
    assert text == "not within 0.01 s: orders; last seen: []\ntopic orders: empty"


def test_wait_until_checks_once_more_after_the_deadline() -> None:
    """A condition that became true between two checks is found."""
    begun = time.monotonic()
    found = waiting.wait_until(
        lambda: time.monotonic() > begun + 0.02, lambda: "", within_s=0.02, what="time"
    )
    assert found


def test_until_does_not_block_the_event_loop() -> None:
    async def play() -> int:
        seen: list[int] = []
        asyncio.get_running_loop().call_later(0.02, seen.append, 5)
        return (await waiting.until(lambda: seen, lambda: "", within_s=5, what="five"))[0]

    assert asyncio.run(play()) == 5


def test_wait_until_in_a_coroutine_is_rejected() -> None:
    async def play() -> None:
        waiting.wait_until(lambda: True, lambda: "", within_s=1, what="")

    with pytest.raises(UsageError, match=r"await mq\.until"):
        asyncio.run(play())


def test_until_failure_describes_the_state() -> None:
    async def play() -> None:
        await waiting.until(lambda: 0, lambda: "nothing", within_s=0.01, what="one")

    with pytest.raises(AssertionError, match="one; last seen: 0\nnothing"):
        asyncio.run(play())
