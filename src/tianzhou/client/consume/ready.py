"""Pulled messages on their way to the user.

    broker ── puller ──▶ window (in work) ──▶ Ready ──▶ listener or iterator ──▶ finished

Threads and the event loop share `Ready`: a message is taken from it under a lock, and counts as in
flight from then on. When a queue is revoked, its messages in `Ready` are dropped, and those in
flight are waited for.
"""

import threading
from collections import deque
from typing import NamedTuple

from tianzhou.client.core.assigned_queue import AssignedQueue
from tianzhou.client.core.pulling import Records
from tianzhou.client.core.received import AckHandle, ReceivedMessage


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
            is_idle = assigned.settle(count)
        if is_idle:
            assigned.report_idle()

    def discard(self, assigned: AssignedQueue) -> None:
        """Drop the messages of a queue that no worker has taken."""
        with self._lock:
            kept = [pulled for pulled in self._waiting if pulled.assigned is not assigned]
            self._waiting = deque(kept)
            self.count = sum(pulled.left for pulled in kept)
