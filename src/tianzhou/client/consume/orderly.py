"""Ordered consumption: the locks of queues, and the delivery of one message of a queue at a time.

A task serves each queue. It needs the broker's lock on the queue, and one of a limited number of
slots. A failed message stays first in its queue and is retried after a pause; if the user set a
limit, a message that fails too often becomes a dead letter.

A broker keeps a lock for 60 seconds after the request. The consumer relies on it for at most 30
seconds and renews it every 20, or every second while a lock is missing. A consumer that cannot
reach its broker therefore stops before another one starts, and resumes soon after the broker is
back.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from time import monotonic
from typing import Final, NamedTuple

from tianzhou.client.consume.context import ConsumerContext
from tianzhou.client.consume.deliveries import Acknowledger, Ready
from tianzhou.client.consume.listener import Listener
from tianzhou.client.consume.listener_threads import ListenerThreads
from tianzhou.client.core.assigned_queue import AssignedQueue, queue_text
from tianzhou.client.core.received import (
    AFTER_THE_CALL,
    Failure,
    PulledRecords,
    RecordSlice,
    take_waiting,
)
from tianzhou.client.errors import ClientError
from tianzhou.client.session.shared_client import SharedClient
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.fastjson import encode
from tianzhou.wire.queues import LockBatch, MessageQueue, decode_locked_queues

log: Final = logging.getLogger("tianzhou.client")

TURN: Final = 64
"""Messages of one queue before others get their turn."""
TURN_S: Final = 0.05
LOCK_WAIT_S: Final = 0.1
"""How often a lost lock is checked again."""
RELY_S: Final = 30.0
"""How long the consumer relies on a lock."""


class QueueLocks:
    """The locks of one member of a group.

    Owner: the event loop.
    """

    def __init__(self, group: str, shared: SharedClient) -> None:
        self._group = group
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._silent: set[str] = set()
        """Brokers that did not respond to the last request."""

    async def lock(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, float]:
        """Request locks; return the granted ones, each with its expiry."""
        return {queue: until for queue, until in (await self._ask(queues)).items() if until}

    async def renew(self, assignments: Iterable[AssignedQueue]) -> bool:
        """Renew the locks of these queues. Returns False if some were not granted.

        A queue whose lock the broker refuses is not consumed until the lock is granted. A queue
        whose broker does not respond is consumed until its current lock expires.
        """
        held = {assigned.queue: assigned for assigned in assignments}
        answers = await self._ask(held)
        for queue, assigned in held.items():
            until = answers.get(queue, assigned.locked_until)
            if not until and assigned.locked_until:
                log.warning(
                    "group %s lost its lock on %s; ordered consumption of it waits until the "
                    "broker grants the lock again",
                    self._group,
                    queue_text(queue),
                )
            assigned.locked_until = until
        return all(answers.get(queue) for queue in held)

    async def _ask(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, float]:
        """When the lock of each queue expires, or 0 if it was refused; only for brokers that
        responded."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        answers = await asyncio.gather(
            *(self._ask_broker(broker, wanted) for broker, wanted in by_broker.items())
        )
        return {queue: until for some in answers for queue, until in some.items()}

    async def _ask_broker(
        self, broker: str, wanted: list[MessageQueue]
    ) -> dict[MessageQueue, float]:
        # From before the request: the broker counts from its arrival, which is later.
        until = self._loop.time() + RELY_S
        try:
            answer = await self._call(RequestCode.LOCK_BATCH_MQ, broker, wanted)
        except ClientError as error:
            # The request is repeated every second until the broker responds; one line is enough.
            if broker not in self._silent:
                self._silent.add(broker)
                log.warning(
                    "group %s could not lock %d queues at broker %s: %s; it retries until the "
                    "broker responds, and consumes a queue only while it holds the lock",
                    self._group,
                    len(wanted),
                    broker,
                    error,
                )
            return {}
        self._silent.discard(broker)
        granted = set(decode_locked_queues(answer).queues)
        return {queue: until if queue in granted else 0.0 for queue in wanted}

    async def unlock(self, queue: MessageQueue) -> None:
        """Release a lock. If the broker cannot be reached, the lock expires by itself."""
        try:
            await self._call(RequestCode.UNLOCK_BATCH_MQ, queue.broker_name, [queue])
        except ClientError as error:
            log.info(
                "group %s could not unlock %s: %s; the lock expires by itself",
                self._group,
                queue_text(queue),
                error,
            )

    async def _call(self, code: int, broker: str, queues: list[MessageQueue]) -> bytes:
        body = LockBatch(
            client_id=self._shared.client_id, consumer_group=self._group, mq_set=tuple(queues)
        )
        address = await self._shared.broker_address(broker)
        _, answer = await self._shared.call_ok(address, code, {}, encode(body))
        return answer


class _Served(NamedTuple):
    """The result of a turn: the durations of successful calls, and the failures and the duration of
    the call that ended the turn, if any."""

    took_s: list[float]
    failures: Sequence[Failure] = ()
    failed_s: float = 0.0


