"""Pull from each assigned queue, for as long as it is assigned to this member.

The next pull is sent as soon as a response arrives, before its messages are processed, so that the
broker and the listener work at the same time. A pull that finds nothing waits at the broker.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final, NamedTuple

from tianzhou.client.consume.assignments import Assignments
from tianzhou.client.consume.context import ConsumerContext, wait_for_room
from tianzhou.client.core.assigned_queue import (
    AssignedQueue,
    ConsumeRates,
    Event,
    Window,
    queue_text,
)
from tianzhou.client.core.pulling import (
    NOTHING,
    PAUSE_S,
    PullAnswer,
    PullFrom,
    PullRetry,
    PullStatus,
    Records,
    is_usable,
    pause_after,
    read_answer,
    records_of,
    retry_after,
    untrusted,
)
from tianzhou.client.core.received import PulledRecords
from tianzhou.client.core.routing import MASTER
from tianzhou.client.errors import ClientClosed, ClientError, NoRoute, remote_error
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.queues import MessageQueue

log: Final = logging.getLogger("tianzhou.client")

GRACE_S: Final = 15.0
"""How much longer than the broker may hold a pull the consumer waits for its response."""


class _Pulled(NamedTuple):
    """A response, and the replica that sent it."""

    answer: PullAnswer
    records: Records
    took_s: float
    at: int
    is_only: bool
    """Whether this replica is a slave, and the route has no master."""


class Puller:
    """One task for each assigned queue.

    Owner: the event loop.
    """

    def __init__(
        self,
        context: ConsumerContext,
        assignments: Assignments,
        deliver: Callable[[PulledRecords], None],
        rates: ConsumeRates,
        *,
        committable: Callable[[AssignedQueue], int | None],
    ) -> None:
        """`committable` returns the offset that a pull commits for its queue, if any."""
        self._context = context
        self._shared = context.shared
        self._assignments = assignments
        self._deliver = deliver
        self._rates = rates
        self._committable = None if context.options.broadcasting else committable
        self._running: dict[AssignedQueue, asyncio.Task[None]] = {}
        self._paused: set[MessageQueue] = set()
        self._is_paused = False
        self._resumed = asyncio.Event()

    def start(self, assigned: AssignedQueue) -> None:
        self._running[assigned] = self._context.tasks.run(self._pull(assigned))

    def stop(self, assigned: AssignedQueue) -> None:
        task = self._running.pop(assigned, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Pause these queues, or all, after their current pulls."""
        if queues is None:
            self._is_paused = True
        else:
            self._paused.update(queues)
        self._resumed.clear()

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        if queues is None:
            self._is_paused = False
        else:
            self._paused.difference_update(queues)
        self._resumed.set()

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def _is_on_hold(self, queue: MessageQueue) -> bool:
        return self._is_paused or queue in self._paused

    async def _wait_for_capacity(self, assigned: AssignedQueue) -> None:
        """Pause the queue until the user resumes it and its window is no longer full."""
        assigned.handle(Event.PAUSE)
        while self._is_on_hold(assigned.queue):
            self._resumed.clear()
            await self._resumed.wait()
        await wait_for_room(assigned)
        assigned.handle(Event.RESUME)

    async def _pull(self, assigned: AssignedQueue) -> None:
        source, failures = PullFrom(), 0
        plan = assigned.plan
        accepts_tag, takes_all = plan.subscription.accepts_tag, plan.takes_all
        while not assigned.is_revoked:
            if self._is_on_hold(assigned.queue) or not assigned.has_room:
                await self._wait_for_capacity(assigned)
            asked = assigned.window.next_offset
            try:
                pulled = await self._request(assigned, source, accepts_tag)
            except ClientClosed:
                return
            except ClientError as error:
                failures += 1
                source = await self._recover(assigned, error, failures, source)
                continue
            answer, at = pulled.answer, pulled.at
            count = len(pulled.records.starts) if takes_all else None
            if not is_usable(answer, at=at, asked=asked, count=count):
                source = source.after_failure((at,), now_s=assigned.pulled_at)
                if pulled.is_only:
                    await asyncio.sleep(PAUSE_S)
                continue
            source, failures = source.after_answer(answer, at=at, now_s=assigned.pulled_at), 0
            if answer.status is PullStatus.FOUND:
                self._found(assigned, pulled)
            elif answer.status is PullStatus.OFFSET_ILLEGAL:
                if not await self._move(assigned, answer):
                    return
            else:
                window = assigned.window
                window.add([], [], max(window.next_offset, answer.next_offset))

    async def _request(
        self,
        assigned: AssignedQueue,
        source: PullFrom,
        accepts_tag: Callable[[bytes | None], bool] | None,
    ) -> _Pulled:
        queue, offset = assigned.queue, assigned.window.next_offset
        route = await self._shared.route(queue.topic)
        replica = route.any_replica(queue.broker_name, source.broker_id)
        if replica is None:
            raise NoRoute(
                f"broker {queue.broker_name!r} of topic {queue.topic!r} is not registered"
            )
        at, address = replica
        is_only = at != MASTER and not route.has_master(queue.broker_name)
        # The master waits for new messages and stores offsets, if there is a master.
        is_final = at == MASTER or is_only
        committed = None
        if self._committable is not None and is_final:
            committed = self._committable(assigned)
        begun = monotonic()
        header, body = await self._shared.call(
            address,
            RequestCode.PULL_MESSAGE,
            assigned.plan.ext(offset, committed, suspend=is_final),
            timeout_s=GRACE_S + (assigned.plan.suspend_ms / 1000 if is_final else 0.0),
        )
        with untrusted(queue, offset):
            answer = read_answer(header, body)
        if answer is None:
            raise remote_error(address, header.code, header.remark)
        assigned.pulled_at = monotonic()
        records = NOTHING
        if answer.status is PullStatus.FOUND:
            with untrusted(queue, offset):
                records = records_of(
                    answer.body, asked=offset, topic=queue.topic, accepts_tag=accepts_tag
                )
        return _Pulled(answer, records, assigned.pulled_at - begun, at, is_only)

    def _found(self, assigned: AssignedQueue, pulled: _Pulled) -> None:
        records = pulled.records
        assigned.window.add(records.offsets, records.sizes, pulled.answer.next_offset)
        # Only of these responses: others have waited at the broker.
        count, now_s = len(records.starts), assigned.pulled_at
        self._rates.pulled(assigned.queue.topic, count, pulled.took_s, now_s)
        if records.starts:
            self._deliver(PulledRecords(assigned, records))

    async def _move(self, assigned: AssignedQueue, answer: PullAnswer) -> bool:
        """Continue at the offset that the broker suggests, because it does not have the requested
        one. Returns False if another AssignedQueue continues."""
        log.warning(
            "group %s asked for offset %d of %s, which the broker does not have (its first is %d); "
            "consumption continues at %d",
            self._context.group,
            assigned.window.next_offset,
            queue_text(assigned.queue),
            answer.min_offset,
            answer.next_offset,
        )
        if assigned.window.count:
            move = self._assignments.move({assigned.queue: answer.next_offset})
            self._context.tasks.run(move)
            return False
        if answer.next_offset == assigned.window.next_offset:
            await asyncio.sleep(PAUSE_S)
        assigned.window = Window(answer.next_offset)
        return True

    async def _recover(
        self, assigned: AssignedQueue, error: ClientError, failures: int, source: PullFrom
    ) -> PullFrom:
        """Wait before the next attempt; return the replica to pull from. Raises errors that no
        retry can fix."""
        log.log(
            logging.WARNING if failures == 1 else logging.DEBUG,
            "group %s could not pull from %s (failure %d in a row): %s; it retries until it "
            "succeeds",
            self._context.group,
            queue_text(assigned.queue),
            failures,
            error,
        )
        match retry_after(error, at=source.broker_id):
            case PullRetry.NEVER:
                raise error
            case PullRetry.HEARTBEAT:
                await self._shared.heartbeat_now()
            case PullRetry.OTHER_REPLICA:
                source = await self._other_replica(assigned, source)
            case PullRetry.SAME_BROKER:
                pass
        await asyncio.sleep(pause_after(failures))
        return source

    async def _other_replica(self, assigned: AssignedQueue, source: PullFrom) -> PullFrom:
        """Return the next replica of this queue, from a fresh route."""
        known: Iterable[int] = ()
        # The NameServer may be unavailable too; then only the master is left.
        with contextlib.suppress(ClientError):
            route = await self._shared.refresh(assigned.queue.topic)
            known = route.brokers.get(assigned.queue.broker_name, {})
        return source.after_failure(known, now_s=monotonic())
