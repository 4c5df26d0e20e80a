"""Answers that wait until the log is as safe as the configuration promises.

Waiting is a number: chunks of answers stand in a queue under the end of their records, and one look
at the durable offset releases all that it has passed. Not a future per message.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.replication.durability import Outcome

Answer = Callable[[Outcome], None]
"""Sends the answers of a chunk: it is durable, or why that is not known."""


class _Parked(NamedTuple):
    end: PhysicalOffset
    deadline: float
    answer: Answer


class Acks:
    """Owner: the broker loop.

    Invariant: ends and deadlines never decrease
    """

    def __init__(self) -> None:
        self._parked: deque[_Parked] = deque()

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, end: PhysicalOffset, deadline: float, answer: Answer) -> None:
        assert not self._parked or self._parked[-1].end <= end
        self._parked.append(_Parked(end, deadline, answer))

    def release(self, durable: PhysicalOffset) -> None:
        while self._parked and self._parked[0].end <= durable:
            self._parked.popleft().answer(Outcome.DURABLE)

    def expire(self, now: float, why: Callable[[PhysicalOffset], Outcome]) -> None:
        """It takes too long: the messages are in the log, but whether they stay is unknown."""
        while self._parked and self._parked[0].deadline <= now:
            parked = self._parked.popleft()
            parked.answer(why(parked.end))

    def fail_all(self, outcome: Outcome) -> None:
        """Nothing that waits will become durable: the store is broken, or the role is lost."""
        while self._parked:
            self._parked.popleft().answer(outcome)
