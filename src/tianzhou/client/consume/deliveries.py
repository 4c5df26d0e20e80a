"""Pulled messages on their way to the user, and what happens to them afterwards.

    broker ── puller ──▶ window (in work) ──▶ Ready ──▶ listener or iterator ──▶ Acknowledger

Threads and the event loop share `Ready`: a message is taken from it under a lock, and counts as in
flight from then on. When a queue is revoked, its messages in `Ready` are dropped, and those in
flight are waited for. Consumers that poll take from `Ready`, too.

In a clustering group a failed message goes back to its broker (CONSUMER_SEND_MSG_BACK), which
delivers it again after a delay, or makes it a dead letter. Until the broker has stored it, the
message stays in work. If the broker cannot be reached, the message is retried in this process after
a pause. Broadcasting returns nothing: the failure is logged, and the message is dropped.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from tianzhou.client.consume.context import ConsumerContext
from tianzhou.client.core.assigned_queue import AssignedQueue, ConsumeRates
from tianzhou.client.core.offsets import PolledOffsets
from tianzhou.client.core.received import (
    DEAD,
    Failure,
    PulledRecords,
    ReceivedMessage,
    RecordSlice,
    again,
    described,
    has_failed_for_good,
    message_facts,
)
from tianzhou.client.core.trace import ContextCode
from tianzhou.client.errors import ClientError
from tianzhou.client.hooks import ConsumeObserver
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_send import ConsumerSendMsgBackRequest

log: Final = logging.getLogger("tianzhou.client")

AGAIN_S: Final = 5.0
"""Pause before the retry of a message that could not be returned."""


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
            self.count += pulled.count - pulled.first

    def put_first(self, pulled: PulledRecords) -> None:
        with self._lock:
            self._waiting.appendleft(pulled)
            self.count += pulled.count - pulled.first

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
            is_idle = not assigned.in_flight
        if is_idle and assigned.on_idle is not None:
            assigned.report_idle()

    def discard(self, assigned: AssignedQueue) -> None:
        """Drop the messages of a queue that no worker has taken."""
        with self._lock:
            kept = [pulled for pulled in self._waiting if pulled.assigned is not assigned]
            self._waiting = deque(kept)
            self.count = sum(pulled.left for pulled in kept)


class PollDelivery:
    """Deliver messages to polls: those that wait, and the offsets after those that were returned.

    Owner: the event loop.
    """

    def __init__(self) -> None:
        self.ready = Ready()
        self.arrived = asyncio.Event()
        self.offsets = PolledOffsets()
        self.observer: ConsumeObserver | None = None

    def start(self) -> None: ...

    def offer(self, pulled: PulledRecords) -> None:
        self.ready.put(pulled)
        self.arrived.set()

    def discard(self, assigned: AssignedQueue) -> None:
        self.ready.discard(assigned)

    async def stop(self) -> None: ...

    def take(self, count_max: int) -> list[ReceivedMessage]:
        """Return messages without waiting. Returned messages count as finished."""
        found: list[ReceivedMessage] = []
        while len(found) < count_max:
            part = self.ready.take(count_max - len(found))
            if part is None:
                break
            found += part.messages()
            assigned = part.assigned
            assigned.finish(part.records.offsets[part.first : part.end], monotonic())
            self.ready.settle(assigned, part.end - part.first)
            self.offsets.put(assigned.queue, assigned.window.committable)
        if found and self.observer is not None:  # what becomes of them is not known here
            self.observer.ended(self.observer.began(found), ContextCode.SUCCESS)
        return found


class Acknowledger:
    """Finish messages, or return them to the broker, after the listener or user is done.

    Owner: the event loop.
    """

    def __init__(self, context: ConsumerContext, ready: Ready) -> None:
        self._context = context
        self._group = context.group
        self._ready = ready
        self.offer: Callable[[PulledRecords], None] = ready.put
        """Takes messages that are retried in this process."""
        self.rates = ConsumeRates(monotonic())

    def settle(self, part: RecordSlice, failures: Sequence[Failure], took_s: float) -> None:
        """Handle the end of a listener call that took `took_s` seconds, with its failures."""
        assigned, first, end = part.assigned, part.first, part.end
        offsets = part.records.offsets[first:end]
        if failures:
            failed = {message.queue_offset for message, _ in failures}
            offsets = [offset for offset in offsets if offset not in failed]
        now_s = monotonic()
        assigned.finish(offsets, now_s)
        self.rates.called(assigned.queue.topic, took_s, len(offsets), now_s)
        self._ready.settle(assigned, len(offsets))
        for message, delay_level in failures:
            self.fail(assigned, message, delay_level)

    def fail(self, assigned: AssignedQueue, message: ReceivedMessage, delay_level: int) -> None:
        """Handle the failure of one message in flight."""
        self.rates.failed(assigned.queue.topic, 1, monotonic())
        if assigned.is_released:  # the next owner of the queue gets the message
            self._ready.settle(assigned)
        elif self._context.options.broadcasting:
            log.warning(
                "group %s dropped %s: its delivery failed, and broadcast messages are not retried",
                self._group,
                described([message]),
                extra=message_facts(self._group, message),
            )
            assigned.finish((message.queue_offset,), monotonic())
            self._ready.settle(assigned)
        else:
            self._context.tasks.run(self._return(assigned, message, delay_level))

    async def _return(
        self, assigned: AssignedQueue, message: ReceivedMessage, delay_level: int
    ) -> None:
        try:
            await self._send_back(assigned, message, delay_level)
        except ClientError as error:
            log.warning(
                "group %s could not return %s to the broker: %s; it will be delivered again here",
                self._group,
                described([message]),
                error,
                extra=message_facts(self._group, message),
            )
            self._ready.settle(assigned)
            await asyncio.sleep(AGAIN_S)
            if not assigned.is_revoked:
                self.offer(again(assigned, message, failed=True))
        else:
            assigned.finish((message.queue_offset,), monotonic())
            self._ready.settle(assigned)

    async def bury(
        self, assigned: AssignedQueue, message: ReceivedMessage, delay_level: int
    ) -> bool:
        """Make a message that failed in ordered consumption a dead letter and finish it, if it
        failed for good; return whether it is a dead letter now."""
        if not has_failed_for_good(message, delay_level, self._context.options.max_reconsume_times):
            return False
        try:
            await self._send_back(assigned, message, DEAD)
        except ClientError:
            return False  # the message is retried, and then returned again
        assigned.finish((message.queue_offset,), monotonic())
        return True

    async def _send_back(
        self, assigned: AssignedQueue, message: ReceivedMessage, delay_level: int
    ) -> None:
        """Return a message to its broker. Raises ClientError if the broker did not accept it."""
        limit = self._context.options.max_reconsume_times
        fields = ConsumerSendMsgBackRequest(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=self._context.names.full(message.topic),
            unit_mode=False,
            max_reconsume_times=None if limit < 0 else limit,
        )
        address = await self._context.shared.broker_address(assigned.queue.broker_name)
        await self._context.shared.call_ok(
            address, RequestCode.CONSUMER_SEND_MSG_BACK, fields.to_ext()
        )
