"""The way into the store for everything that writes messages: producers, retries, delays.

Writing, and making what was written visible, are two steps: several writes of one round of the
loop are dispatched together, and whoever waits for a queue is told once.
"""

from collections.abc import Callable, Iterable

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.broker.acks import Acks, Answer
from tianzhou.net.exchange import Refused
from tianzhou.record.chunk import Entry, build
from tianzhou.record.errors import RecordTooLarge
from tianzhou.store.config import FlushMode
from tianzhou.store.errors import DiskFull, StoreClosed, StoreFenced
from tianzhou.store.facts import Run
from tianzhou.store.store import Appended, MessageStore
from tianzhou.wire._generated_codes import ResponseCode


class Writer:
    """Owner: the broker loop."""

    def __init__(
        self, store: MessageStore, store_host: bytes, monotonic_s: Callable[[], float]
    ) -> None:
        self._store = store
        self.store_host = store_host
        self._monotonic_s = monotonic_s
        self.record_crc = store.config.record_crc
        self._is_sync = store.config.flush_mode is FlushMode.SYNC
        self._timeout_s = store.config.sync_flush_timeout_ms / 1000
        self.acks = Acks()
        self.arrived: list[Callable[[Run], None]] = []
        """Told of every run of messages that became visible."""

    def put(self, entries: Iterable[Entry]) -> Appended:
        """Append messages. Raises Refused with the code that the sender must see."""
        try:
            chunk = build(entries, store_host=self.store_host, record_crc=self.record_crc)
            return self._store.append(chunk)
        except RecordTooLarge as error:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        except DiskFull as error:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"disk full: {error}") from error
        except (StoreFenced, StoreClosed) as error:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from error

    def when_durable(self, end: PhysicalOffset, answer: Answer, *, wait: bool = True) -> None:
        """Call `answer` once the log is safe up to `end`; at once if it is, or nobody waits."""
        if not self._is_sync or not wait or self._store.flushed >= end:
            answer(True)
        else:
            self.acks.park(end, self._monotonic_s() + self._timeout_s, answer)

    def settle(self) -> None:
        """Make visible what may be seen, tell who waits for it, release answers."""
        while runs := self._store.dispatch():
            for run in runs:
                for tell in self.arrived:
                    tell(run)
        if self._is_sync:
            self.acks.release(self._store.flushed)

    def catch_up(self) -> bool:
        """Settle now if anything waits for it; whether it did. Whoever was told that a message is
        stored must find it, though dispatch comes once a round."""
        if not self._store.has_undispatched:
            return False
        self.settle()
        return True

    def tick(self) -> None:
        if self._store.is_broken:
            self.acks.fail_all()
        self.acks.expire(self._monotonic_s())
