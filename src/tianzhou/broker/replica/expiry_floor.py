"""The part of the log that retention must keep because it holds waiting messages.

A delayed, timed or half message must outlive the retention of the log: otherwise it is never
delivered. The master knows which messages wait. A replica keeps what it would need after a
promotion: it uses the progress from which it would start as a master.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tianzhou.base.kinds import QueueKey
from tianzhou.broker import names
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.role import RoleState
from tianzhou.broker.scheduled.delay import Delays
from tianzhou.broker.scheduled.timer import TIMER_QUEUE, Timers
from tianzhou.broker.scheduled.timer_progress import progress_table
from tianzhou.broker.transactions.half_queue import HALF_QUEUE, HalfQueue
from tianzhou.broker.writing.stored import at_offset
from tianzhou.store.store import MessageStore
from tianzhou.wire.names import SCHEDULE_TOPIC

_DAMAGED_MAX: Final = 1000
"""Damaged records that are skipped to find a readable one with its log offset. If there are more,
nothing expires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The lowest queue offset of a message that may wait: in the timer's queue, in the queue of
    half messages, and by delay level."""

    timers: int | None
    """None if the master does not report it; RocketMQ's masters do not."""
    halves: int
    delays: Mapping[int, int]


def saved_progress(store: MessageStore, offsets: ConsumerOffsets) -> Progress:
    """The progress that a slave has saved for its promotion."""
    return Progress(
        timers=progress_table(store).load().low,
        halves=offsets.get(names.TRANSACTION_GROUP, names.HALF_TOPIC, 0) or 0,
        delays=store.tables.delay_offsets.load().offset_table,
    )


class ExpiryFloor:
    """Owner: the broker loop. `Retention.floor` of the store."""

    def __init__(
        self,
        store: MessageStore,
        role_state: RoleState,
        offsets: ConsumerOffsets,
        *,
        delays: Delays,
        timers: Timers,
        halves: HalfQueue,
        kept_progress: Callable[[], Progress | None],
    ) -> None:
        """`kept_progress` is that of the mode; see `Mode.kept_progress`."""
        self._store = store
        self._role_state = role_state
        self._delays = delays
        self._timers = timers
        self._halves = halves
        self._offsets = offsets
        self._kept_progress = kept_progress
        store.retention.keep_from(self)

    def __call__(self) -> int | None:
        """The log offset of the oldest message that may be waiting; None if there is none."""
        progress = self._own() if self._role_state.is_master else self._of_replica()
        queues = {HALF_QUEUE: progress.halves}
        for queue in self._store.queues.of_topic(SCHEDULE_TOPIC):
            queues[queue.key] = progress.delays.get(queue.key.queue_id + 1, 0)
        if progress.timers is not None:
            queues[TIMER_QUEUE] = progress.timers
        places = [self._place(queue, low) for queue, low in queues.items()]
        return min((place for place in places if place is not None), default=None)

    def _of_replica(self) -> Progress:
        return self._kept_progress() or saved_progress(self._store, self._offsets)

    def _own(self) -> Progress:
        return Progress(
            timers=self._timers.progress().low,
            halves=self._halves.low,
            delays=self._delays.table().offset_table,
        )

    def _place(self, queue: QueueKey, low: int) -> int | None:
        """The log offset of the first message of this queue at or after `low`."""
        store = self._store
        low, end = max(low, store.min_offset(queue)), store.max_offset(queue)
        for offset in range(low, min(end, low + _DAMAGED_MAX)):
            found, stored = at_offset(store, queue, offset)
            with found:
                if stored is not None:
                    return int(stored.view.physical_offset)
        return None if end <= low + _DAMAGED_MAX else int(store.log.min_offset)
