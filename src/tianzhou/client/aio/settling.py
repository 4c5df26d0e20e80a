"""What happens to messages after the user had them: finished, or sent back to come again.

In a clustering group a failed message goes back to its broker (CONSUMER_SEND_MSG_BACK), which
delivers it again after a delay, or makes it a dead letter. Until the broker has it, the message
stays in work. If the broker can't be told, the message is tried again here after a while.
Broadcasting sends nothing back: the failure is logged, and that was it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from tianzhou.client.aio.lane import Lane, Piece, Ready, Run
from tianzhou.client.aio.listener import Failure, described, message_facts
from tianzhou.client.aio.shared_client import SharedClient
from tianzhou.client.aio.tasks import Tasks
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.pace import Pace
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.errors import ClientError
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_send import ConsumerSendMsgBackRequest

log: Final = logging.getLogger("tianzhou.client")

AGAIN_S: Final = 5.0
"""Before a message is tried again that could not be sent back."""


class Settler:
    """Owner: the event loop."""

    def __init__(
        self, group: str, shared: SharedClient, options: ConsumerOptions, ready: Ready, tasks: Tasks
    ) -> None:
        self._group = group
        self._shared = shared
        self._options = options
        self._ready = ready
        self._tasks = tasks
        self.offer: Callable[[Run], None] = ready.put
        """Where a message goes that is tried again here."""
        self.pace = Pace(monotonic())

    def settle(self, piece: Piece, failures: Sequence[Failure], took_s: float) -> None:
        """The listener is done with these messages after so long, and these of them failed."""
        lane, first, end = piece.lane, piece.first, piece.end
        offsets = piece.records.offsets[first:end]
        if failures:
            failed = {message.queue_offset for message, _ in failures}
            offsets = [offset for offset in offsets if offset not in failed]
        lane.finish(offsets)
        self.pace.called(lane.queue.topic, took_s, len(offsets), monotonic())
        self._ready.settle(lane, len(offsets))
        for message, delay_level in failures:
            self.fail(lane, message, delay_level)

    def fail(self, lane: Lane, message: ReceivedMessage, delay_level: int) -> None:
        """One message that is in hand failed."""
        self.pace.failed(lane.queue.topic, 1, monotonic())
        if lane.is_gone:  # and the message with it: its next owner will have it
            self._ready.settle(lane)
        elif self._options.broadcasting:
            log.warning(
                "group %s dropped %s: its delivery failed, and broadcast messages are not retried",
                self._group, described([message]), extra=message_facts(self._group, message),
            )  # fmt: skip
            lane.finish((message.queue_offset,))
            self._ready.settle(lane)
        else:
            self._tasks.run(self._return(lane, message, delay_level))

    async def _return(self, lane: Lane, message: ReceivedMessage, delay_level: int) -> None:
        try:
            await self.send_back(lane, message, delay_level)
        except ClientError as error:
            log.warning(
                "group %s could not return %s to the broker: %s; it will be delivered again here",
                self._group, described([message]), error,
                extra=message_facts(self._group, message),
            )  # fmt: skip
            self._ready.settle(lane)
            await asyncio.sleep(AGAIN_S)
            if not lane.is_dropped:
                self.offer(again(lane, message))
        else:
            lane.finish((message.queue_offset,))
            self._ready.settle(lane)

    async def send_back(self, lane: Lane, message: ReceivedMessage, delay_level: int) -> None:
        """Raises ClientError if the broker did not take it."""
        limit = self._options.max_reconsume_times
        fields = ConsumerSendMsgBackRequest(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=message.topic,
            unit_mode=False,
            max_reconsume_times=None if limit < 0 else limit,
        )
        address = await self._shared.broker_address(lane.queue.broker_name)
        await self._shared.call_ok(address, RequestCode.CONSUMER_SEND_MSG_BACK, fields.to_ext())


def again(lane: Lane, message: ReceivedMessage) -> Run:
    """A message as a run of its own, to be tried once more."""
    return Run(lane, message.as_records(), message.local_times + 1)
