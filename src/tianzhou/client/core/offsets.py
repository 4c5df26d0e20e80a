"""Consumer offsets: start positions, unsaved changes, and the file of broadcast consumers.

A clustering group keeps its offsets on the brokers. In broadcasting every consumer has its own, in

    <directory>/<client id>/<group>/offsets.json

written as the Java client writes it, with queues as keys:

    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:12}}

A table whose keys are strings can be read too.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import Bytes
from tianzhou.wire.heartbeat import ConsumeFromWhere
from tianzhou.wire.names import RETRY_PREFIX
from tianzhou.wire.queues import MessageQueue, decode_queue_offsets, encode_queue_offsets

FILE_NAME: Final = "offsets.json"
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


def encode_file(offsets: Mapping[MessageQueue, int]) -> bytes:
    return encode_queue_offsets(offsets)


def decode_file(data: Bytes) -> dict[MessageQueue, int]:
    """Decode a file of offsets. Raises BodyError if it is invalid."""
    return decode_queue_offsets(data)
