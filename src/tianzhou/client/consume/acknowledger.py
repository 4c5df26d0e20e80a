"""Acknowledge consumed messages, or return failed ones to their broker.

In a clustering group a failed message goes back to its broker (CONSUMER_SEND_MSG_BACK), which
delivers it again after a delay, or makes it a dead letter. Until the broker has stored it, the
message stays in work. If the broker cannot be reached, the message is retried in this process after
a pause. Broadcasting returns nothing: the failure is logged, and the message is dropped.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from tianzhou.client.consume.context import ConsumerContext
from tianzhou.client.consume.listener import Failure, described, message_facts
from tianzhou.client.consume.ready import PulledRecords, Ready, RecordSlice
from tianzhou.client.core.assigned_queue import AssignedQueue
from tianzhou.client.core.consume_rates import ConsumeRates
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.errors import ClientError
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_send import ConsumerSendMsgBackRequest

log: Final = logging.getLogger("tianzhou.client")

AGAIN_S: Final = 5.0
"""Pause before the retry of a message that could not be returned."""


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
            await self.send_back(assigned, message, delay_level)
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
                self.offer(again(assigned, message))
        else:
            assigned.finish((message.queue_offset,), monotonic())
            self._ready.settle(assigned)

    async def send_back(
        self, assigned: AssignedQueue, message: ReceivedMessage, delay_level: int
    ) -> None:
        """Return a message to its broker. Raises ClientError if the broker did not accept it."""
        limit = self._context.options.max_reconsume_times
        fields = ConsumerSendMsgBackRequest(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=message.topic,
            unit_mode=False,
            max_reconsume_times=None if limit < 0 else limit,
        )
        address = await self._context.shared.broker_address(assigned.queue.broker_name)
        await self._context.shared.call_ok(
            address, RequestCode.CONSUMER_SEND_MSG_BACK, fields.to_ext()
        )


def again(assigned: AssignedQueue, message: ReceivedMessage) -> PulledRecords:
    """Wrap a message as pulled records, to retry it."""
    return PulledRecords(assigned, message.as_records(), message.local_times + 1)
