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
from tianzhou.client.aio.group import Group
from tianzhou.client.aio.lane import Lane, Run
from tianzhou.client.aio.shared_client import SharedClient
from tianzhou.client.aio.tasks import Tasks
from tianzhou.client.core.pace import Pace
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
        self, shared: SharedClient, group: Group, tasks: Tasks, deliver: Callable[[Run], None],
        pace: Pace,
    ) -> None:  # fmt: skip
        self._shared = shared
        self._group = group
        self._tasks = tasks
        self._deliver = deliver
        self._pace = pace
        self._commits = not group.options.broadcasting
        self._running: dict[Lane, asyncio.Task[None]] = {}
        self._paused: set[MessageQueue] = set()
        self._is_paused = False
        self._resumed = asyncio.Event()

    def start(self, lane: Lane) -> None:
        self._running[lane] = self._tasks.run(self._pull(lane))

    def stop(self, lane: Lane) -> None:
        task = self._running.pop(lane, None)
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

    async def _wait_resumed(self, lane: Lane) -> None:
        while self._is_paused or lane.queue in self._paused:
            self._resumed.clear()
            await self._resumed.wait()

    async def _pull(self, lane: Lane) -> None:
        broker_id, failures = MASTER, 0
        while not lane.is_dropped:
            if self._is_paused or self._paused:
                await self._wait_resumed(lane)
            if not lane.has_room:
                await lane.wait_room()
            try:
                answer = await self._ask(lane, broker_id)
            except ClientClosed:
                return
            except ClientError as error:
                failures += 1
                broker_id = await self._recover(lane, error, failures, broker_id)
                continue
            broker_id, failures = answer.broker_id, 0
            if not await self._take(lane, answer):
                return

    async def _ask(self, lane: Lane, broker_id: int) -> PullAnswer:
        queue, offset = lane.queue, lane.window.next_offset
        route = await self._shared.route(queue.topic)
        address = route.any_address(queue.broker_name, broker_id)
        if address is None:
            raise NoRoute(f"broker {queue.broker_name!r} of topic {queue.topic!r} is away")
        ext = lane.plan.ext(offset, self._group.committable(lane) if self._commits else None)
        timeout_s = lane.plan.suspend_ms / 1000 + GRACE_S
        lane.asked_at = monotonic()
        header, body = await self._shared.call(
            address, RequestCode.PULL_MESSAGE, ext, timeout_s=timeout_s
        )
        with untrusted(queue, offset):
            answer = read_answer(header, body)
        if answer is None:
            raise remote_error(address, header.code, header.remark)
        lane.pulled_at = monotonic()
        return answer

    async def _take(self, lane: Lane, answer: PullAnswer) -> bool:
        """False when the queue goes on elsewhere."""
        window = lane.window
        if answer.status is PullStatus.FOUND:
            asked = window.next_offset
            with untrusted(lane.queue, asked):
                records = records_of(answer.body, asked=asked, accepts_tag=lane.accepts_tag)
            window.add(records.offsets, records.sizes, answer.next_offset)
            # Only of these: others have waited at the broker.
            took_s = lane.pulled_at - lane.asked_at
            self._pace.pulled(lane.queue.topic, len(records.starts), took_s, lane.pulled_at)
            if records.starts:
                self._deliver(Run(lane, records))
        elif answer.status is PullStatus.OFFSET_ILLEGAL:
            return await self._moved(lane, answer)
        else:
            window.add([], [], max(window.next_offset, answer.next_offset))
        return True

    async def _moved(self, lane: Lane, answer: PullAnswer) -> bool:
        """The broker has nothing at our offset, and says where it has."""
        log.warning(
            "group %s asked for offset %d of queue %s:%d of topic %s, which the broker does not "
            "have (its first is %d); consumption continues at %d",
            self._group.name, lane.window.next_offset, lane.queue.broker_name, lane.queue.queue_id,
            lane.queue.topic, answer.min_offset, answer.next_offset,
        )  # fmt: skip
        if lane.window.count:
            self._tasks.run(self._group.move({lane.queue: answer.next_offset}))
            return False
        if answer.next_offset == lane.window.next_offset:
            await asyncio.sleep(PAUSE_S)
        lane.window = Window(answer.next_offset)
        return True

    async def _recover(self, lane: Lane, error: ClientError, failures: int, broker_id: int) -> int:
        """Wait before the next try; whom to ask then. Raises what no try will mend."""
        code = error.code if isinstance(error, RemoteError) else None
        log.log(
            logging.WARNING if failures == 1 else logging.DEBUG,
            "group %s could not pull from queue %s:%d of topic %s (failure %d in a row): %s; it "
            "retries until it succeeds",
            self._group.name, lane.queue.broker_name, lane.queue.queue_id, lane.queue.topic,
            failures, error,
        )  # fmt: skip
        if code in _AFTER_HEARTBEAT:
            await self._shared.heartbeat_now()
        elif error.retry is not Retry.SAME_BROKER:
            # Fewer queues to read than there were: the route tells.
            if error.retry is Retry.NEVER and code != ResponseCode.INVALID_PARAMETER:
                raise error
            broker_id = await self._other_replica(lane, broker_id)
        await asyncio.sleep(min(PAUSE_S * 2 ** min(failures, 10), PAUSE_S_MAX))
        return broker_id

    async def _other_replica(self, lane: Lane, broker_id: int) -> int:
        """By a fresh route, the next of the brokers that have this queue."""
        try:
            route = await self._shared.refresh(lane.queue.topic)
        except ClientError:
            return broker_id  # the name server may be away too; the old route has to do
        known = sorted(route.brokers.get(lane.queue.broker_name, {}))
        return next((other for other in known if other > broker_id), MASTER)
