"""Pending transactions: list them, decide them by hand, or make brokers ask their producers."""

import enum
from dataclasses import dataclass
from typing import Final

from tianzhou.client.admin.calls import AdminCalls
from tianzhou.record.ids import decode_offset_id
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_admin import ListWaitingRequest
from tianzhou.wire._generated_headers_send import (
    EndTransactionRequest,
    ResumeCheckHalfMessageRequest,
)
from tianzhou.wire.admin_bodies import HalfMessage, decode_half_messages

COUNT: Final = 100


class Decision(enum.IntEnum):
    """The outcome of a transaction, as requests carry it."""

    COMMIT = 8
    ROLLBACK = 12


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """A transaction whose outcome its broker does not know yet."""

    broker_name: str
    half: HalfMessage


@dataclass(frozen=True, slots=True)
class ParkedTransaction:
    """A transaction that its broker no longer checks."""

    broker_name: str
    half: HalfMessage


class Transactions:
    """Pending transactions: list, commit, roll back or recheck them (`admin.transactions`).

        for pending in await admin.transactions.all(topic="orders"):
            await admin.transactions.rollback(pending)

    Owner: the event loop.
    """

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    async def all(
        self, *, topic: str | None = None, count: int = COUNT
    ) -> list[PendingTransaction]:
        """Return pending transactions, oldest first: at most `count` of each broker.

        Raises NoRoute if no broker is registered.
        """
        masters = await self._calls.masters()
        fields = ListWaitingRequest(count=count, topic=topic)
        bodies = await self._calls.ask_each(masters, RequestCode.LIST_HALF_MESSAGES, fields)
        found = [
            PendingTransaction(name, half)
            for name, body in bodies.items()
            for half in decode_half_messages(body).messages
        ]
        return sorted(found, key=lambda pending: pending.half.store_timestamp)

    async def parked(
        self, *, topic: str | None = None, count: int = COUNT
    ) -> list[ParkedTransaction]:
        """Return parked transactions, oldest first: at most `count` of each broker.

        A broker parks a transaction that no producer decided after `transaction_checks_max` checks.
        """
        masters = await self._calls.masters()
        fields = ListWaitingRequest(count=count, topic=topic)
        bodies = await self._calls.ask_each(masters, RequestCode.LIST_PARKED_MESSAGES, fields)
        found = [
            ParkedTransaction(name, half)
            for name, body in bodies.items()
            for half in decode_half_messages(body).messages
        ]
        return sorted(found, key=lambda parked: parked.half.store_timestamp)

    async def commit(self, pending: PendingTransaction) -> None:
        """Commit a pending transaction: consumers get its message.

        Raises RemoteError if the broker rejects the request.
        """
        await self._decide(pending, Decision.COMMIT)

    async def rollback(self, pending: PendingTransaction) -> None:
        """Roll back a pending transaction: consumers never see its message.

        Raises RemoteError if the broker rejects the request.
        """
        await self._decide(pending, Decision.ROLLBACK)

    async def recheck(self, pending: PendingTransaction) -> None:
        """Make the broker check a pending transaction now, and restart its count of checks.

        Raises RemoteError if the broker rejects the request.
        """
        await self._resume(pending.broker_name, pending.half.offset_msg_id)

    async def resume(self, parked: ParkedTransaction) -> None:
        """Resume a parked transaction: it is pending again, and the broker checks its producers.

        Raises RemoteError if it was already resumed.
        """
        await self._resume(parked.broker_name, parked.half.offset_msg_id)

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
