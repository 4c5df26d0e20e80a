"""Offsets of consumers: where a group starts, what a consumer that polls may commit, which offsets
changed, and the store that a user may supply.
"""

import enum
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from tianzhou.base.errors import UsageError
from tianzhou.client.core.assigned_queue import AssignedQueue
from tianzhou.wire.heartbeat import ConsumeFromWhere
from tianzhou.wire.names import RETRY_PREFIX
from tianzhou.wire.queues import MessageQueue

_TIME_FORM: Final = "%Y%m%d%H%M%S"


class StartPosition(enum.Enum):
    """Where a group starts in a queue that it has not consumed before.

    FIRST is the oldest message that is still stored, LAST the end of the queue.

        ConsumerOptions(start_from=StartPosition.FIRST)
    """

    FIRST = "first"
    LAST = "last"


StartFrom = StartPosition | datetime | str
"""A position or a time; as text a time is `yyyyMMddHHmmss` in local time."""


class Ask(enum.Enum):
    """The request that finds the first offset."""

    ZERO = enum.auto()
    """No request; the broker corrects 0 to its first offset."""
    MAX = enum.auto()
    TIME = enum.auto()


@dataclass(frozen=True, slots=True)
class StartRule:
    """The start position of a group, as heartbeats announce it."""

    where: ConsumeFromWhere
    time_ms: int = 0

    def ask_for(self, topic: str) -> Ask:
        """Return the request for a queue of this topic without a stored offset."""
        is_retry = topic.startswith(RETRY_PREFIX)
        if self.where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
            return Ask.ZERO
        if self.where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
            # Failed messages from before must not be skipped.
            return Ask.ZERO if is_retry else Ask.MAX
        return Ask.MAX if is_retry else Ask.TIME


def start_rule(start: StartFrom) -> StartRule:
    """Return the rule for a start position. Raises UsageError for an invalid time."""
    if start is StartPosition.FIRST:
        return StartRule(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    if start is StartPosition.LAST:
        return StartRule(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    return StartRule(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, epoch_ms(start))


def _check_is_text(time: object) -> None:
    if not isinstance(time, str):
        kind = type(time).__name__
        raise UsageError(
            f"time {repr(time)[:42]} is of type {kind}; it must be a datetime, milliseconds "
            "since 1970, or text such as 20260131235959"
        )


def epoch_ms(time: datetime | str | int) -> int:
    """Return milliseconds since 1970. Text is `yyyyMMddHHmmss` in local time, as in Java."""
    if isinstance(time, int):
        return time
    if isinstance(time, datetime):
        return round(time.timestamp() * 1000)
    _check_is_text(time)
    try:
        # strptime alone would accept 2026010203040 as well.
        if len(time) != 14 or not time.isdecimal():
            raise ValueError("it does not have 14 digits")  # noqa: TRY301
        return round(datetime.strptime(time, _TIME_FORM).timestamp() * 1000)  # noqa: DTZ007
    except ValueError as error:
        raise UsageError(
            f"invalid time {time!r}; use yyyyMMddHHmmss, such as 20260131235959: {error}"
        ) from error


class PolledOffsets:
    """The offsets after the messages that polls returned, and those that may be committed.

    Owner: the event loop of the consumer.
    """

    def __init__(self) -> None:
        self._returned: dict[MessageQueue, int] = {}
        self._allowed: dict[MessageQueue, int] = {}

    def put(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset after the messages that were returned, or after a seek."""
        self._returned[queue] = offset

    def allow(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Allow these offsets to be committed; by default those of all returned messages."""
        self._allowed.update(self._returned if offsets is None else offsets)

    def committable(self, assigned: AssignedQueue) -> int | None:
        """Return the offset to commit for a queue; None to commit nothing."""
        if assigned.is_released:  # final: if the queue comes back, it starts at the group's offset
            self._returned.pop(assigned.queue, None)
            return self._allowed.pop(assigned.queue, None)
        return self._allowed.get(assigned.queue)


class OffsetTable:
    """Offsets by queue, and which of them changed since they were saved.

    Owner: the event loop of the consumer.
    """

    def __init__(self, saved: Mapping[MessageQueue, int] | None = None) -> None:
        self._saved = dict(saved or {})
        self._current = dict(self._saved)

    def get(self, queue: MessageQueue) -> int | None:
        return self._current.get(queue)

    def put(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset of a queue; a reset may move it back."""
        self._current[queue] = offset

    def remove(self, queue: MessageQueue) -> None:
        self._current.pop(queue, None)
        self._saved.pop(queue, None)

    def changed(self) -> dict[MessageQueue, int]:
        """Return the offsets to save; pass those that were saved to `saved`."""
        saved = self._saved
        return {
            queue: offset for queue, offset in self._current.items() if saved.get(queue) != offset
        }

    def saved(self, offsets: Mapping[MessageQueue, int]) -> None:
        self._saved.update(offsets)

    def all(self) -> dict[MessageQueue, int]:
        return dict(self._current)

    def of(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        current = self._current
        return {queue: current[queue] for queue in queues if queue in current}


class RepeatedFailures:
    """Failures of saves, which are repeated every few seconds: a log needs one line per cause."""

    def __init__(self) -> None:
        self._causes: dict[object, str] = {}

    def is_new(self, key: object, error: Exception) -> bool:
        """Record a failure; return whether the last save of this key succeeded, or failed for
        another cause."""
        cause = repr(error)
        if self._causes.get(key) == cause:
            return False
        self._causes[key] = cause
        return True

    def end(self, key: object) -> bool:
        """Record a success; return whether the last save of this key failed."""
        return self._causes.pop(key, None) is not None


class OffsetStore(Protocol):
    """A store of the user for the offsets of a consumer: a database, a file, a key-value store.

        class SqliteOffsets:
            def load(self, group, queue):
                row = database.execute("SELECT offset ...", (group, *key_of(queue))).fetchone()
                return None if row is None else row[0]

            def save(self, group, offsets): ...

        ConsumerOptions(offset_store=SqliteOffsets())

    Both methods may be functions, which are called in a thread, or coroutine functions. A consumer
    does not call its store twice at the same time. If a method raises, the error is logged and the
    call is repeated: the consumer waits for a queue whose offset it cannot load.
    """

    def load(self, group: str, queue: MessageQueue) -> int | Awaitable[int | None] | None:
        """Return the offset of the next message to consume; None if the store has none."""
        ...

    def save(self, group: str, offsets: Mapping[MessageQueue, int]) -> Awaitable[None] | None:
        """Store these offsets; they replace those of the same queues.

        A listener that stores offsets itself, in the transaction of its results, leaves this empty.
        """
        ...


def checked_store(store: object) -> None:
    """Raise UsageError unless this has the methods of an OffsetStore."""
    for name in ("load", "save"):
        if not callable(getattr(store, name, None)):
            raise UsageError(
                f"offset_store {store!r} has no method {name}; it needs load(group, queue) and "
                "save(group, offsets)"
            )
