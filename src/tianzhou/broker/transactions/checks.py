"""Checks of undecided transactions: requests to producers for a decision.

An undecided half message is checked when it is old enough, then at intervals. The check is a one-
way request to a producer, which decides with its usual request. The number of checks is kept in
memory: after a restart a producer may get a few more, which is harmless, and no check costs a
write. Without a connected producer of its group a half waits, and no check is counted. After the
last check it is parked for an operator.
"""

import logging
from array import array
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.base.errors import UsageError
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.groups import Client, Sessions
from tianzhou.broker.transactions.decisions import Transactions
from tianzhou.broker.transactions.half_queue import HALF_QUEUE, Half, HalfQueue, root_of
from tianzhou.broker.transactions.parked import PARKED_QUEUE, ParkedTransactions
from tianzhou.broker.writing.due_queue import Schedule
from tianzhou.broker.writing.durable_reply import reply_when_durable
from tianzhou.broker.writing.flushed_checkpoint import FlushedCheckpoint
from tianzhou.broker.writing.incoming import Incoming
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.broker.writing.stored import (
    Stored,
    at_offset,
    listed_count,
    read_waiting,
    records,
    require_ready,
)
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.record import names as keys
from tianzhou.record.chunk import build, stamp
from tianzhou.record.ids import decode_offset_id
from tianzhou.store.protocols import QueueReader
from tianzhou.store.read import ReadStatus
from tianzhou.store.store import MessageStore
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import ListWaitingRequest
from tianzhou.wire._generated_headers_send import (
    CheckTransactionStateRequest,
    ResumeCheckHalfMessageRequest,
)
from tianzhou.wire.admin_bodies import HalfMessage, HalfMessages

log: Final = logging.getLogger("tianzhou.broker")

CHECKED_MAX: Final = 1024
"""Half messages that one slice of a tick considers, 5 us each: when thousands are due together,
after a start for example, clients are served in between. Most of them are decided already."""
WORK_MAX: Final = 64
"""Checks, parkings and copies in one tick."""
WORK_BYTES_MAX: Final = 4 * 1024 * 1024
"""A check carries the message. Producers must not be flooded with them."""
SPREAD_MAX: Final = 20_000
"""Decided halves that a start may have to read because of an old one before them."""
COPY_AGE_MS: Final = 86_400_000
"""A half is copied long before retention could delete it."""


@dataclass(slots=True)
class _Tick:
    """The work of one tick."""

    count: int = 0
    size: int = 0

    @property
    def has_room(self) -> bool:
        return self.count < WORK_MAX and self.size < WORK_BYTES_MAX

    def add(self, size: int = 0) -> None:
        self.count += 1
        self.size += size


class _Plan:
    """When to check which half."""

    def __init__(self) -> None:
        self.due = Schedule()
        """Halves by the time of their next check; those decided by then are skipped."""
        self.waiting: dict[str, array[int]] = {}
        """Halves by producer group, of groups without a connected producer."""
        self.turns: dict[str, int] = {}
        """How many checks each group was sent."""


