"""An event loop in its own thread."""

import asyncio
import threading

import pytest

from tianzhou.testing.kit.loop_thread import LoopThread


def test_loop_thread_runs_work_and_returns_its_result() -> None:
    thread = LoopThread("a")
    try:
        assert thread.call(lambda: threading.current_thread().name) == "a"
        assert thread.run(asyncio.sleep(0, 5)) == 5
        with pytest.raises(ZeroDivisionError):
            thread.call(lambda: 1 / 0)
    finally:
        thread.close()
    assert thread.errors == []


def test_loop_thread_records_errors_of_callbacks() -> None:
    thread = LoopThread("a")

    async def fail_later() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)

    thread.run(fail_later())
    thread.close()
    assert len(thread.errors) == 1
    assert "ZeroDivisionError: division by zero" in thread.errors[0]


def test_loop_thread_close_cancels_pending_tasks() -> None:
    thread = LoopThread("a")
    ended: list[str] = []

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def begin() -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(wait_for_ever())
        await asyncio.sleep(0)
        return task

    task = thread.run(begin())
    thread.close()
    assert ended == ["cancelled"]
    assert task.cancelled()
