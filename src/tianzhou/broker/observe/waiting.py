"""Waiting messages for administrators: timed messages, and undecided or parked transactions.

RocketMQ has no request for any of these lists, so these requests are Tianzhou's own. Actions on a
listed message use RocketMQ's requests: RECALL_MESSAGE, END_TRANSACTION, RESUME_CHECK_HALF_MESSAGE.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import QueueKey
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.scheduled.timer import TIMER_QUEUE, Timers
from tianzhou.broker.transactions.checks import TransactionChecks
from tianzhou.broker.transactions.half_queue import HALF_QUEUE, HalfQueue, root_of
from tianzhou.broker.transactions.parked import PARKED_QUEUE
from tianzhou.broker.writing import recall_handle as recall
from tianzhou.broker.writing.durable_reply import reply_when_durable
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.broker.writing.stored import Stored, at_offset, records
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.record import names as keys
from tianzhou.record.ids import decode_offset_id
from tianzhou.store.store import MessageStore
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import ListWaitingRequest
from tianzhou.wire._generated_headers_send import ResumeCheckHalfMessageRequest
from tianzhou.wire.admin_bodies import HalfMessage, HalfMessages, TimedMessage, TimedMessages

log: Final = logging.getLogger("tianzhou.broker")

COUNT_MAX: Final = 1_000
"""Messages in one answer; each is read from the log."""
LOOKS_MAX: Final = 4_096
"""Messages that are read for one answer, when few of them are of the topic that was asked for."""


@dataclass(slots=True)
class AdminWaiting:
    config: BrokerConfig
    store: MessageStore
    writer: Writer
    timers: Timers
    halves: HalfQueue
    checks: TransactionChecks

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.LIST_TIMERS: self.list_timers,
            RequestCode.LIST_HALF_MESSAGES: self.list_halves,
            RequestCode.LIST_PARKED_MESSAGES: self.list_parked,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume,
        }

    def list_timers(self, request: Request) -> Reply:
        asked = ListWaitingRequest.from_ext(request.header.ext)
        self.timers.scan()  # what was sent a moment ago is listed, too
        rows = map(self._timed, self._read(TIMER_QUEUE, self.timers.soonest()))
        wanted = (row for row in rows if row and asked.topic in (None, row.topic))
        found = tuple(islice(wanted, _count(asked)))
        return Reply(body=fastjson.encode(TimedMessages(messages=found, total=len(self.timers))))

    def list_halves(self, request: Request) -> Reply:
        asked = ListWaitingRequest.from_ext(request.header.ext)
        self.checks.scan()
        rows = map(self._half, self._read(HALF_QUEUE, self.halves.pending))
        wanted = (row for row in rows if asked.topic in (None, row.topic))
        found = tuple(islice(wanted, _count(asked)))
        total = len(self.halves.pending)
        return Reply(body=fastjson.encode(HalfMessages(messages=found, total=total)))

    def list_parked(self, request: Request) -> Reply:
        asked, parked = ListWaitingRequest.from_ext(request.header.ext), self.checks.parked
        parked.read_all()
        rows = map(_parked, self._read(PARKED_QUEUE, parked))
        wanted = (row for row in rows if asked.topic in (None, row.topic))
        found = tuple(islice(wanted, _count(asked)))
        return Reply(body=fastjson.encode(HalfMessages(messages=found, total=len(parked))))

    def _read(self, queue: QueueKey, offsets: Iterable[int]) -> Iterator[Stored]:
        for offset in islice(offsets, LOOKS_MAX):
            found, stored = at_offset(self.store, queue, offset)
            with found:
                if stored is not None:
                    yield stored

    def _timed(self, stored: Stored) -> TimedMessage | None:
        if self.timers.is_cancelled(stored):
            return None
        return TimedMessage(
            deliver_timestamp=stored.number(keys.TIMER_DELIVER_MS, 0),
            msg_id=stored.view.message_id,
            offset_msg_id=stored.view.offset_id,
            recall_handle=recall.handle_of(stored.properties, self.config.name),
            store_timestamp=stored.view.store_timestamp,
            topic=_real_topic(stored),
        )

    def _half(self, stored: Stored) -> HalfMessage:
        offset, pending = int(stored.view.queue_offset), self.halves.pending
        return HalfMessage(
            checks=pending.checks(offset),
            group=pending.group(offset),
            msg_id=stored.view.message_id,
            offset_msg_id=stored.view.offset_id,
            queue_offset=offset,
            store_timestamp=stored.view.store_timestamp,
            topic=_real_topic(stored),
        )

    # Asking again

    def resume(self, request: Request) -> Reply | None:
        """Ask the producer of a half message once more, from the first check on: of one that is
        pending, or of one that was parked because nobody ever answered."""
        asked = ResumeCheckHalfMessageRequest.from_ext(request.header.ext)
        with self.store.record_at(_place(asked.msg_id)) as found:
            stored = next(records(found), None)
            if stored is None or stored.view.topic not in (
                names.HALF_TOPIC,
                names.CHECKED_OUT_TOPIC,
            ):
                raise RequestRejected(
                    ResponseCode.SYSTEM_ERROR, f"no half message is known as {asked.msg_id}"
                )
            log.info("transaction.resumed", extra={"id": asked.msg_id, "peer": request.peer.remote})
            if stored.view.topic == names.HALF_TOPIC:
                if not self.checks.recheck(root_of(stored)):
                    raise RequestRejected(
                        ResponseCode.ILLEGAL_OPERATION, f"{asked.msg_id} is decided already"
                    )
                return Reply()
            appended = self.checks.parked.resume(stored)
        reply_when_durable(self.writer, request, appended.end, Reply())
        return None


def _parked(stored: Stored) -> HalfMessage:
    return HalfMessage(
        checks=stored.number(keys.TRANSACTION_CHECK_TIMES, 0),
        group=(stored.get(keys.PRODUCER_GROUP) or b"").decode("utf-8", "replace"),
        msg_id=stored.view.message_id,
        offset_msg_id=stored.view.offset_id,
        queue_offset=int(stored.view.queue_offset),
        store_timestamp=stored.view.store_timestamp,
        topic=_real_topic(stored),
    )


def _count(asked: ListWaitingRequest) -> int:
    if asked.count < 1:
        raise RequestRejected(
            ResponseCode.INVALID_PARAMETER, f"count {asked.count} asks for nothing"
        )
    return min(asked.count, COUNT_MAX)


def _real_topic(stored: Stored) -> str:
    return (stored.get(keys.REAL_TOPIC) or b"").decode("utf-8", "replace")


def _place(message_id: str | None) -> int:
    try:
        return decode_offset_id(message_id or "").physical_offset
    except UsageError as error:
        raise RequestRejected(ResponseCode.INVALID_PARAMETER, str(error)) from error
