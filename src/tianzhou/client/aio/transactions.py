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
from tianzhou.client.aio.sender import Sender
from tianzhou.client.core.send_request import SendResult
from tianzhou.client.core.transaction import TransactionState, end_of
from tianzhou.client.errors import TransactionUndecided
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


class Transaction:
    """One message and the work that belongs to it, created by `Producer.transaction`.

    The end of the block commits the message, an exception in the block rolls it back. Raises
    TransactionUndecided if the broker did not confirm the outcome and there is no check callback.

        async with producer.transaction(Message("orders", b"paid")) as transaction:
            if not await reserve():
                await transaction.rollback()
    """

    def __init__(self, message: Message, outcomes: "Outcomes", sender: Sender) -> None:
        self.message = message
        self._outcomes = outcomes
        self._sender = sender
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
        self._half = await self._sender.send_half(self.message)
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
        if not self._outcomes.has_check:
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
        await self._outcomes.report(self.message, self.half, state)


class Outcomes:
    """Reports the outcomes of a producer's transactions, and handles brokers' requests for them.

    Owner: the event loop.
    """

    def __init__(self, sender: Sender, check: CheckTransaction | None) -> None:
        self._shared = sender.shared
        self._group = sender.group
        self._trace = sender.trace
        self._names = sender.names
        self._check = check
        self._stop: Callable[[], None] | None = None
        if check is not None:
            code = RequestCode.CHECK_TRANSACTION_STATE
            self._stop = self._shared.on_request(code, self._handle_check, group=self._group)

    @property
    def has_check(self) -> bool:
        return self._check is not None

    def close(self) -> None:
        """Handle no more requests."""
        if self._stop is not None:
            self._stop()

    async def report(self, message: Message, half: SendResult, state: TransactionState) -> None:
        """Report the outcome of a transaction. Raises TransactionUndecided if the broker does not
        confirm it and there is no check callback."""
        ext = end_of(self._names.full_result(half), self._group, state).to_ext()
        broker = half.queue.broker_name
        try:
            await self._confirmed(broker, ext)
        except TianzhouError as error:
            log.warning(
                "%s of transaction %s (topic %s) was not confirmed by broker %s: %s; %s",
                state.name,
                half.message_id,
                half.queue.topic,
                broker,
                error,
                "the broker will ask the check callback"
                if self.has_check
                else "the producer has no check callback, so the broker will not learn the outcome",
            )
            if self.has_check:
                # The check callback exists for this. The work is done; an error would deny it.
                return
            raise TransactionUndecided(
                f"{state.name} of message {half.message_id} was not confirmed by broker"
                f" {broker}, and the producer has no check callback: {error}"
            ) from error
        finally:
            if self._trace is not None:
                self._trace.transaction_ended(message, half, state, self._shared.now_ms())

    async def _confirmed(self, broker_name: str, ext: dict[str, str]) -> None:
        """Send the report until it is confirmed. Other clients send it one-way; with a response, a
        lost report is noticed and repeated, which changes nothing."""
        for count in range(1, END_TRIES + 1):
            try:
                address = await self._shared.broker_address(broker_name)
                await self._shared.call_ok(address, RequestCode.END_TRANSACTION, ext)
            except TianzhouError as error:
                if error.retry is Retry.NEVER or count == END_TRIES:
                    raise
            else:
                return

    def _checked(self, message: MessageView, state: object) -> TransactionState:
        if not isinstance(state, TransactionState):
            raise UsageError(
                f"the check of producer group {self._group} returned {repr(state)[:64]} for "
                f"transaction {message.message_id}; it must return a TransactionState"
            )
        return state

    async def _handle_check(self, request: Request) -> Reply | None:
        asked = CheckTransactionStateRequest.from_ext(request.header.ext)
        message = self._names.view(request.body)
        assert self._check is not None
        found = self._check(message)
        # The caller logs an exception of the check; the broker asks again.
        state = self._checked(message, await found if inspect.isawaitable(found) else found)
        decided = EndTransactionRequest(
            topic=self._names.full(message.topic),
            producer_group=self._group,
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=state.value,
            from_transaction_check=True,
            msg_id=asked.msg_id or message.message_id,
            transaction_id=asked.transaction_id,
        )
        request.peer.tell(RequestCode.END_TRANSACTION, decided.to_ext())
        if self._trace is not None:
            self._trace.transaction_checked(message, state, self._shared.now_ms())
        return None
