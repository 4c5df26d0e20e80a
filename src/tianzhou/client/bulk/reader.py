"""Read a range of one queue as chunks of records: no thread, no event loop.

The next pull is in flight while the caller processes a chunk. A lost connection is reopened, and
the range continues where it was. Messages that no longer exist are reported with their offsets, or
skipped if the caller wants that.

Old messages are read from a slave if the master advises that. Only the master decides that messages
do not exist: a response of a slave that lacks some is not used, and the master is asked.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tianzhou.base.errors import Retry
from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.core.pulling import (
    PullAnswer,
    PullFrom,
    PullPlan,
    PullStatus,
    is_usable,
    read_answer,
    renumber,
    unpacked,
    untrusted,
)
from tianzhou.client.core.routing import MASTER
from tianzhou.client.core.subscription import Sql92, subscribe
from tianzhou.client.errors import BadPullAnswer, ClientError, NoRoute, remote_error
from tianzhou.client.transport.blocking import Request
from tianzhou.filter.tags import ALL
from tianzhou.record import flags
from tianzhou.record.layout import AT_QUEUE_OFFSET, AT_SYS_FLAG, INT64
from tianzhou.record.light_queues import is_light
from tianzhou.record.walk import Stop, walk
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.queues import MessageQueue

PULL_COUNT_MAX: Final = 1024
PULL_BYTES_MAX: Final = 4 * 1024 * 1024
"""The limit of our broker; Java's return less, and then a chunk takes more pulls."""

CHUNK_BYTES: Final = 8 * 1024 * 1024
CHUNK_RECORDS: Final = 8 * 1024
"""Large enough that the fixed costs of a chunk vanish, small enough for a processor's cache to
help and for thousands of tasks to have one each."""

WAIT_FOR_TAIL_S: Final = 5.0
"""How long a queue may be shorter than the range: a broker that has just started catches up."""


class OffsetGone(ClientError):
    """Messages of the range no longer exist, or never did."""

    def __init__(self, queue: MessageQueue, first: int, end: int, why: str) -> None:
        count = end - first
        super().__init__(
            f"queue {queue.queue_id} of topic {queue.topic} on broker {queue.broker_name}: "
            f"{count} message{'s' if count > 1 else ''} with offset{'s' if count > 1 else ''} "
            f"{first}{f' to {end - 1}' if count > 1 else ''} "
            f"{'are' if count > 1 else 'is'} missing: {why}"
        )
        self.queue = queue
        self.first = first
        self.end = end


class NotAtSlave(NoRoute):
    """A slave does not have these messages, or does not serve them; its master is asked next."""

    def __init__(self, queue: MessageQueue, offset: int, *, slave: str, why: str) -> None:
        super().__init__(
            f"queue {queue.queue_id} of topic {queue.topic} cannot be read from offset {offset} at "
            f"the slave {slave} of broker {queue.broker_name}: {why}; only the master of the "
            "broker can tell whether messages are missing: is it running?"
        )
        self.queue = queue
        self.offset = offset


class RecordRun:
    """Whole records back to back, in the order of the queue.

    Valid until: the next one is requested.
    """

    __slots__ = ("data", "end", "starts")

    def __init__(self) -> None:
        self.data = bytearray(CHUNK_BYTES + PULL_BYTES_MAX)
        self.starts: list[int] = []
        self.end = 0

    def room(self, size: int) -> memoryview:
        """Return the free part of the buffer. Bytes in it count when `end` is moved behind them."""
        needed = self.end + size
        if needed > len(self.data):
            # A new buffer, not a longer one: views of the old one may still be in use.
            grown = bytearray(max(needed, 2 * len(self.data)))
            grown[: self.end] = memoryview(self.data)[: self.end]
            self.data = grown
        return memoryview(self.data)[self.end : needed]

    @property
    def is_full(self) -> bool:
        return self.end >= CHUNK_BYTES or len(self.starts) >= CHUNK_RECORDS

    def clear(self) -> None:
        self.starts, self.end = [], 0


@dataclass(frozen=True, slots=True)
class QueueRange:
    queue: MessageQueue
    start: int
    end: int
    """The first offset that does not belong to the range."""


