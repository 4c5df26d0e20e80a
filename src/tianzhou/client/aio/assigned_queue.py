"""A queue assigned to this member, and its messages on their way to the user.

    broker ── puller ──▶ window (in work) ──▶ Ready ──▶ listener or iterator ──▶ finished

Threads and the event loop share `Ready`: a message is taken from it under a lock, and counts as in
flight from then on. When a queue is revoked, its messages in `Ready` are dropped and those in
flight are waited for. Messages are taken in order, so after that wait the committed offset is
exactly where the next owner must begin.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple

from tianzhou.client.core.pulling import PullPlan, Records
from tianzhou.client.core.received import AckHandle, ReceivedMessage
from tianzhou.client.core.window import FlowLimits, Room, Window
from tianzhou.wire.queues import MessageQueue


class AssignedQueue:
    """The state of one assigned queue.

    Owner: the event loop, except `in_flight`, which the lock of `Ready` protects.
    """

    __slots__ = (
        "_freed", "_pausing", "accepts_tag", "asked_at", "finished_at", "in_flight", "is_dropped",
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
        """The queue was revoked: no message of it is started any more."""
        self.is_gone = False
        """The final offset was committed: messages still in flight no longer count."""
        self.in_flight = 0
        """Messages that a listener or the user is processing."""
        self.waiting: deque[PulledRecords] = deque()
        """In ordered consumption: messages not started yet."""
        self.locked_until = 0.0
        """In ordered consumption: when the broker's lock expires."""
        self.asked_at = self.pulled_at = self.finished_at = 0.0
        """Times of the last request, response and finished message; monotonic seconds."""
        self._pausing: asyncio.Future[None] | None = None
        self._freed: asyncio.Future[None] | None = None

    def finish(self, offsets: Sequence[int]) -> int:
        """Mark messages as finished; return how many of them were in work."""
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
        """Wake `wait_free`: no message is in flight any more."""
        if self._freed is not None and not self._freed.done():
            self._freed.set_result(None)

    async def wait_free(self) -> None:
        """Wait until no message is in flight."""
        while self.in_flight:
            self._freed = asyncio.get_running_loop().create_future()
            await self._freed


class PulledRecords:
    """The records of one pull; those from `first` on have not been started."""

    __slots__ = ("assigned", "count", "first", "records", "times")

    def __init__(self, assigned: AssignedQueue, records: Records, times: int = 0) -> None:
        self.assigned = assigned
        self.records = records
        self.first = 0
        self.count = len(records.starts)
        self.times = times
        """How often they were retried in place."""

    @property
    def left(self) -> int:
        return self.count - self.first

    def take(self, count_max: int) -> "RecordSlice":
        """Take the next records; they are in flight from now on."""
        first = self.first
        end = min(first + count_max, self.count)
        self.first = end
        self.assigned.in_flight += end - first
        return RecordSlice(self.assigned, self.records, first, end, self.times)


class RecordSlice(NamedTuple):
    """Records in flight: those of one pull from `first` to `end`."""

    assigned: AssignedQueue
    records: Records
    first: int
    end: int
    times: int

    def messages(self, ack_handle: AckHandle | None = None) -> list[ReceivedMessage]:
        buffer, queue = self.records.buffer, self.assigned.queue
        made = [
            ReceivedMessage(buffer, start, queue, ack_handle)
            for start in self.records.starts[self.first : self.end]
        ]
        if self.times:
            for message in made:
                message.local_times = self.times
        return made


class Ready:
    """Pulled messages that no worker has taken yet, in the order of their pulls.

    Any thread may take; only the event loop puts and discards.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[PulledRecords] = deque()
        self.count = 0

    def put(self, pulled: PulledRecords) -> None:
        with self._lock:
            self._waiting.append(pulled)
            self.count += pulled.left

    def put_first(self, pulled: PulledRecords) -> None:
        with self._lock:
            self._waiting.appendleft(pulled)
            self.count += pulled.left

    def take(self, count_max: int = 1) -> RecordSlice | None:
        """Take the next messages, all of one queue; they are in flight from now on."""
        with self._lock:
            waiting = self._waiting
            if not waiting:
                return None
            pulled = waiting[0]
            part = pulled.take(count_max)
            if pulled.first == pulled.count:
                waiting.popleft()
            self.count -= part.end - part.first
        return part

    def settle(self, assigned: AssignedQueue, count: int = 1) -> None:
        """Count messages as no longer in flight. Call it in the event loop only."""
        with self._lock:
            assigned.in_flight -= count
            left = assigned.in_flight
        if not left:
            assigned.wake_release()

    def discard(self, assigned: AssignedQueue) -> None:
        """Drop the messages of a queue that no worker has taken."""
        with self._lock:
            kept = [pulled for pulled in self._waiting if pulled.assigned is not assigned]
            self._waiting = deque(kept)
            self.count = sum(pulled.left for pulled in kept)
