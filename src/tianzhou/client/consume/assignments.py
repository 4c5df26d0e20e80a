"""The queues assigned to this member: acquire, move and release them, and commit their offsets.

A new queue starts at the group's offset. A revoked queue is released in steps: no further message
is started, messages in flight are waited for, the offset is committed, and the lock is released.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from tianzhou.client.consume.context import ConsumerContext
from tianzhou.client.consume.offsets import QueueOffsets, SavedOffsets, saved_offsets
from tianzhou.client.consume.orderly import QueueLocks
from tianzhou.client.core.assigned_queue import Action, AssignedQueue, Event, queue_text
from tianzhou.client.core.assignment import difference
from tianzhou.client.core.offsets import Ask, start_rule
from tianzhou.client.core.pulling import PullPlan
from tianzhou.client.core.subscription import Subscription
from tianzhou.client.errors import ClientError, NoRoute
from tianzhou.wire.queues import MessageQueue

log: Final = logging.getLogger("tianzhou.client")

HANDOVER_S: Final = 0.2
"""Pause before the offset of a new queue is read. All members hear of a change at the same time,
and the previous owner commits its offset when it releases the queue; without the pause both would
consume the same messages."""
LOCK_RETRY_S: Final = 1.0
"""Pause before locks that were not granted are requested again."""


class AssignmentListener(Protocol):
    """Callbacks of a consumer for its assignment."""

    def on_assigned(self, assigned: AssignedQueue) -> None:
        """Start pulling."""
        ...

    async def on_revoked(self, assigned: AssignedQueue) -> None:
        """Stop pulling; return when no message is in flight, or after the release timeout."""
        ...

    @property
    def committable(self) -> Callable[[AssignedQueue], int | None]:
        """Returns the offset to commit for a queue; None to commit nothing."""
        ...


class Assignments:
    """The assigned queues of one member.

    Owner: the event loop.
    """

    def __init__(
        self,
        context: ConsumerContext,
        listener: AssignmentListener,
        subscriptions: Mapping[str, Subscription],
        *,
        on_released: Callable[[], None],
        lite: bool,
    ) -> None:
        """`subscriptions` is the member's table, which changes. `lite` marks the pulls of a lite
        pull consumer."""
        group, shared, options = context.group, context.shared, context.options
        self._context = context
        self._listener = listener
        self._subscriptions = subscriptions
        self._on_released = on_released
        self._lite = lite
        self.queues: dict[MessageQueue, AssignedQueue] = {}
        self.is_alone = False
        """Whether this member is the only one of its group, so that no offset is handed over."""
        self.offsets = QueueOffsets(group, shared)
        self.saved: SavedOffsets = saved_offsets(context, self.offsets)
        has_locks = options.orderly and not options.broadcasting
        self._locks = QueueLocks(group, shared) if has_locks else None
        self._releasing: dict[MessageQueue, tuple[AssignedQueue, asyncio.Task[None]]] = {}
        self._loops: list[asyncio.Task[None]] = []

    # Acquiring

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Assign exactly these queues, without a rebalance: other members may have them too. The
        first call starts saving offsets."""
        changes = difference(self.queues, queues)
        for queue in changes.dropped:
            self.release(self.queues[queue])
        await self.released()
        self.is_alone = True
        if not await self.gain(changes.gained):
            missing = [queue for queue in changes.gained if queue not in self.queues]
            raise NoRoute(f"the offsets of {missing} are not available now")
        self.start_saving()

    async def gain(self, wanted: list[MessageQueue]) -> bool:
        """Start with these queues. Returns False if some of them must be retried."""
        queues = [queue for queue in wanted if queue not in self._releasing]
        until: dict[MessageQueue, float] = {}
        if self._locks is not None and queues:
            until = await self._locks.lock(queues)
            queues = [queue for queue in queues if queue in until]
        elif queues and not self.is_alone and not self._context.options.broadcasting:
            await asyncio.sleep(HANDOVER_S)
        begun = await asyncio.gather(*(self._begin(queue) for queue in queues))
        for assigned in begun:
            if assigned is not None and self._is_current(assigned):
                assigned.locked_until = until.get(assigned.queue, math.inf)
                self.queues[assigned.queue] = assigned
                self._start(assigned)
        if self._context.options.broadcasting:  # killed now, it must not start at the end again
            await self.saved.save()
        self._share_limits()
        if wanted:
            log.info(
                "group %s was assigned %d more queues; this member now has %d",
                self._context.group,
                len(wanted),
                len(self.queues),
            )
        return len(wanted) == sum(assigned is not None for assigned in begun)

    async def _begin(self, queue: MessageQueue) -> AssignedQueue | None:
        try:
            offset = await self.first_offset(queue)
            if self._context.options.broadcasting:
                self.saved.put(queue, offset)
        except ClientError as error:
            log.info(
                "group %s could not get its offset of %s: %s; it tries again soon",
                self._context.group,
                queue_text(queue),
                error,
            )
            return None
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:
            return None  # unsubscribed meanwhile; the next rebalance does not assign the queue
        return self._make(queue, offset, subscription)

    def _is_current(self, assigned: AssignedQueue) -> bool:
        """Whether the queue is pulled with the expression to which the user subscribes now."""
        wanted, used = self._subscriptions.get(assigned.queue.topic), assigned.plan.subscription
        return wanted is not None and (wanted.expression, wanted.kind) == (
            used.expression,
            used.kind,
        )

    def release_outdated(self) -> None:
        """Release queues whose subscription the user has changed or removed. The next rebalance
        acquires those that are still assigned, with the new expression: a pull that waits at the
        broker would skip the messages that only the new one selects."""
        for assigned in list(self.queues.values()):
            if not self._is_current(assigned):
                self.release(assigned)

    def _make(self, queue: MessageQueue, offset: int, subscription: Subscription) -> AssignedQueue:
        options = self._context.options
        plan = PullPlan(
            group=self._context.group,
            queue=queue,
            subscription=subscription,
            count_max=options.pull_count,
            bytes_max=options.pull_bytes,
            suspend_ms=round(options.long_poll_s * 1000),
            lite=self._lite,
            names=self._context.names,
        )
        limits = options.flow.shared_by(1, orderly=options.orderly)
        return AssignedQueue(plan, offset, limits)

    def _start(self, assigned: AssignedQueue) -> None:
        if assigned.handle(Event.ACQUIRED) is Action.PULL:
            self._listener.on_assigned(assigned)

    async def first_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the group, or its start position."""
        stored = await self.saved.read(queue)
        if stored is not None and stored >= 0:
            return stored
        start = start_rule(self._context.options.start_from)
        match start.ask_for(queue.topic):
            case Ask.ZERO:
                return 0
            case Ask.MAX:
                return await self.offsets.end(queue)
            case Ask.TIME:
                return await self.offsets.at_time(queue, start.time_ms)

    def _share_limits(self) -> None:
        """Divide the limits of each topic among its queues assigned to this member."""
        flow, orderly = self._context.options.flow, self._context.options.orderly
        counts = Counter(queue.topic for queue in self.queues)
        for assigned in self.queues.values():
            assigned.limits = flow.shared_by(counts[assigned.queue.topic], orderly=orderly)

    # Releasing and moving

    def release(self, assigned: AssignedQueue) -> None:
        """Start to release a queue; `released` waits for it."""
        del self.queues[assigned.queue]
        action = assigned.handle(Event.REVOKED)
        assert action is Action.DRAIN
        task = self._context.tasks.run(self._release(assigned))
        self._releasing[assigned.queue] = (assigned, task)
        task.add_done_callback(lambda _: self._released(assigned.queue))

    async def released(self) -> None:
        """Wait until every queue that is being released is released."""
        if self._releasing:
            await asyncio.wait([task for _, task in self._releasing.values()])

    def _released(self, queue: MessageQueue) -> None:
        del self._releasing[queue]
        # The queue may already be assigned to this member again.
        self._on_released()

    async def _release(self, assigned: AssignedQueue) -> None:
        await self._listener.on_revoked(assigned)
        action = assigned.handle(Event.DRAINED)
        assert action is Action.COMMIT
        self._record_offset(assigned)
        await self.saved.save_surely([assigned.queue])
        self.saved.forget(assigned.queue)
        if self._locks is not None:
            await self._locks.unlock(assigned.queue)

    async def move(self, queues: Mapping[MessageQueue, int], *, save: bool = True) -> None:
        """Continue at other offsets, after a reset, an OFFSET_ILLEGAL response or a seek. Messages
        in work no longer count."""
        for queue, offset in queues.items():
            assigned = self.queues.get(queue)
            if assigned is None:
                continue
            assigned.handle(Event.MOVED)
            moved = self._make(queue, offset, assigned.plan.subscription)
            moved.limits, moved.locked_until = assigned.limits, assigned.locked_until
            self.queues[queue] = moved
            await self._listener.on_revoked(assigned)
            if save:
                self._record_offset(assigned)  # its final offset, which the new one overrides
                self.saved.put(queue, offset)
                await self.saved.save_surely([queue])
            if self.queues.get(queue) is moved and not moved.is_revoked:
                self._start(moved)

    # Committing and locking

    def start_saving(self) -> None:
        """Commit offsets and renew locks in the background, until `close`."""
        if self._loops:
            return
        tasks = self._context.tasks
        self._loops = [tasks.run(self._keep_saving())]
        if self._locks is not None:
            self._loops.append(tasks.run(self._keep_locked(self._locks)))

    async def close(self) -> None:
        """Release every queue and stop the background work."""
        for loop in self._loops:
            loop.cancel()
        for assigned in list(self.queues.values()):
            self.release(assigned)
        await self.released()
        self.saved.close()

    async def _keep_saving(self) -> None:
        while True:
            await asyncio.sleep(self._context.options.commit_interval_s)
            self._record_offsets()
            await self.saved.save()

    async def save_surely(self) -> None:
        """Commit the offsets of all queues, and wait until they are stored."""
        self._record_offsets()
        await self.saved.save_surely(list(self.queues))

    def _record_offsets(self) -> None:
        for assigned in self.queues.values():
            self._record_offset(assigned)

    def _record_offset(self, assigned: AssignedQueue) -> None:
        offset = self._listener.committable(assigned)
        if offset is not None:
            self.saved.put(assigned.queue, offset)

    async def _keep_locked(self, locks: QueueLocks) -> None:
        pause_s = self._context.options.lock_interval_s
        while True:
            await asyncio.sleep(pause_s)
            # A queue that still finishes its last message must not be consumed by its next owner.
            leaving = [assigned for assigned, _ in self._releasing.values()]
            has_all = await locks.renew([*self.queues.values(), *leaving])
            pause_s = self._context.options.lock_interval_s
            if not has_all:
                pause_s = min(pause_s, LOCK_RETRY_S)
