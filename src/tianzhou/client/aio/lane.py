"""A queue that a consumer has at present, and its messages on their way to the user.

    broker ── puller ──▶ window (in work) ──▶ Ready ──▶ listener or iterator ──▶ finished

`Ready` is where threads and the event loop meet: a message leaves it under a lock, and from then
on counts as in hand. A queue that goes to another consumer takes with it what is still in `Ready`
and waits for what is in hand; messages leave in order, so after that wait nothing was done out of
turn and the committed offset is exactly where the next owner must begin.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple

from tianzhou.client.core.pulling import PullPlan, Records
from tianzhou.client.core.received import ReceivedMessage, Settling
from tianzhou.client.core.window import FlowLimits, Room, Window
from tianzhou.wire.queues import MessageQueue


class Lane:
    """Owner: the event loop, but `in_hand`, which belongs to whoever holds the lock of `Ready`."""

    __slots__ = (
        "_freed", "_pausing", "accepts_tag", "asked_at", "finished_at", "in_hand", "is_dropped",
        "is_gone", "limits", "locked_until", "orderly", "plan", "pulled_at", "queue", "waiting",
        "window",
    )  # fmt: skip

    def __init__(
        self, plan: PullPlan, offset: int, limits: FlowLimits, *, orderly: bool = False
    ) -> None:
        self.plan = plan
        self.queue: MessageQueue = plan.queue
        self.accepts_tag: Callable[[bytes | None], bool] | None = plan.subscription.accepts_tag
        self.window = Window(offset)
        self.limits = limits
        self.orderly = orderly
        self.is_dropped = False
        """It goes, or went, to somebody else: nothing new is begun."""
        self.is_gone = False
        """Its offset was committed for the last time: what is still in hand no longer counts."""
        self.in_hand = 0
        """Messages that a listener or the user has."""
        self.waiting: deque[Run] = deque()
        """In ordered consumption: what is not begun."""
        self.locked_until = 0.0
        """In ordered consumption: when the broker's lock is no longer to be relied on."""
        self.asked_at = self.pulled_at = self.finished_at = 0.0
        """When something last came, and when something was last done; monotonic seconds."""
        self._pausing: asyncio.Future[None] | None = None
        self._freed: asyncio.Future[None] | None = None

    def finish(self, offsets: Sequence[int]) -> int:
        """The messages are done, or somebody else's. How many of them were in work."""
        finish, count = self.window.finish, 0
        for offset in offsets:
            count += finish(offset)
        self.finished_at = monotonic()
        waiting = self._pausing
        if waiting is not None and not waiting.done() and self.has_room:
            waiting.set_result(None)
        return count

    @property
    def has_room(self) -> bool:
        return self.window.room(self.limits, orderly=self.orderly) is Room.FREE

    async def wait_room(self) -> None:
        while not self.has_room:
            self._pausing = asyncio.get_running_loop().create_future()
            await self._pausing
        self._pausing = None

    def wake_release(self) -> None:
        """Said when nothing is in hand any more."""
        if self._freed is not None and not self._freed.done():
            self._freed.set_result(None)

    async def wait_free(self) -> None:
        """Until nothing is in hand."""
        while self.in_hand:
            self._freed = asyncio.get_running_loop().create_future()
            await self._freed


class Run:
    """Messages of one pull that nobody has begun: those from `first` on."""

    __slots__ = ("count", "first", "lane", "records", "times")

    def __init__(self, lane: Lane, records: Records, times: int = 0) -> None:
        self.lane = lane
        self.records = records
        self.first = 0
        self.count = len(records.starts)
        self.times = times
        """How often they were tried in place before."""

    @property
    def left(self) -> int:
        return self.count - self.first

    def take(self, count_max: int) -> "Piece":
        """The next of them. They are in hand from now on."""
        first = self.first
        end = min(first + count_max, self.count)
        self.first = end
        self.lane.in_hand += end - first
        return Piece(self.lane, self.records, first, end, self.times)


class Piece(NamedTuple):
    """Messages that somebody has in hand: those of a run from `first` to `end`."""

    lane: Lane
    records: Records
    first: int
    end: int
    times: int

    def messages(self, settling: Settling | None = None) -> list[ReceivedMessage]:
        buffer, queue = self.records.buffer, self.lane.queue
        made = [
            ReceivedMessage(buffer, start, queue, settling)
            for start in self.records.starts[self.first : self.end]
        ]
        if self.times:
            for message in made:
                message.local_times = self.times
        return made


class Ready:
    """Messages that wait for somebody to begin with them, in the order of their pulls.

    Any thread may take; only the event loop puts and discards.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: deque[Run] = deque()
        self.count = 0

    def put(self, run: Run) -> None:
        with self._lock:
            self._runs.append(run)
            self.count += run.left

    def put_first(self, run: Run) -> None:
        with self._lock:
            self._runs.appendleft(run)
            self.count += run.left

    def take(self, count_max: int = 1) -> Piece | None:
        """The next messages, all of one queue; from now on they are in hand."""
        with self._lock:
            runs = self._runs
            if not runs:
                return None
            run = runs[0]
            piece = run.take(count_max)
            if run.first == run.count:
                runs.popleft()
            self.count -= piece.end - piece.first
        return piece

    def settle(self, lane: Lane, count: int = 1) -> None:
        """They are no longer in hand. In the event loop only."""
        with self._lock:
            lane.in_hand -= count
            left = lane.in_hand
        if not left:
            lane.wake_release()

    def discard(self, lane: Lane) -> None:
        """What nobody has begun with."""
        with self._lock:
            kept = [run for run in self._runs if run.lane is not lane]
            self._runs = deque(kept)
            self.count = sum(run.left for run in kept)
