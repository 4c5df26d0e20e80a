"""What is to be done soon is done once, after whoever asked has returned."""

import asyncio

from tianzhou.broker.replica.coalesced_call import CoalescedCall


def test_it_is_done_once_a_round_and_not_if_it_was_cancelled() -> None:
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
