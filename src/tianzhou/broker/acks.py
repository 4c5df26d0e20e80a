"""Answers that wait until the log is as safe as the configuration promises.

Waiting is a number: chunks of answers stand in a queue under the end of their records, and one look
at the durable offset releases all that it has passed. Not a future per message.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tianzhou.base.kinds import PhysicalOffset

Answer = Callable[[bool], None]
"""Sends the answers of a chunk: True when it is durable, False when that took too long."""


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
            self._parked.popleft().answer(True)

    def expire(self, now: float) -> None:
        """The disk is too slow: the messages are in the log, but whether they stay is unknown."""
        while self._parked and self._parked[0].deadline <= now:
            self._parked.popleft().answer(False)

    def fail_all(self) -> None:
        """The store is broken; nothing that waits will become durable."""
        while self._parked:
            self._parked.popleft().answer(False)
