"""A coalesced call runs once, after all its requesters have returned."""

import asyncio

from tianzhou.broker.replica.coalesced_call import CoalescedCall


def test_coalesced_call_runs_once_per_round_unless_cancelled() -> None:
    done: list[str] = []

    async def ask() -> None:
        soon = CoalescedCall(lambda: done.append("done"))
        soon()
        soon()
        assert done == []
        await asyncio.sleep(0)
        assert done == ["done"]
        soon()
        soon.cancel()
        await asyncio.sleep(0)
        assert done == ["done"]
        soon()
        await asyncio.sleep(0)
        assert done == ["done", "done"]

    asyncio.run(ask())
