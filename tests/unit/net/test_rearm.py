"""Timers that survive a lack of memory."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tianzhou.net import rearm as module
from tianzhou.net.rearm import RESERVE_BYTES, rearm


class ShortLoop(asyncio.SelectorEventLoop):
    """Has no memory for a timer while the reserve is held, and never if `is_out`."""

    is_out = False

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        if self.is_out or module._reserve:
            raise MemoryError
        return super().call_later(delay, callback, *args, context=context)


def test_rearm_gives_up_the_reserve_when_memory_is_short() -> None:
    module._reserve.clear()
    loop, fired = ShortLoop(), list[str]()
    try:
        for _ in range(2):  # the reserve is filled again the next time
            rearm(loop, 0, lambda: fired.append("fired"))
            assert not module._reserve
        super(ShortLoop, loop).call_later(0.01, loop.stop)
        loop.run_forever()
    finally:
        loop.close()
    assert fired == ["fired"] * 2


def test_rearm_without_the_reserve_raises() -> None:
    loop = ShortLoop()
    loop.is_out = True
    try:
        with pytest.raises(MemoryError):
            rearm(loop, 0, loop.stop)
    finally:
        loop.close()


def test_rearm_keeps_the_reserve_while_there_is_memory() -> None:
    module._reserve.clear()
    loop = asyncio.new_event_loop()
    try:
        rearm(loop, 0, loop.stop).cancel()
        assert [len(piece) for piece in module._reserve] == [RESERVE_BYTES]
    finally:
        loop.close()
