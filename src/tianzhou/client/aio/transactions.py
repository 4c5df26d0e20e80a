"""Transactions: a message that consumers see only after the sender's own work is committed.

    async with producer.transaction(Message("paid", b"...")) as transaction:
        await database.commit()

The message is stored, invisibly, before the block is entered. A normal exit commits it, an
exception rolls it back. If the broker gets neither, because this process or the connection died, it
asks a producer of the group repeatedly, whose check callback returns the outcome.
"""

import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Self

from tianzhou.base.errors import Retry, TianzhouError, UsageError
from tianzhou.client.core.send_request import SendResult
from tianzhou.client.core.transaction import TransactionState, end_of
from tianzhou.client.errors import TransactionUndecided
from tianzhou.client.session.shared_client import SharedClient
from tianzhou.net.rpc import Reply, Request
from tianzhou.record.message import Message, MessageView
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_send import (
    CheckTransactionStateRequest,
    EndTransactionRequest,
)

log: Final = logging.getLogger("tianzhou.client")

END_TRIES: Final = 3


CheckTransaction = Callable[[MessageView], TransactionState | Awaitable[TransactionState]]
"""Returns the outcome of the transaction of a message."""

SendHalf = Callable[[Message], Awaitable[SendResult]]
OnEnded = Callable[[Message, SendResult, TransactionState], None]


class Transaction:
    """One message and the work that belongs to it, created by `Producer.transaction`.

    The end of the block commits the message, an exception in the block rolls it back. Raises
    TransactionUndecided if the broker did not confirm the outcome and there is no check callback.

        async with producer.transaction(Message("orders", b"paid")) as transaction:
            if not await reserve():
                await transaction.rollback()
    """

    def __init__(
        self,
        message: Message,
        group: str,
        shared: SharedClient,
        *,
        send_half: SendHalf,
        on_ended: OnEnded,
        has_check: bool,
    ) -> None:
        self.message = message
        self._group = group
        self._shared = shared
        self._send_half = send_half
        self._on_ended = on_ended
        self._has_check = has_check
        self._half: SendResult | None = None
        self.state = TransactionState.UNKNOWN

    @property
    def half(self) -> SendResult:
        """The result of storing the invisible message. Raises UsageError before the block."""
        if self._half is None:
            raise UsageError("the transaction has not begun; use it with `async with`")
        return self._half

    async def __aenter__(self) -> Self:
        if self._half is not None:
            raise UsageError("a transaction is used once")
        self._half = await self._send_half(self.message)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.state is not TransactionState.UNKNOWN or self._is_left:
            return
        if error is None:
            await self._end(TransactionState.COMMIT)
            return
        # The exception that ended the block matters more than an unconfirmed rollback: consumers
        # do not see the message either way, and the broker drops it in the end.
        with contextlib.suppress(TransactionUndecided):
            await self._end(TransactionState.ROLLBACK)

    _is_left = False

    def leave_undecided(self) -> None:
        """Leave the outcome to the check callback. Raises UsageError if there is none."""
        if not self._has_check:
            raise UsageError(
                "the producer has no check callback to decide later; pass check= to Producer"
            )
        self._is_left = True

    async def commit(self) -> None:
        """Commit before the end of the block.

        Raises UsageError if the transaction was decided before, and TransactionUndecided.
        """
        await self._end(TransactionState.COMMIT)

    async def rollback(self) -> None:
        """Roll back before the end of the block.

        Raises UsageError if the transaction was decided before, and TransactionUndecided.
        """
        await self._end(TransactionState.ROLLBACK)

    async def _end(self, state: TransactionState) -> None:
        if self.state is not TransactionState.UNKNOWN:
            raise UsageError(f"the transaction was decided before: {self.state.name}")
        self.state = state
        ext = end_of(self.half, self._group, state).to_ext()
        try:
            await self._report(ext)
        except TianzhouError as error:
            broker = self.half.queue.broker_name
            log.warning(
                "%s of transaction %s (topic %s) was not confirmed by broker %s: %s; %s",
                state.name,
                self.half.message_id,
                self.half.queue.topic,
                broker,
                error,
                "the broker will ask the check callback"
                if self._has_check
                else "the producer has no check callback, so the broker will not learn the outcome",
            )
            if self._has_check:
                # The check callback exists for this. The work is done; an error would deny it.
                return
            raise TransactionUndecided(
                f"{state.name} of message {self.half.message_id} was not confirmed by broker"
                f" {broker}, and the producer has no check callback: {error}"
            ) from error
        finally:
            self._on_ended(self.message, self.half, state)

    async def _report(self, ext: dict[str, str]) -> None:
        """Report the outcome. Other clients send it one-way; with a response, a lost report is
        noticed and repeated, which changes nothing."""
        for count in range(1, END_TRIES + 1):
            try:
                queue = self.half.queue
                address = await self._shared.broker_address(queue.broker_name)
                await self._shared.call_ok(address, RequestCode.END_TRANSACTION, ext)
            except TianzhouError as error:
                if error.retry is Retry.NEVER or count == END_TRIES:
                    raise
            else:
                return


OnChecked = Callable[[MessageView, TransactionState], None]


class Checks:
    """Handle requests of brokers for the outcome of a transaction.

    Owner: the event loop.
    """

    def __init__(
        self, shared: SharedClient, group: str, check: CheckTransaction, on_checked: OnChecked
    ) -> None:
        self._group = group
        self._check = check
        self._on_checked = on_checked
        self.stop: Final = shared.on_request(
            RequestCode.CHECK_TRANSACTION_STATE, self._handle_check, group=group
        )

    def _checked(self, message: MessageView, state: object) -> TransactionState:
        if not isinstance(state, TransactionState):
            raise UsageError(
                f"the check of producer group {self._group} returned {repr(state)[:64]} for "
                f"transaction {message.message_id}; it must return a TransactionState"
            )
        return state

    async def _handle_check(self, request: Request) -> Reply | None:
        asked = CheckTransactionStateRequest.from_ext(request.header.ext)
        message = MessageView(request.body)
        found = self._check(message)
        # The caller logs an exception of the check; the broker asks again.
        state = self._checked(message, await found if inspect.isawaitable(found) else found)
        decided = EndTransactionRequest(
            topic=message.topic,
            producer_group=self._group,
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=state.value,
            from_transaction_check=True,
            msg_id=asked.msg_id or message.message_id,
            transaction_id=asked.transaction_id,
        )
        request.peer.tell(RequestCode.END_TRANSACTION, decided.to_ext())
        self._on_checked(message, state)
        return None