class OrderlyWorkers:
    """Call a listener for the messages of each queue in order. Functions run in threads.

    Owner: the event loop.
    """

    def __init__(
        self, context: ConsumerContext, listener: Listener, ready: Ready, acknowledger: Acknowledger
    ) -> None:
        self._listener = listener
        self._options = context.options
        self._ready = ready
        self._acknowledger = acknowledger
        self._tasks = context.tasks
        self._slots = asyncio.Semaphore(context.options.concurrency)
        self._arrivals: dict[AssignedQueue, asyncio.Event] = {}
        self._threads: ListenerThreads[_Served] | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        if not self._listener.is_async:
            self._threads = ListenerThreads()

    def offer(self, pulled: PulledRecords) -> None:
        pulled.assigned.waiting.append(pulled)
        arrival = self._arrivals.get(pulled.assigned)
        if arrival is None:
            self._arrivals[pulled.assigned] = asyncio.Event()
            self._tasks.run(self._serve(pulled.assigned))
        else:
            arrival.set()

    def discard(self, assigned: AssignedQueue) -> None:
        assigned.waiting.clear()
        if assigned in self._arrivals:
            self._arrivals[assigned].set()

    async def stop(self) -> None:
        if self._threads is not None:
            self._threads.stop()

    async def _serve(self, assigned: AssignedQueue) -> None:
        arrival = self._arrivals[assigned]
        self._listener.enter()
        while not assigned.is_revoked:
            if not assigned.waiting:
                arrival.clear()
                await arrival.wait()
            elif assigned.locked_until <= self._loop.time():
                await asyncio.sleep(LOCK_WAIT_S)
            else:
                async with self._slots:
                    is_sound = await self._turn(assigned)
                await asyncio.sleep(0 if is_sound else self._options.suspend_s)
        del self._arrivals[assigned]

    async def _turn(self, assigned: AssignedQueue) -> bool:
        """Process some messages, one after the other. Returns False if one failed."""
        parts = self._take(assigned)
        if not parts:
            return True
        with contextlib.ExitStack() as ended_from_outside:
            # If cancelled, the messages are neither finished nor in flight.
            count = sum(part.end - part.first for part in parts)
            ended_from_outside.callback(self._ready.settle, assigned, count)
            if self._threads is None:
                served = await self._call(assigned, parts)
            else:
                served = await self._threads.run(partial(self._call_here, assigned, parts))
            ended_from_outside.pop_all()
        done = len(served.took_s)
        for part, took_s in zip(parts, served.took_s, strict=False):
            self._acknowledger.settle(part, (), took_s)
        rest = parts[done:]
        if served.failures:
            rest[0] = await self._failed(rest[0], served.failures, served.failed_s)
        self._put_back(assigned, rest)
        return not served.failures

    def _take(self, assigned: AssignedQueue) -> list[RecordSlice]:
        """Take the next messages, one part for each call; all are in flight from now on."""
        parts: list[RecordSlice] = []
        while assigned.waiting and len(parts) < TURN and not assigned.is_revoked:
            parts.append(take_waiting(assigned, self._listener.count_max))
        return parts

    async def _call(self, assigned: AssignedQueue, parts: list[RecordSlice]) -> _Served:
        took_s: list[float] = []
        begun = monotonic()
        deadline = begun + TURN_S
        for part in parts:
            if assigned.is_revoked or begun >= assigned.locked_until or begun > deadline:
                break
            failures = await self._listener.call(part.messages(AFTER_THE_CALL))
            ended = monotonic()
            if failures:
                return _Served(took_s, failures, ended - begun)
            took_s.append(ended - begun)
            begun = ended
        return _Served(took_s)

    def _call_here(self, assigned: AssignedQueue, parts: list[RecordSlice]) -> _Served:
        """Like `_call`, in a thread."""
        self._listener.enter()
        took_s: list[float] = []
        begun = monotonic()
        deadline = begun + TURN_S
        for part in parts:
            if assigned.is_revoked or begun >= assigned.locked_until or begun > deadline:
                break
            failures = self._listener.call_here(part.messages(AFTER_THE_CALL))
            ended = monotonic()
            if failures:
                return _Served(took_s, failures, ended - begun)
            took_s.append(ended - begun)
            begun = ended
        return _Served(took_s)

    async def _failed(
        self, part: RecordSlice, failures: Sequence[Failure], took_s: float
    ) -> RecordSlice:
        """Finish the messages before the first failure, make those that failed too often dead
        letters; return the rest."""
        assigned, offsets = part.assigned, part.records.offsets
        failed = {int(message.queue_offset): level for message, level in failures}
        first = next(at for at in range(part.first, part.end) if offsets[at] in failed)
        if first > part.first:
            self._acknowledger.settle(part._replace(end=first), (), took_s)
        self._acknowledger.rates.failed(assigned.queue.topic, len(failures), monotonic())
        while first < part.end and offsets[first] in failed:
            message = part._replace(first=first, end=first + 1).messages()[0]
            if self._options.broadcasting or not await self._acknowledger.bury(
                assigned, message, failed[offsets[first]]
            ):
                break
            self._ready.settle(assigned)
            first += 1
        return part._replace(first=first, times=part.times + 1)

    def _put_back(self, assigned: AssignedQueue, parts: list[RecordSlice]) -> None:
        """Put messages back, before those that arrived meanwhile."""
        for part in reversed(parts):
            if part.first == part.end:
                continue
            self._ready.settle(assigned, part.end - part.first)
            if not assigned.is_revoked:
                assigned.waiting.appendleft(part.as_pulled())