class QueueReader:
    """Read ranges of queues, one after the other.

    Owner: one thread.
    """

    def __init__(
        self,
        brokers: Brokers,
        group: str,
        *,
        tags: str = ALL,
        sql92: str = "",
        pull_count: int = PULL_COUNT_MAX,
        on_gone: Callable[[OffsetGone], None] | None = None,
    ) -> None:
        """Create a reader whose filter, tags or an SQL92 expression, the broker applies.

        Of tags the broker compares only hash codes, so a few other messages may be returned.
        Without `on_gone`, missing messages raise OffsetGone; with it they are skipped and reported.
        """
        self._brokers = brokers
        self._group = group
        self._expression = Sql92(sql92) if sql92 else tags
        self._pull_count = pull_count
        self._on_gone = on_gone
        self._sources: dict[MessageQueue, PullFrom] = {}

    def read(self, wanted: QueueRange) -> Iterator[RecordRun]:
        if wanted.start >= wanted.end:
            return
        plan = self._plan(wanted.queue)
        pulls = _Pulls(self._brokers, plan, wanted, sources=self._sources, gone=self._gone)
        run = RecordRun()
        while not pulls.is_done:
            pulls.take_into(run)
            if run.is_full:
                yield run
                run.clear()
        if run.starts:
            yield run

    def _plan(self, queue: MessageQueue) -> PullPlan:
        # Every pull contains its filter, so no broker stores or compares the version.
        subscription = subscribe(queue.topic, self._expression, version=0)
        return PullPlan(
            group=self._group,
            queue=queue,
            subscription=subscription,
            count_max=self._pull_count,
            bytes_max=PULL_BYTES_MAX,
            suspend_ms=0,
        )

    def _gone(self, gone: OffsetGone) -> None:
        if self._on_gone is None:
            raise gone
        self._on_gone(gone)


class _Response(NamedTuple):
    """A usable response, whose records are in the buffer behind those of earlier ones."""

    answer: PullAnswer
    starts: list[int]
    end: int
    """Where the records end."""


