"""The outcome of a transaction, and the request that reports it."""

import enum

from tianzhou.client.core.send_request import SendResult
from tianzhou.record import flags
from tianzhou.record.ids import decode_offset_id
from tianzhou.wire._generated_headers_send import EndTransactionRequest


class TransactionState(enum.Enum):
    """Outcome of a transaction, as a check callback returns it.

        def check(message):
            return TransactionState.COMMIT if is_paid(message) else TransactionState.ROLLBACK

    UNKNOWN makes the broker ask again later.
    """

    COMMIT = flags.TRANSACTION_COMMIT
    ROLLBACK = flags.TRANSACTION_ROLLBACK
    UNKNOWN = flags.TRANSACTION_NONE


def end_of(half: SendResult, group: str, state: TransactionState) -> EndTransactionRequest:
    """Return the request that reports the outcome of a transaction."""
    place = decode_offset_id(half.offset_id)
    return EndTransactionRequest(
        topic=half.queue.topic,
        producer_group=group,
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=place.physical_offset,
        commit_or_rollback=state.value,
        msg_id=half.message_id,
        transaction_id=half.transaction_id or half.message_id,
    )
