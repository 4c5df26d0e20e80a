"""Asking producers what became of their transactions.

An undecided half is looked at when it is old enough, then at intervals. Its producer is asked by a
one-way request and decides as it always does. How often it was asked is kept in memory: a restart
asks a few times more, which harms nobody, and no check costs a write. Without a living producer of
its group a half waits, uncounted. After the last check it is parked where an operator finds it.
"""

import heapq
import logging
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.consumer_offsets import ConsumerOffsets
from tianzhou.broker.half_queue import HALF_QUEUE, Half, HalfQueue
from tianzhou.broker.incoming import Incoming
from tianzhou.broker.lagging_save import LaggingSave
from tianzhou.broker.sessions import Client, Sessions
from tianzhou.broker.stored import Stored, at_offset
from tianzhou.broker.transactions import Transactions
from tianzhou.broker.writer import Writer
from tianzhou.net.exchange import Refused
from tianzhou.record import names as keys
from tianzhou.record.chunk import build, stamp
from tianzhou.store.store import MessageStore
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_send import CheckTransactionStateRequest

log: Final = logging.getLogger("tianzhou.broker")

LOOKS_MAX: Final = 4096
"""Looks at halves in one tick; most find them decided."""
WORK_MAX: Final = 64
"""Checks, parkings and copies in one tick."""
WORK_BYTES_MAX: Final = 4 * 1024 * 1024
"""A check carries the message. Producers must not be flooded with them."""
SPREAD_MAX: Final = 20_000
"""Decided halves that a start may have to read because of an old one before them."""
COPY_AGE_MS: Final = 86_400_000
"""A half is copied long before retention could take it."""