class _Pulls:
    """The pulls of one range; one pull is in flight while a response is processed.

    Invariant: start <= at <= end; everything below `at` was returned, filtered or reported.
    """

    def __init__(
        self,
        brokers: Brokers,
        plan: PullPlan,
        wanted: QueueRange,
        *,
        sources: dict[MessageQueue, PullFrom],
        gone: Callable[[OffsetGone], None],
    ) -> None:
        self._brokers = brokers
        self._plan = plan
        self._queue = wanted.queue
        self._at = wanted.start
        self._end = wanted.end
        self._sources = sources
        self._gone = gone
        self._replica: tuple[int, str] | None = None
        """Id and address of the broker that got the last pull."""
        self._sent: int | None = None
        """Number of the pull in flight."""
        self._short_since: float | None = None

    @property
    def is_done(self) -> bool:
        return self._at >= self._end

    def take_into(self, run: RecordRun) -> None:
        """Add the records of the next response."""
        response = self._brokers.persist(lambda: self._response(run), on_failure=self._start_over)
        answer = response.answer
        if answer.status is PullStatus.FOUND:
            self._found(response, run)
        elif answer.status is PullStatus.NO_MATCHED and answer.next_offset > self._at:
            if self._plan.takes_all:
                self._lose(answer.next_offset, _HOLE)
            else:
                self._advance(answer.next_offset)
        elif answer.status is PullStatus.OFFSET_ILLEGAL and self._at < answer.min_offset:
            self._lose(answer.min_offset, "the broker no longer keeps them")
        else:
            self._wait_for_tail(answer)

    def _found(self, response: _Response, run: RecordRun) -> None:
        answer, here, end = response
        asked, until = self._at, self._end
        self._short_since = None
        self._advance(answer.next_offset)
        while here and _offset_at(run.data, here[-1]) >= until:
            end = here.pop()
        count = min(answer.next_offset, until) - asked
        if len(here) != count and self._plan.takes_all:
            self._report_holes(run.data, here, asked, asked + count)
        run.starts += here
        run.end = end

    def _report_holes(self, data: bytearray, here: list[int], first: int, end: int) -> None:
        """Report missing offsets. Nothing was filtered, so every offset must be present."""
        if _have_batches(data, here):
            return
        expected = first
        for start in here:
            offset = _offset_at(data, start)
            if offset > expected:
                self._gone(OffsetGone(self._queue, expected, offset, _HOLE))
            expected = offset + 1
        if expected < end:
            self._gone(OffsetGone(self._queue, expected, end, _HOLE))

    def _response(self, run: RecordRun) -> _Response:
        """Return the next response. What a slave cannot serve is left for its master."""
        try:
            return self._receive(run)
        except ClientError as error:
            at, address = self._replica or (MASTER, "")
            if at == MASTER or error.retry is not Retry.NEVER:
                raise
            raise NotAtSlave(self._queue, self._at, slave=address, why=str(error)) from error

    def _receive(self, run: RecordRun) -> _Response:
        number = self._send() if self._sent is None else self._sent
        assert self._replica is not None
        at, address = self._replica
        sizes: list[int] = []

        def room(size: int) -> memoryview:
            sizes.append(size)
            return run.room(size)

        header = self._brokers.connection(address).receive_into(number, room)
        self._sent = None
        with untrusted(self._queue, self._at):
            answer = read_answer(header, b"")
        if answer is None:
            raise remote_error(address, header.code, header.remark)
        response = self._checked(answer, run, run.end + sizes[0])
        if at != MASTER:
            self._check_slave(response, run)
        source = self._source.after_answer(answer, at=at, now_s=time.monotonic())
        self._sources[self._queue] = source
        return response

    def _checked(self, answer: PullAnswer, run: RecordRun, end: int) -> _Response:
        """Find the records of a response. Raises BadPullAnswer."""
        if answer.status is not PullStatus.FOUND:
            return _Response(answer, [], run.end)
        found = walk(run.data, run.end, end)
        if found.stop is not Stop.END or found.end != end or answer.next_offset <= self._at:
            raise BadPullAnswer(
                self._queue,
                self._at,
                f"of {end - run.end} bytes {found.end - run.end} are whole records, and the next "
                f"offset is {answer.next_offset}",
            )
        if is_light(self._queue.topic):
            with untrusted(self._queue, self._at):
                renumber(run.data, found.starts, self._queue.topic)
        return _Response(answer, found.starts, end)

    def _check_slave(self, response: _Response, run: RecordRun) -> None:
        """Raise NotAtSlave unless the response of a slave may be used."""
        assert self._replica is not None
        answer, starts, _ = response
        at, address = self._replica
        is_counted = self._plan.takes_all and not _have_batches(run.data, starts)
        count = len(starts) if is_counted else None
        if not is_usable(answer, at=at, asked=self._at, count=count):
            why = (
                f"its response has {len(starts)} messages, ends before offset {answer.next_offset} "
                f"and has the status {answer.status.name}"
            )
            raise NotAtSlave(self._queue, self._at, slave=address, why=why)

    @property
    def _source(self) -> PullFrom:
        return self._sources.get(self._queue, PullFrom())

    def _send(self) -> int:
        self._replica = self._brokers.replica_of(self._queue, self._source.broker_id)
        plan = self._plan
        if self._queue not in self._sources and len(self._brokers.replica_ids(self._queue)) > 1:
            # Its response says where to read from, before the master reads megabytes of old log.
            plan = replace(plan, count_max=1)
        request = Request(RequestCode.PULL_MESSAGE, plan.ext(self._at))
        self._sent = self._brokers.connection(self._replica[1]).send(request)
        return self._sent

    def _advance(self, offset: int) -> None:
        self._at = min(offset, self._end)
        if self._at < self._end:
            try:
                self._send()
            except ClientError as error:
                # The next call retries.
                self._start_over()
                if error.retry is Retry.NEVER:
                    raise

    def _start_over(self) -> None:
        """Leave a replica that failed, and refresh the route."""
        known = self._brokers.replica_ids(self._queue)
        self._sources[self._queue] = self._source.after_failure(known, now_s=time.monotonic())
        if self._replica is not None:
            self._brokers.drop(self._replica[1])
        self._replica = self._sent = None
        self._brokers.forget(self._queue.topic)

    def _lose(self, offset: int, why: str) -> None:
        end = min(offset, self._end)
        gone = OffsetGone(self._queue, self._at, end, why)
        self._advance(end)
        self._gone(gone)

    def _wait_for_tail(self, answer: PullAnswer) -> None:
        """Wait for messages, because the queue is shorter than the range."""
        now = time.monotonic()
        if self._short_since is None:
            self._short_since = now
        if now - self._short_since > WAIT_FOR_TAIL_S:
            self._lose(self._end, f"the queue ends at {answer.max_offset}")
        else:
            time.sleep(0.05)


def unwrapped(data: bytes, starts: list[int]) -> tuple[bytes, list[int]]:
    """Return the same records, with batch records split into their messages."""
    return unpacked(data, starts)


def _have_batches(data: bytearray, starts: list[int]) -> bool:
    """Whether one of the records contains many messages."""
    return any(data[start + _FLAG_LOW_BYTE] & flags.INNER_BATCH for start in starts)


_HOLE: Final = "the broker skipped them"
_FLAG_LOW_BYTE: Final = AT_SYS_FLAG + 3


def _offset_at(data: bytearray, start: int) -> int:
    return INT64.unpack_from(data, start + AT_QUEUE_OFFSET)[0]
