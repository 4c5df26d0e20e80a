"""Handle requests that brokers, and tools through them, send to a consumer.

| code | request |
| --- | --- |
| 40 | rebalance: the group has changed, or routes of topics |
| 220 | continue at other offsets |
| 221 | return the offsets in memory |
| 307 | return the state of the consumer |
| 309 | process this message now |
"""

import asyncio
import sys
import time
import traceback
from collections.abc import Callable
from types import CoroutineType
from typing import Any, Final

from tianzhou.client.consume.deliveries import Acknowledger
from tianzhou.client.consume.group_member import GroupMember
from tianzhou.client.consume.listener import Listener
from tianzhou.client.consume.puller import Puller
from tianzhou.client.core.assigned_queue import AssignedQueue
from tianzhou.client.core.received import (
    AFTER_THE_CALL,
    DEAD,
    NamespacedMessage,
    ReceivedMessage,
)
from tianzhou.net.rpc import Reply, Request
from tianzhou.record.message import MessageView
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_client import (
    ConsumeMessageDirectlyRequest,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusRequest,
    ResetClientOffsetRequest,
)
from tianzhou.wire.fastjson import encode, object_map
from tianzhou.wire.names import CHANGED_TOPICS
from tianzhou.wire.queues import MessageQueue, decode_queue_offsets

_MIB: Final = 1024 * 1024


class ConsumerRequests:
    """The handlers of one consumer.

    Owner: the event loop.
    """

    def __init__(
        self,
        member: GroupMember,
        puller: Puller,
        acknowledger: Acknowledger,
        listener: Listener | None,
    ) -> None:
        self._shared = shared = member.context.shared
        self._member = member
        self._puller = puller
        self._acknowledger = acknowledger
        self._listener = listener
        self._started_ms = shared.now_ms()
        self._stops: list[Callable[[], None]] = []

    def start(self) -> None:
        handlers = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running,
        }
        for code, handler in handlers.items():
            self._stops.append(self._shared.on_request(code, handler, group=self._member.name))
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        stop = self._shared.on_request(code, self._consume, group=self._member.name)
        self._stops.append(stop)

    def stop(self) -> None:
        for stop in self._stops:
            stop()

    def _changed(self, request: Request) -> Reply:
        """Rebalance. If topics changed, their routes are refreshed first, and the member rebalances
        when it learns another route."""
        topics = request.header.ext.get(CHANGED_TOPICS)
        if topics is None:
            self._member.balance_soon()
        else:
            names = topics.split(",") if topics else self._member.subscriptions
            self._shared.routes.refresh_soon(names)
        return Reply()

    def _reset(self, request: Request) -> Reply:
        """Move to the offsets that the broker computed for a reset."""
        asked = ResetClientOffsetRequest.from_ext(request.header.ext)
        offsets = decode_queue_offsets(request.body)
        mine = {queue: at for queue, at in offsets.items() if queue.topic == asked.topic}
        # Respond at once: the move takes as long as the messages in flight.
        self._member.context.tasks.run(self._member.assignments.move(mine))
        return Reply()

    def _status(self, request: Request) -> Reply:
        topic = GetConsumerStatusRequest.from_ext(request.header.ext).topic
        held = {
            assigned.queue: assigned.window.committable
            for assigned in self._member.assignments.queues.values()
            if assigned.queue.topic == topic
        }
        return Reply(body=encode({"messageQueueTable": object_map(held.items())}))

    def _running(self, request: Request) -> Reply:
        asked = GetConsumerRunningInfoRequest.from_ext(request.header.ext)
        assignments = self._member.assignments.queues
        info: dict[str, object] = {
            "mqPopTable": {},
            "mqTable": object_map(
                (assigned.queue, _queue_info(assigned)) for assigned in assignments.values()
            ),
            "properties": self._properties(),
            "statusTable": {topic: self._topic_info(topic) for topic in self._member.subscriptions},
            "subscriptionSet": [one.to_data() for one in self._member.subscriptions.values()],
            "userConsumerInfo": {},
        }
        if asked.jstack_enable:
            info["jstack"] = _stacks()
        return Reply(body=encode(info))

    def _properties(self) -> dict[str, str]:
        options = self._member.context.options
        return {
            "PROP_CLIENT_VERSION": "TIANZHOU",
            "PROP_CONSUME_TYPE": self._member.consume_type.value,
            "PROP_CONSUMEORDERLY": str(options.orderly).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_NAMESERVER_ADDR": ";".join(self._shared.nameservers.entries),
            "PROP_THREADPOOL_CORE_SIZE": str(options.concurrency),
            "concurrency": str(options.concurrency),
            "messageModel": self._member.describe().message_model.value,
            "paused": str(self._puller.is_paused).lower(),
            "finished": str(self._acknowledger.rates.finished_count),
            "failed": str(self._acknowledger.rates.failed_count),
        }

    def _topic_info(self, topic: str) -> dict[str, float]:
        rates = self._acknowledger.rates.of(topic, time.monotonic())
        return {
            "consumeFailedMsgs": rates.failures,
            "consumeFailedTPS": rates.failed,
            "consumeOKTPS": rates.consumed,
            "consumeRT": rates.consume_ms,
            "pullRT": rates.pull_ms,
            "pullTPS": rates.pulled,
        }

    async def _consume(self, request: Request) -> Reply:
        """Return the result of the listener; nothing is committed or returned to the broker."""
        asked = ConsumeMessageDirectlyRequest.from_ext(request.header.ext)
        if self._listener is None:
            return Reply(
                ResponseCode.SYSTEM_ERROR,
                remark=f"consumer {self._shared.client_id} has no listener; a loop consumes",
            )
        record = MessageView(request.body)
        names = self._member.context.names
        queue = MessageQueue(
            topic=names.plain(record.topic),
            broker_name=asked.broker_name or "",
            queue_id=record.queue_id,
        )
        kind = NamespacedMessage if names else ReceivedMessage
        message = kind(request.body, 0, queue, AFTER_THE_CALL)
        begun = time.monotonic()
        failures = await self._call(self._listener, message)
        result = "CR_SUCCESS" if not failures else "CR_LATER"
        if failures and failures[0][1] == DEAD:
            result = "CR_ROLLBACK"
        return Reply(
            body=encode(
                {
                    "autoCommit": True,
                    "consumeResult": result,
                    "order": self._member.context.options.orderly,
                    "spentTimeMills": round((time.monotonic() - begun) * 1000),
                }
            )
        )

    async def _call(
        self, listener: Listener, message: ReceivedMessage
    ) -> list[tuple[ReceivedMessage, int]]:
        if listener.is_async:
            return list(await listener.call([message]))
        return list(await asyncio.to_thread(listener.call_here, [message]))