class TransactionChecks:
    """Owner: the broker loop."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        writer: Writer,
        sessions: Sessions,
        offsets: ConsumerOffsets,
        halves: HalfQueue,
        transactions: Transactions,
        clock: Clock,
    ) -> None:
        self._config = config
        self._store = store
        self._writer = writer
        self._sessions = sessions
        self._offsets = offsets
        self._halves = halves
        self._transactions = transactions
        self._clock = clock
        retention_ms = store.config.retention_hours * 3_600_000
        self._copy_age_ms = max(60_000, min(COPY_AGE_MS, retention_ms // 2))
        self._work = self._work_bytes = 0
        self._plan_all()

    def begin(self) -> None:
        """Read which halves are undecided, complete a decision that a crash interrupted, and plan
        when to ask about the others."""
        self._halves.begin()
        self._transactions.complete_last()
        self._plan_all()

    def _plan_all(self) -> None:
        self._due: list[tuple[int, int]] = []
        """When to look at which half, soonest first; halves that are decided by then are passed."""
        self._waiting: dict[str, list[int]] = {}
        """Halves by group that has no living producer."""
        self._turns: dict[str, int] = {}
        for half in self._halves.pending.values():
            self._plan(half)
        self._saving = LaggingSave(
            self._store, self._halves.progress, self._save,
            every_ms=self._config.offsets_save_ms, now_s=self._clock.monotonic_s(),
        )  # fmt: skip

    def tick(self) -> bool:
        now_ms = self._clock.now_ms()
        self._work = self._work_bytes = 0
        self.scan()
        self._wake(now_ms)
        looks = 0
        while self._due and self._due[0][0] <= now_ms and looks < LOOKS_MAX and self._has_room:
            looks += 1
            half = self._halves.pending.get(heapq.heappop(self._due)[1])
            if half is not None:
                self._look(half, now_ms)
        self._copy_old(now_ms)
        self._saving.tick(self._clock.monotonic_s())
        return self._halves.is_behind or (bool(self._due) and self._due[0][0] <= now_ms)

    def finish(self) -> None:
        self._saving.finish()

    def _save(self, progress: tuple[int, int]) -> None:
        group = names.TRANSACTION_GROUP
        self._offsets.put(group, names.HALF_TOPIC, 0, progress[0])
        self._offsets.put(group, names.OP_TOPIC, 0, progress[1])

    @property
    def _has_room(self) -> bool:
        return self._work < WORK_MAX and self._work_bytes < WORK_BYTES_MAX

    # When

    def scan(self) -> None:
        """Read on in the half queue, a slice, and plan when to look at what is there."""
        for half in self._halves.scan():
            self._plan(half)

    def _plan(self, half: Half) -> None:
        wait_ms = self._config.transaction_timeout_ms
        if half.immunity_ms is not None:
            wait_ms = half.immunity_ms
        if half.root != half.offset:
            wait_ms = self._config.transaction_check_ms  # copied, and checked before perhaps
        heapq.heappush(self._due, (half.stored_ms + wait_ms, half.offset))

    def _again(self, half: Half, now_ms: int) -> None:
        due_ms = now_ms + self._config.transaction_check_ms
        heapq.heappush(self._due, (due_ms, half.offset))

    def _wake(self, now_ms: int) -> None:
        """Look again at halves whose producers came back."""
        for group in [group for group in self._waiting if self._living(group)]:
            for offset in self._waiting.pop(group):
                heapq.heappush(self._due, (now_ms, offset))

    def _living(self, group: str) -> list[Client]:
        clients = self._sessions.producers.get(group, {})
        return [client for client in clients.values() if client.peer.is_open]

    def recheck(self, root: int) -> bool:
        """Ask again in the next tick, and count from the first time; False: it is decided."""
        half = self._halves.pending.get(self._halves.current(root))
        if half is None:
            return False
        half.checks = 0
        # Out of its place in the plan, or it would be asked twice as often from now on.
        self._due = [(due_ms, offset) for due_ms, offset in self._due if offset != half.offset]
        for waiting in self._waiting.values():
            if half.offset in waiting:
                waiting.remove(half.offset)
        self._due.append((self._clock.now_ms(), half.offset))
        heapq.heapify(self._due)
        return True

    # What

    def _look(self, half: Half, now_ms: int) -> None:
        if half.checks >= self._config.transaction_checks_max:
            if not self._park(half):
                self._again(half, now_ms)
            return
        living = self._living(half.group)
        if not living:
            self._waiting.setdefault(half.group, []).append(half.offset)
            return
        # One after the other, so that one producer that hangs does not get them all.
        turn = self._turns[half.group] = self._turns.get(half.group, -1) + 1
        if self._ask(half, living[turn % len(living)]):
            half.checks += 1
            self._again(half, now_ms)

    def _ask(self, half: Half, client: Client) -> bool:
        found, stored = at_offset(self._store, HALF_QUEUE, half.offset)
        with found:
            if stored is None:
                self._give_up(half)
                return False
            message, view = stored.meant() or stored.to_incoming(), stored.view
            fields = CheckTransactionStateRequest(
                topic=message.topic, tran_state_table_offset=int(view.queue_offset),
                commit_log_offset=int(view.physical_offset), msg_id=view.message_id,
                transaction_id=view.message_id, offset_msg_id=view.offset_id,
                broker_name=self._config.name,
            )  # fmt: skip
            body = _record(message, stored, self._writer.store_host)
        client.peer.tell(RequestCode.CHECK_TRANSACTION_STATE, fields.to_ext(), body)
        self._work += 1
        self._work_bytes += len(body)
        return True

    def _give_up(self, half: Half) -> None:
        """It expired or is damaged: there is nothing to ask about, and nothing to keep."""
        log.error("transaction.half_unreadable", extra={"offset": half.offset, "group": half.group})
        self._work += 1
        self._halves.end(half.root)

    def _park(self, half: Half) -> bool:
        """Keep it where no consumer looks and an operator does; False: try later."""
        found, stored = at_offset(self._store, HALF_QUEUE, half.offset)
        with found:
            if stored is None:
                self._give_up(half)
                return True
            parked = stored.to_incoming()._replace(
                topic=names.CHECKED_OUT_TOPIC, prepared_offset=stored.view.physical_offset
            )
        self._work += 1
        try:
            self._writer.put([parked.to_entry(), self._transactions.op(half.offset)])
        except Refused:
            return False
        log.warning("transaction.parked", extra={"offset": half.offset, "group": half.group})
        self._halves.end(half.root)
        return True

    # Progress

    def _copy_old(self, now_ms: int) -> None:
        """Copy the oldest to the end of the queue if they hold up progress, or grow too old.

        Only when the decided between them are the most by far: else copying would never end.
        """
        halves = self._halves
        while halves.pending and self._has_room:
            oldest = next(iter(halves.pending.values()))
            is_spread = halves.spread > SPREAD_MAX + 2 * len(halves.pending)
            if not is_spread and now_ms - oldest.stored_ms < self._copy_age_ms:
                return
            if not self._copy(oldest):
                return

    def _copy(self, half: Half) -> bool:
        found, stored = at_offset(self._store, HALF_QUEUE, half.offset)
        with found:
            if stored is None:
                self._give_up(half)
                return True
            copy = stored.to_incoming().with_properties(
                {
                    keys.TRANSACTION_PREPARED_QUEUE_OFFSET: b"%d" % half.root,
                    keys.TRANSACTION_CHECK_TIMES: b"%d" % half.checks if half.checks else b"",
                }
            )
        self._work += 1
        self._work_bytes += len(copy.body)
        try:
            appended = self._writer.put([copy.to_entry(), self._transactions.op(half.offset)])
        except Refused:
            return False
        self._halves.copied(half, appended.queue_offsets[0])
        return True


def _record(message: Incoming, stored: Stored, store_host: bytes) -> bytes:
    """The half as a stored record, with its real topic and queue: what a producer can decode."""
    view = stored.view
    chunk = build([message.to_entry()], store_host=store_host, record_crc=False)
    stamp(
        chunk, 0, 1,
        queue_offsets=[view.queue_offset], physical_offset=view.physical_offset,
        store_timestamp=view.store_timestamp,
    )  # fmt: skip
    return bytes(chunk.data)
