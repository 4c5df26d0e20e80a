"""Pulling from one queue after another answer, for as long as the queue is ours.

The next pull leaves as soon as an answer is there, before its messages are worked on, so that the
broker and the listener are busy at the same time. A pull that finds nothing waits at the broker.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final

from tianzhou.base.errors import Retry
from tianzhou.client.aio.assigned_queue import AssignedQueue, PulledRecords
from tianzhou.client.aio.group_member import GroupMember
from tianzhou.client.aio.shared_client import SharedClient
from tianzhou.client.aio.tasks import Tasks
from tianzhou.client.core.consume_rates import ConsumeRates
from tianzhou.client.core.pulling import PullAnswer, PullStatus, read_answer, records_of, untrusted
from tianzhou.client.core.routing import MASTER
from tianzhou.client.core.window import Window
from tianzhou.client.errors import ClientClosed, ClientError, NoRoute, RemoteError, remote_error
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.queues import MessageQueue

log: Final = logging.getLogger("tianzhou.client")

GRACE_S: Final = 15.0
"""How much longer than the broker may hold a pull we wait for its answer."""
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 3.0
"""Between tries that fail: twice as long each time, up to this."""

_AFTER_HEARTBEAT: Final = (
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
    ResponseCode.FILTER_DATA_NOT_EXIST,
    ResponseCode.FILTER_DATA_NOT_LATEST,
)
"""The broker has not heard from us, or has forgotten: it may have just started."""


class Puller:
    """Owner: the event loop."""

    def __init__(
        self,
        shared: SharedClient,
        member: GroupMember,
        tasks: Tasks,
        deliver: Callable[[PulledRecords], None],
        rates: ConsumeRates,
    ) -> None:
        self._shared = shared
        self._member = member
        self._tasks = tasks
        self._deliver = deliver
        self._rates = rates
        self._commits = not member.options.broadcasting
        self._running: dict[AssignedQueue, asyncio.Task[None]] = {}
        self._paused: set[MessageQueue] = set()
        self._is_paused = False
        self._resumed = asyncio.Event()

    def start(self, assigned: AssignedQueue) -> None:
        self._running[assigned] = self._tasks.run(self._pull(assigned))

    def stop(self, assigned: AssignedQueue) -> None:
        task = self._running.pop(assigned, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """These queues, or all, after the pulls that are under way."""
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

    async def _wait_resumed(self, assigned: AssignedQueue) -> None:
        while self._is_paused or assigned.queue in self._paused:
            self._resumed.clear()
            await self._resumed.wait()

    async def _pull(self, assigned: AssignedQueue) -> None:
        broker_id, failures = MASTER, 0
        while not assigned.is_dropped:
            if self._is_paused or self._paused:
                await self._wait_resumed(assigned)
            if not assigned.has_room:
                await assigned.wait_room()
            try:
                answer = await self._request(assigned, broker_id)
            except ClientClosed:
                return
            except ClientError as error:
                failures += 1
                broker_id = await self._recover(assigned, error, failures, broker_id)
                continue
            broker_id, failures = answer.broker_id, 0
            if not await self._take(assigned, answer):
                return

    async def _request(self, assigned: AssignedQueue, broker_id: int) -> PullAnswer:
        queue, offset = assigned.queue, assigned.window.next_offset
        route = await self._shared.route(queue.topic)
        address = route.any_address(queue.broker_name, broker_id)
        if address is None:
            raise NoRoute(f"broker {queue.broker_name!r} of topic {queue.topic!r} is away")
        ext = assigned.plan.ext(
            offset, self._member.committable(assigned) if self._commits else None
        )
        timeout_s = assigned.plan.suspend_ms / 1000 + GRACE_S
        assigned.asked_at = monotonic()
        header, body = await self._shared.call(
            address, RequestCode.PULL_MESSAGE, ext, timeout_s=timeout_s
        )
        with untrusted(queue, offset):
            answer = read_answer(header, body)
        if answer is None:
            raise remote_error(address, header.code, header.remark)
        assigned.pulled_at = monotonic()
        return answer

    async def _take(self, assigned: AssignedQueue, answer: PullAnswer) -> bool:
        """False when the queue goes on elsewhere."""
        window = assigned.window
        if answer.status is PullStatus.FOUND:
            asked = window.next_offset
            with untrusted(assigned.queue, asked):
                records = records_of(answer.body, asked=asked, accepts_tag=assigned.accepts_tag)
            window.add(records.offsets, records.sizes, answer.next_offset)
            # Only of these: others have waited at the broker.
            took_s = assigned.pulled_at - assigned.asked_at
            self._rates.pulled(
                assigned.queue.topic, len(records.starts), took_s, assigned.pulled_at
            )
            if records.starts:
                self._deliver(PulledRecords(assigned, records))
        elif answer.status is PullStatus.OFFSET_ILLEGAL:
            return await self._moved(assigned, answer)
        else:
            window.add([], [], max(window.next_offset, answer.next_offset))
        return True

    async def _moved(self, assigned: AssignedQueue, answer: PullAnswer) -> bool:
        """The broker has nothing at our offset, and says where it has."""
        log.warning(
            "group %s asked for offset %d of queue %s:%d of topic %s, which the broker does not "
            "have (its first is %d); consumption continues at %d",
            self._member.name,
            assigned.window.next_offset,
            assigned.queue.broker_name,
            assigned.queue.queue_id,
            assigned.queue.topic,
            answer.min_offset,
            answer.next_offset,
        )
        if assigned.window.count:
            self._tasks.run(self._member.move({assigned.queue: answer.next_offset}))
            return False
        if answer.next_offset == assigned.window.next_offset:
            await asyncio.sleep(PAUSE_S)
        assigned.window = Window(answer.next_offset)
        return True

    async def _recover(
        self, assigned: AssignedQueue, error: ClientError, failures: int, broker_id: int
    ) -> int:
        """Wait before the next attempt; return the broker id to ask. Raises errors no retry can
        fix."""
        code = error.code if isinstance(error, RemoteError) else None
        log.log(
            logging.WARNING if failures == 1 else logging.DEBUG,
            "group %s could not pull from queue %s:%d of topic %s (failure %d in a row): %s; it "
            "retries until it succeeds",
            self._member.name,
            assigned.queue.broker_name,
            assigned.queue.queue_id,
            assigned.queue.topic,
            failures,
            error,
        )
        if code in _AFTER_HEARTBEAT:
            await self._shared.heartbeat_now()
        elif error.retry is not Retry.SAME_BROKER:
            # Fewer queues to read than there were: the route tells.
            if error.retry is Retry.NEVER and code != ResponseCode.INVALID_PARAMETER:
                raise error
            broker_id = await self._other_replica(assigned, broker_id)
        await asyncio.sleep(min(PAUSE_S * 2 ** min(failures, 10), PAUSE_S_MAX))
        return broker_id

    async def _other_replica(self, assigned: AssignedQueue, broker_id: int) -> int:
        """By a fresh route, the next of the brokers that have this queue."""
        try:
            route = await self._shared.refresh(assigned.queue.topic)
        except ClientError:
            return broker_id  # the name server may be away too; the old route has to do
        known = sorted(route.brokers.get(assigned.queue.broker_name, {}))
        return next((other for other in known if other > broker_id), MASTER)