def _queue_info(assigned: AssignedQueue) -> dict[str, int | bool]:
    window = assigned.window
    return {
        "cachedMsgCount": window.count,
        "cachedMsgMaxOffset": window.last or 0,
        "cachedMsgMinOffset": window.committable if window.count else 0,
        "cachedMsgSizeInMiB": window.bytes // _MIB,
        "commitOffset": window.committable,
        "droped": assigned.is_revoked,
        "lastConsumeTimestamp": _wall_ms(assigned.finished_at),
        "lastLockTimestamp": 0,
        "lastPullTimestamp": _wall_ms(assigned.pulled_at),
        "locked": assigned.locked_until > 0,
        "transactionMsgCnt": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }


def _wall_ms(monotonic_s: float) -> int:
    """Convert monotonic seconds to wall-clock milliseconds; 0 means never."""
    return round((time.time() - time.monotonic() + monotonic_s) * 1000) if monotonic_s else 0


def _stacks() -> str:
    """Return the stacks of all threads and tasks."""
    text = [
        f"thread {number}\n{''.join(traceback.format_stack(frame))}"
        for number, frame in sys._current_frames().items()  # pyright: ignore[reportPrivateUsage]
    ]
    text += [
        f"task {task.get_name()}\n{''.join(traceback.format_list(_awaits(task)))}"
        for task in asyncio.all_tasks()
    ]
    return "\n".join(text)


def _awaits(task: "asyncio.Task[Any]") -> list[traceback.FrameSummary]:
    """Return the chain of awaits, innermost last: a task itself shows only the outermost."""
    rows: list[traceback.FrameSummary] = []
    waiting: object = task.get_coro()
    while isinstance(waiting, CoroutineType) and waiting.cr_frame is not None:
        code, line = waiting.cr_code, waiting.cr_frame.f_lineno
        rows.append(traceback.FrameSummary(code.co_filename, line, code.co_name))
        waiting = waiting.cr_await
    return rows
