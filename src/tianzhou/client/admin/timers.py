"""Scheduled messages: list and cancel timed ones, and count delayed ones."""

from dataclasses import dataclass
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.client.admin.calls import AdminCalls
from tianzhou.record.message import MessageView
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_admin import ListWaitingRequest
from tianzhou.wire._generated_headers_send import RecallMessageRequest
from tianzhou.wire.admin_bodies import TimedMessage, decode_timed_messages
from tianzhou.wire.names import SCHEDULE_TOPIC
from tianzhou.wire.queues import MessageQueue
from tianzhou.wire.tables import decode_delay_offsets

COUNT: Final = 100
DELAY_TOPIC: Final = SCHEDULE_TOPIC
"""One queue for each delay level."""


@dataclass(frozen=True, slots=True)
class WaitingTimer:
    """A scheduled message, and the broker that has it."""

    broker_name: str
    message: TimedMessage


class Timers:
    """Scheduled messages: list and cancel timed ones, and list delayed ones (`admin.timers`).

        for timer in await admin.timers.all(topic="reminders"):
            await admin.timers.cancel(timer)

    Owner: the event loop.
    """

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    async def all(self, *, topic: str | None = None, count: int = COUNT) -> list[WaitingTimer]:
        """Return timed messages, the next to be delivered first: at most `count` of each broker.

        Raises NoRoute if no broker is registered.
        """
        masters = await self._calls.masters()
        fields = ListWaitingRequest(count=count, topic=topic)
        bodies = await self._calls.ask_each(masters, RequestCode.LIST_TIMERS, fields)
        found = [
            WaitingTimer(name, message)
            for name, body in bodies.items()
            for message in decode_timed_messages(body).messages
        ]
        return sorted(found, key=lambda timer: timer.message.deliver_timestamp)

    async def cancel(self, timer: WaitingTimer) -> None:
        """Cancel a timed message before delivery.

        Raises UsageError if the message has no unique id, and RemoteError if it was already
        delivered or cancelled.
        """
        message = timer.message
        if message.recall_handle is None:
            raise UsageError(f"{message.msg_id} has no unique id, so it cannot be cancelled")
        fields = RecallMessageRequest(
            topic=message.topic, recall_handle=message.recall_handle, producer_group="TOOLS"
        )
        address = (await self._calls.masters([timer.broker_name]))[timer.broker_name]
        await self._calls.ask(address, RequestCode.RECALL_MESSAGE, fields)

    async def delayed(self, *, level: int, count: int = COUNT) -> list[MessageView]:
        """Return messages of a delay level, the next to be delivered first.

        Each broker returns at most `count`. They cannot be cancelled. Retries of consumers are
        included. Raises UsageError for a level below 1.
        """
        if level < 1:
            raise UsageError(f"delay level must be at least 1, got {level}")
        found: list[MessageView] = []
        for name, address in (await self._calls.masters()).items():
            queue = MessageQueue(topic=DELAY_TOPIC, broker_name=name, queue_id=level - 1)
            _, body = await self._calls.ask(address, RequestCode.GET_ALL_DELAY_OFFSET)
            start = decode_delay_offsets(body).offset_table.get(level, 0)
            answer, _ = await self._calls.pull(address, queue, start, 1)
            start = max(start, answer.min_offset)
            end = answer.max_offset
            found += await self._calls.read(address, queue, start=start, end=end, count=count)
        return sorted(found, key=lambda message: message.store_timestamp)