class TransactionChecks:
    """Owner: the broker loop."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        writer: Writer,
        *,
        sessions: Sessions,
        halves: HalfQueue,
        transactions: Transactions,
        parked: ParkedTransactions,
        clock: Clock,
    ) -> None:
        self._config = config
        self._store = store
        self._writer = writer
        self._sessions = sessions
        self._halves = halves
        self._transactions = transactions
        self.parked = parked
        self._clock = clock
        self._tick = _Tick()
        self._plan = _Plan()
        self._oldest = (-1, 0)
        """Offset and store time of the half that was the oldest at the last tick."""
        self._begin_saving()

    def adopt(self, config: BrokerConfig) -> None:
        """Apply settings that changed while the broker runs, to halves scheduled from now on."""
        self._config = config

    def begin(self) -> None:
        """Read which halves are undecided, complete a decision that a crash interrupted, and plan
        when to ask about the others."""
        self._plan = _Plan()
        self._oldest = (-1, 0)
        self._halves.begin(self._schedule)
        self._transactions.complete_last()
        self.parked.begin()
        self._begin_saving()

    def _begin_saving(self) -> None:
        self._saving = FlushedCheckpoint(
            self._store,
            self._halves.progress,
            self._halves.save_progress,
            every_ms=self._config.offsets_save_ms,
            now_s=self._clock.monotonic_s(),
        )

    def tick(self) -> bool:
        now_ms = self._clock.now_ms()
        self._tick = _Tick()
        self.scan()
        self._wake(now_ms)
        count = 0
        while self._is_due(now_ms) and count < CHECKED_MAX and self._tick.has_room:
            count += 1
            offset = self._plan.due.pop()[1]
            if offset in self._halves.pending:
                self._check(offset, now_ms)
        self._copy_old(now_ms)
        self._saving.tick(self._clock.monotonic_s())
        return self.parked.tick() or self._halves.is_behind or self._is_due(now_ms)

    def finish(self) -> None:
        self._saving.finish()

    # Planning

    def scan(self) -> None:
        """Read the next slice of the half queue, and plan its checks."""
        self._halves.scan(self._schedule)

    def _is_due(self, now_ms: int) -> bool:
        first = self._plan.due.first()
        return first is not None and first[0] <= now_ms

    def _schedule(self, half: Half) -> None:
        wait_ms = self._config.transaction_timeout_ms
        if half.immunity_ms is not None:
            wait_ms = half.immunity_ms
        if half.is_copy:
            wait_ms = self._config.transaction_check_ms  # a copy may have been checked before
        self._plan.due.push(half.stored_ms + wait_ms, half.offset)

    def _check_later(self, offset: int, now_ms: int) -> None:
        self._plan.due.push(now_ms + self._config.transaction_check_ms, offset)

    def _wake(self, now_ms: int) -> None:
        """Check halves whose producers reconnected: as many as one tick allows."""
        plan = self._plan
        for group in [group for group in plan.waiting if self._connected(group)]:
            waiting = plan.waiting[group]
            for offset in waiting[:CHECKED_MAX]:
                plan.due.push(now_ms, offset)
            del waiting[:CHECKED_MAX]
            if not waiting:
                del plan.waiting[group]

    def _connected(self, group: str) -> list[Client]:
        clients = self._sessions.producers.get(group, {})
        return [client for client in clients.values() if client.peer.is_open]

    def recheck(self, root: int) -> bool:
        """Check a half in the next tick, and count from 0; returns False if it is decided."""
        offset = self._halves.current(root)
        if offset not in self._halves.pending:
            return False
        self._halves.pending.set_checks(offset, 0)
        # Remove the planned check, or the half would be checked twice as often from now on.
        self._plan.due.discard(offset)
        for waiting in self._plan.waiting.values():
            if offset in waiting:
                waiting.remove(offset)
        self._plan.due.push(self._clock.now_ms(), offset)
        return True

    # Checking

    def _check(self, offset: int, now_ms: int) -> None:
        pending = self._halves.pending
        checks, group = pending.checks(offset), pending.group(offset)
        if checks >= self._config.transaction_checks_max:
            if not self._park(offset):
                self._check_later(offset, now_ms)
            return
        connected = self._connected(group)
        if not connected:
            self._plan.waiting.setdefault(group, array("q")).append(offset)
            return
        # Producers take turns, so that one that hangs does not get all checks.
        turn = self._plan.turns[group] = self._plan.turns.get(group, -1) + 1
        if self._send_check(offset, connected[turn % len(connected)]):
            pending.set_checks(offset, checks + 1)
        if offset in pending:
            self._check_later(offset, now_ms)

    def _send_check(self, offset: int, client: Client) -> bool:
        found, stored = at_offset(self._store, HALF_QUEUE, offset)
        with found:
            if found.status is ReadStatus.NOT_READY:
                return False
            if stored is None:
                self._give_up(offset)
                return False
            message, view = stored.destination() or stored.to_incoming(), stored.view
            fields = CheckTransactionStateRequest(
                topic=message.topic,
                tran_state_table_offset=int(view.queue_offset),
                commit_log_offset=int(view.physical_offset),
                msg_id=view.message_id,
                transaction_id=view.message_id,
                offset_msg_id=view.offset_id,
                broker_name=self._config.name,
            )
            body = _record(message, stored, self._writer.form.store_host)
        client.peer.tell(RequestCode.CHECK_TRANSACTION_STATE, fields.to_ext(), body)
        self._tick.add(len(body))
        return True

    def _give_up(self, offset: int) -> None:
        """Drop a half that has expired or is damaged."""
        group = self._halves.pending.group(offset)
        log.error("transaction.half_unreadable", extra={"offset": offset, "group": group})
        self._tick.add()
        self._halves.lost(offset)

    def _park(self, offset: int) -> bool:
        """Park a half for an operator; returns False if that must be retried later."""
        found, stored = at_offset(self._store, HALF_QUEUE, offset)
        with found:
            if found.status is ReadStatus.NOT_READY:
                return False
            if stored is None:
                self._give_up(offset)
                return True
            root = root_of(stored)
            checks = self._halves.pending.checks(offset)
            parked = stored.to_incoming().with_properties(
                {keys.TRANSACTION_CHECK_TIMES: b"%d" % checks, keys.PARKED_OFFSET: b""}
            )
            parked = parked._replace(
                topic=names.CHECKED_OUT_TOPIC, prepared_offset=stored.view.physical_offset
            )
        self._tick.add()
        try:
            self._writer.put([parked.to_entry(), self._transactions.op(offset)])
        except RequestRejected:
            return False
        group = self._halves.pending.group(offset)
        log.warning("transaction.parked", extra={"offset": offset, "group": group})
        self._halves.end(root)
        return True

    # Progress

    def _copy_old(self, now_ms: int) -> None:
        """Copy the oldest to the end of the queue if they hold up progress, or grow too old.

        Only when the decided between them are the most by far: else copying would never end.
        """
        halves = self._halves
        while self._tick.has_room:
            oldest = halves.pending.oldest
            if oldest is None:
                return
            is_spread = halves.spread > SPREAD_MAX + 2 * len(halves.pending)
            if not is_spread and now_ms - self._stored_ms(oldest, now_ms) < self._copy_age_ms():
                return
            if not self._copy(oldest):
                return

    def _copy_age_ms(self) -> int:
        retention_ms = self._store.config.retention_hours * 3_600_000
        return max(60_000, min(COPY_AGE_MS, retention_ms // 2))

    def _stored_ms(self, offset: int, now_ms: int) -> int:
        """When the oldest half was stored; the current time if it cannot be read: its next check
        drops it."""
        if self._oldest[0] != offset:
            found, stored = at_offset(self._store, HALF_QUEUE, offset)
            with found:
                if found.status is ReadStatus.NOT_READY:
                    return now_ms
                self._oldest = (offset, stored.view.store_timestamp if stored else now_ms)
        return self._oldest[1]

    def _copy(self, offset: int) -> bool:
        found, stored = at_offset(self._store, HALF_QUEUE, offset)
        with found:
            if found.status is ReadStatus.NOT_READY:
                return False
            if stored is None:
                self._give_up(offset)
                return True
            root, checks = root_of(stored), self._halves.pending.checks(offset)
            copy = stored.to_incoming().with_properties(
                {
                    keys.TRANSACTION_PREPARED_QUEUE_OFFSET: b"%d" % root,
                    keys.TRANSACTION_CHECK_TIMES: b"%d" % checks if checks else b"",
                }
            )
        self._tick.add(len(copy.body))
        try:
            appended = self._writer.put([copy.to_entry(), self._transactions.op(offset)])
        except RequestRejected:
            return False
        self._halves.copied(root, appended.queue_offsets[0])
        return True


def _record(message: Incoming, stored: Stored, store_host: bytes) -> bytes:
    """The half as a stored record with its real topic and queue, which a producer can decode."""
    view = stored.view
    chunk = build([message.to_entry()], store_host=store_host, record_crc=False)
    stamp(
        chunk,
        0,
        1,
        queue_offsets=[view.queue_offset],
        physical_offset=view.physical_offset,
        store_timestamp=view.store_timestamp,
    )
    return bytes(chunk.data)


@dataclass(slots=True, kw_only=True)
class AdminTransactions:
    """Tianzhou's own requests that list undecided and parked transactions, and RocketMQ's request
    to check one of them again."""

    store: QueueReader
    writer: Writer
    halves: HalfQueue
    checks: TransactionChecks

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.LIST_HALF_MESSAGES: self.list_halves,
            RequestCode.LIST_PARKED_MESSAGES: self.list_parked,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume,
        }

    def list_halves(self, request: Request) -> Reply:
        asked = ListWaitingRequest.from_ext(request.header.ext)
        self.checks.scan()
        rows = map(self._half, read_waiting(self.store, HALF_QUEUE, self.halves.pending))
        wanted = (row for row in rows if asked.topic in (None, row.topic))
        found = tuple(islice(wanted, listed_count(asked)))
        total = len(self.halves.pending)
        return Reply(body=fastjson.encode(HalfMessages(messages=found, total=total)))

    def list_parked(self, request: Request) -> Reply:
        asked, parked = ListWaitingRequest.from_ext(request.header.ext), self.checks.parked
        parked.read_all()
        rows = map(_parked, read_waiting(self.store, PARKED_QUEUE, parked))
        wanted = (row for row in rows if asked.topic in (None, row.topic))
        found = tuple(islice(wanted, listed_count(asked)))
        return Reply(body=fastjson.encode(HalfMessages(messages=found, total=len(parked))))

    def _half(self, stored: Stored) -> HalfMessage:
        offset, pending = int(stored.view.queue_offset), self.halves.pending
        return HalfMessage(
            checks=pending.checks(offset),
            group=pending.group(offset),
            msg_id=stored.view.message_id,
            offset_msg_id=stored.view.offset_id,
            queue_offset=offset,
            store_timestamp=stored.view.store_timestamp,
            topic=stored.real_topic,
        )

    def resume(self, request: Request) -> Reply | None:
        """Restart the checks of a half message that is pending, or that was parked because no
        producer decided it."""
        asked = ResumeCheckHalfMessageRequest.from_ext(request.header.ext)
        with require_ready(self.store.record_at(_place(asked.msg_id))) as found:
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
        topic=stored.real_topic,
    )


def _place(message_id: str | None) -> int:
    try:
        return decode_offset_id(message_id or "").physical_offset
    except UsageError as error:
        raise RequestRejected(ResponseCode.INVALID_PARAMETER, str(error)) from error
