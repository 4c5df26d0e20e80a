"""Parked transactions: half messages whose producers did not decide, however often they were asked.

They stay in `TRANS_CHECK_MAX_TIME_TOPIC` until an operator resumes them or they expire with the
log. A resumed transaction is a new half message, followed in the same append by a mark in the
parked topic that names the offset of the parked message. A crash may leave the half message without
the mark, and then the half message is the last record of the log: a start adds the mark.

Memory holds the offset and the group of each, about 14 bytes. A start reads the whole topic, in
slices.
"""

from collections.abc import Iterator
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import QueueOffset, queue_key
from tianzhou.broker import names
from tianzhou.broker.alarms import Alarm, Since
from tianzhou.broker.transactions.pending_halves import PendingHalves
from tianzhou.broker.writing.incoming import Incoming
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.broker.writing.stored import Stored, at_offset, records
from tianzhou.net.rpc import RequestRejected
from tianzhou.record import names as keys
from tianzhou.record.chunk import Entry
from tianzhou.store.commit_log import Appended
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.wire._generated_codes import ResponseCode

PARKED_QUEUE: Final = queue_key(names.CHECKED_OUT_TOPIC, 0)
_SLICE: Final = ReadLimit(count=800, size=1 << 26)


class ParkedTransactions:
    """Owner: the broker loop."""

    def __init__(self, store: MessageStore, writer: Writer, clock: Clock) -> None:
        self._store = store
        self._writer = writer
        self._clock = clock
        self._since = Since(clock)
        self._parked = PendingHalves()
        self._scanned = 0

    def begin(self) -> None:
        """Reset the state, so that parked messages are read again, and complete a resumption that a
        crash interrupted. Must run before anything else is written."""
        self._parked.clear()
        self._scanned = 0
        self._complete_last()

    def __len__(self) -> int:
        return len(self._parked)

    def __iter__(self) -> Iterator[int]:
        """Offsets in the parked topic, oldest first."""
        return iter(self._parked)

    def tick(self) -> bool:
        """Read the next slice and drop expired messages; returns whether there is more to read."""
        minimum = self._store.min_offset(PARKED_QUEUE)
        while (oldest := self._parked.oldest) is not None and oldest < minimum:
            self._parked.discard(oldest)
        end = self._store.max_offset(PARKED_QUEUE)
        self._scanned = max(self._scanned, minimum)
        if self._scanned < end:
            with self._store.read(PARKED_QUEUE, QueueOffset(self._scanned), _SLICE) as found:
                for stored in records(found):
                    self._add(stored)
                self._scanned = found.next_offset
        return self._scanned < end

    def read_all(self) -> None:
        """Read to the end of the topic, so that messages parked just now are included. Raises
        RequestRejected if the next messages are not ready."""
        before = -1
        while self.tick():
            if self._scanned == before:
                raise RequestRejected(
                    ResponseCode.SYSTEM_BUSY,
                    "parked transactions are being fetched from storage; retry in a second",
                )
            before = self._scanned

    def resume(self, stored: Stored) -> Appended:
        """Turn a parked message back into the half message that was originally sent. Raises
        RequestRejected if it is not parked or was already resumed."""
        self.read_all()
        offset = int(stored.view.queue_offset)
        if offset not in self._parked:
            raise RequestRejected(
                ResponseCode.ILLEGAL_OPERATION,
                f"{stored.view.message_id} was already resumed; list the parked transactions: "
                "tianzhou transaction list --parked",
            )
        half = stored.to_incoming().with_properties(
            {
                keys.TRANSACTION_PREPARED_QUEUE_OFFSET: b"",
                keys.TRANSACTION_CHECK_TIMES: b"",
                keys.PARKED_OFFSET: b"%d" % offset,
            }
        )
        half = half._replace(topic=names.HALF_TOPIC, queue_id=0, prepared_offset=0)
        appended = self._writer.put([half.to_entry(), self._mark(offset)])
        self._parked.discard(offset)
        return appended

    def alarms(self) -> Iterator[Alarm]:
        count = len(self._parked)
        if since_ms := self._since.began_ms("transactions_parked", holds=count > 0):
            yield Alarm(
                kind="transactions_parked",
                text=f"{count} transactions are parked: no producer decided them, and the "
                "broker no longer checks them",
                remedy="tianzhou transaction list --parked, then: tianzhou transaction resume ID",
                since_ms=since_ms,
            )

    def _add(self, stored: Stored) -> None:
        resumed = stored.number(keys.PARKED_OFFSET, -1)
        if resumed >= 0:
            self._parked.discard(resumed)
            return
        group = (stored.get(keys.PRODUCER_GROUP) or b"").decode("utf-8", "replace")
        checks = stored.number(keys.TRANSACTION_CHECK_TIMES, 0)
        self._parked.add(int(stored.view.queue_offset), group, checks)

    def _mark(self, offset: int) -> Entry:
        return Incoming(
            names.CHECKED_OUT_TOPIC,
            0,
            b"%d" % offset,
            b"%s\x01%d\x02" % (keys.PARKED_OFFSET, offset),
            born_timestamp=self._clock.now_ms(),
            born_host=self._writer.form.store_host,
        ).to_entry()

    def _complete_last(self) -> None:
        last = max((queue.last_physical_offset() for queue in self._store.queues), default=0)
        with self._store.record_at(last) as found:
            half = next(records(found), None)
            if half is None or half.view.topic != names.HALF_TOPIC:
                return
            offset, unique_id = half.number(keys.PARKED_OFFSET, -1), half.view.unique_id
        if not 0 <= offset < self._store.max_offset(PARKED_QUEUE):
            return
        read, parked = at_offset(self._store, PARKED_QUEUE, offset)
        with read:
            is_same = parked is not None and parked.view.unique_id == unique_id
        if is_same:
            self._writer.put([self._mark(offset)])
