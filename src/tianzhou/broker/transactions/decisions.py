"""Decisions about transactional messages. The first one in the log wins; later ones change nothing.

A commit is one append of two records: the message where consumers see it, then the OP message that
marks its half as done with. A crash keeps a prefix of an append, so it may leave the first without
the second, and then that first is the last record of the log. A start completes such a
commit before anything else is written: no producer is asked about a committed message. Parking a
half is a decision too, and works the same way.
"""

import logging
from dataclasses import dataclass
from typing import Final, Protocol

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.broker import names
from tianzhou.broker.transactions.half_queue import HALF_QUEUE, HalfQueue, op_entry, root_of
from tianzhou.broker.writing.durable_reply import reply_when_durable
from tianzhou.broker.writing.incoming import Incoming
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.broker.writing.stored import Stored, records, require_ready
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.record import flags
from tianzhou.record import names as keys
from tianzhou.record.chunk import Entry
from tianzhou.record.flags import TRANSACTION_NONE as UNDECIDED
from tianzhou.store.store import MessageStore
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_send import EndTransactionRequest

log: Final = logging.getLogger("tianzhou.broker")

COMMIT: Final = flags.TRANSACTION_COMMIT
ROLLBACK: Final = flags.TRANSACTION_ROLLBACK


class Redirects(Protocol):
    """The part of admission that decisions use."""

    def redirect(self, message: Incoming) -> Incoming:
        """The message redirected to an internal topic if it must be delivered later, else
        unchanged."""
        ...


class Transactions:
    """Owner: the broker loop."""

    def __init__(
        self,
        store: MessageStore,
        writer: Writer,
        *,
        admission: Redirects,
        halves: HalfQueue,
        clock: Clock,
    ) -> None:
        self._store = store
        self._writer = writer
        self._admission = admission
        self._halves = halves
        self._clock = clock

    def decide(self, asked: EndTransactionRequest) -> PhysicalOffset | None:
        """Commit or roll back; where the decision ends in the log, None if there was one before.

        Raises RequestRejected, and then nothing is decided.
        """
        with require_ready(self._store.record_at(asked.commit_log_offset)) as found:
            half = next(records(found), None)
            if half is None or half.view.topic != names.HALF_TOPIC:
                raise RequestRejected(
                    ResponseCode.SYSTEM_ERROR,
                    f"find prepared transaction message failed: there is no half message at "
                    f"{asked.commit_log_offset}",
                )
            _check(half, asked)
            root = root_of(half)
            if not self._halves.is_pending(root):
                return None
            self._check_immunity(half, asked)
            entries = [self.op(self._halves.current(root))]
            if asked.commit_or_rollback == COMMIT:
                message = self._admission.redirect(_visible(half))
                entries.insert(0, message.to_entry())
            appended = self._writer.put(entries)
        self._halves.end(root)
        return appended.end

    def op(self, offset: int) -> Entry:
        return op_entry(offset, born_ms=self._clock.now_ms(), host=self._writer.form.store_host)

    def _check_immunity(self, half: Stored, asked: EndTransactionRequest) -> None:
        """Raises RequestRejected if the immunity time that the producer requested has passed."""
        immunity_s = half.number(keys.CHECK_IMMUNITY_TIME, -1)
        if asked.from_transaction_check or immunity_s < 0:
            return
        age_ms = self._clock.now_ms() - half.view.born_timestamp
        if age_ms > immunity_s * 1000:
            raise RequestRejected(
                ResponseCode.ILLEGAL_OPERATION,
                f"the decision comes {age_ms} ms after the message; its "
                f"CHECK_IMMUNITY_TIME_IN_SECONDS is {immunity_s}; wait for the check",
            )

    def complete_last(self) -> None:
        """Mark the half of a decided message as decided if a crash prevented that. Must run before
        anything else is written."""
        last = max((queue.last_physical_offset() for queue in self._store.queues), default=0)
        with self._store.record_at(last) as found:
            decided = next(records(found), None)
            if decided is None or not _is_decided(decided):
                return
            prepared_offset = decided.view.prepared_offset
        with self._store.record_at(prepared_offset) as found:
            half = next(records(found), None)
            if half is None or half.view.topic != names.HALF_TOPIC:
                return
            root = root_of(half)
        if self._halves.is_pending(root):
            log.warning("transaction.completed", extra={"offset": root})
            self._writer.put([self.op(self._halves.current(root))])
            self._halves.end(root)


def _is_decided(stored: Stored) -> bool:
    """Whether this record is the result of a half message. A retry of a committed message is not,
    although it keeps the flag: it does not name a half, and 0 is the offset of another one."""
    if stored.view.reconsume_times:
        return False
    kind = stored.view.sys_flag & flags.TRANSACTION_MASK
    is_mark = stored.get(keys.PARKED_OFFSET) is not None
    return kind == COMMIT or (stored.view.topic == names.CHECKED_OUT_TOPIC and not is_mark)


def _check(half: Stored, asked: EndTransactionRequest) -> None:
    """Raises RequestRejected unless group, offset and id of the request are those of the half."""
    group = (half.get(keys.PRODUCER_GROUP) or b"").decode("utf-8", "replace")
    if group != asked.producer_group:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            f"the producer group wrong: the message is of {group}, not {asked.producer_group}",
        )
    if half.view.queue_offset != asked.tran_state_table_offset:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            f"the transaction state table offset wrong: the message has "
            f"{half.view.queue_offset}, not {asked.tran_state_table_offset}",
        )
    unique = half.view.unique_id
    if unique and asked.msg_id and asked.msg_id not in (unique, half.view.offset_id):
        # The half was lost with its master, and this message is stored at its offset.
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            f"another message is stored at {asked.commit_log_offset}: {unique}, not {asked.msg_id}",
        )


def _visible(half: Stored) -> Incoming:
    """The message as consumers see it, without the properties of its half."""
    message = half.destination()
    if message is None:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            f"the half message at {HALF_QUEUE.topic} {half.view.queue_offset} has no valid "
            "destination",
        )
    message = message.with_properties(
        {
            keys.TRANSACTION_PREPARED_QUEUE_OFFSET: b"",
            keys.TRANSACTION_CHECK_TIMES: b"",
            keys.PARKED_OFFSET: b"",
        }
    )
    return message._replace(
        sys_flag=message.sys_flag & ~flags.TRANSACTION_MASK | COMMIT,
        prepared_offset=half.view.physical_offset,
    )


@dataclass(slots=True)
class EndTransaction:
    transactions: Transactions
    writer: Writer

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.END_TRANSACTION: self.end}

    def end(self, request: Request) -> Reply | None:
        asked = EndTransactionRequest.from_ext(request.header.ext)
        if asked.commit_or_rollback == UNDECIDED:
            return None  # the producer does not know yet; there will be another check
        if asked.commit_or_rollback not in (COMMIT, ROLLBACK):
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"commitOrRollback {asked.commit_or_rollback} is not a valid decision; "
                f"{COMMIT} commits, {ROLLBACK} rolls back, {UNDECIDED} leaves the transaction open",
            )
        end = self.transactions.decide(asked)
        if end is None:
            return Reply(remark="this transaction was decided before; nothing changed")
        reply_when_durable(self.writer, request, end, Reply())
        return None
