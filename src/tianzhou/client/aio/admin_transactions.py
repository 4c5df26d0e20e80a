"""Transactions that nobody decided: listed, decided by hand, or their producers asked again."""

import enum
from dataclasses import dataclass
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.client.aio.admin_calls import AdminCalls
from tianzhou.record.ids import decode_offset_id
from tianzhou.record.message import MessageView
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_admin import ListWaitingRequest
from tianzhou.wire._generated_headers_send import (
    EndTransactionRequest,
    ResumeCheckHalfMessageRequest,
)
from tianzhou.wire.admin_bodies import HalfMessage, decode_half_messages
from tianzhou.wire.queues import MessageQueue

COUNT: Final = 100
PARKED_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Where brokers put what no producer decided, however often it was asked."""


class Decision(enum.IntEnum):
    COMMIT = 8
    ROLLBACK = 12


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    broker_name: str
    half: HalfMessage


class Transactions:
    """Owner: the event loop."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    async def all(
        self, *, topic: str | None = None, count: int = COUNT
    ) -> list[PendingTransaction]:
        """Pending ones: at most `count` of each broker, the oldest first."""
        masters = await self._calls.masters()
        fields = ListWaitingRequest(count=count, topic=topic)
        bodies = await self._calls.ask_each(masters, RequestCode.LIST_HALF_MESSAGES, fields)
        found = [
            PendingTransaction(name, half)
            for name, body in bodies.items()
            for half in decode_half_messages(body).messages
        ]
        return sorted(found, key=lambda pending: pending.half.store_timestamp)

    async def parked(self, *, count: int = COUNT) -> list[MessageView]:
        """What brokers gave up asking about: the newest of each broker, the oldest first."""
        found: list[MessageView] = []
        for name, address in (await self._calls.masters()).items():
            queue = MessageQueue(topic=PARKED_TOPIC, broker_name=name, queue_id=0)
            answer, _ = await self._calls.pull(address, queue, 0, 1)
            end = answer.max_offset
            start = max(answer.min_offset, end - count)
            found += await self._calls.read(address, queue, start=start, end=end, count=count)
        return sorted(found, key=lambda message: message.store_timestamp)

    async def commit(self, pending: PendingTransaction) -> None:
        """Let consumers have the message."""
        await self._decide(pending, Decision.COMMIT)

    async def rollback(self, pending: PendingTransaction) -> None:
        """Let nobody have it."""
        await self._decide(pending, Decision.ROLLBACK)

    async def recheck(self, pending: PendingTransaction) -> None:
        """Ask the producer again now, and count from the first time."""
        await self._resume(pending.broker_name, pending.half.offset_msg_id)

    async def resume(self, parked: MessageView) -> None:
        """Take a parked one up again: it is pending from now on, and its producer is asked."""
        if parked.topic != PARKED_TOPIC:
            raise UsageError(f"{parked!r} is not parked; give one of {PARKED_TOPIC}")
        host = parked.store_host
        for name, address in (await self._calls.masters()).items():
            if address == f"{host.address}:{host.port}":
                await self._resume(name, parked.offset_id)
                return
        raise UsageError(f"no broker is known at {host.address}:{host.port}, where {parked!r} is")

    async def _decide(self, pending: PendingTransaction, decision: Decision) -> None:
        half = pending.half
        fields = EndTransactionRequest(
            producer_group=half.group,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=decode_offset_id(half.offset_msg_id).physical_offset,
            commit_or_rollback=decision,
            from_transaction_check=True,
            msg_id=half.msg_id,
        )
        address = await self._address(pending.broker_name)
        await self._calls.ask(address, RequestCode.END_TRANSACTION, fields)

    async def _resume(self, broker_name: str, message_id: str) -> None:
        fields = ResumeCheckHalfMessageRequest(msg_id=message_id)
        address = await self._address(broker_name)
        await self._calls.ask(address, RequestCode.RESUME_CHECK_HALF_MESSAGE, fields)

    async def _address(self, broker_name: str) -> str:
        return (await self._calls.masters([broker_name]))[broker_name]
